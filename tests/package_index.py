"""Whether packages can be fetched: some tests install real ones."""

from __future__ import annotations

import os
import subprocess
from functools import cache

from rankwise.runtimes.uv import find_uv, settings_for_uv

LIMIT_SECONDS = 60


@cache
def obstacle() -> str | None:
    """Say why no package can be fetched here, or None if one can."""
    uv = find_uv()
    if uv is None:
        return "there is no uv"
    try:
        asked = subprocess.run(
            [*uv, "pip", "compile", "--quiet", "--no-cache", "--no-config", "-"],
            env={**os.environ, **settings_for_uv(os.environ)},
            input="iniconfig==2.0.0\n",
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the package index gave no answer in {LIMIT_SECONDS} s"
    return None if asked.returncode == 0 else "the package index cannot be reached"
