"""Packages of Debian that the tests need, installed where that is possible.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path


def install(packages: Sequence[str], obstacle: Callable[[], str | None]) -> str | None:
    """Fetch what is missing, if we may; gives what still stands in the way."""
    why = obstacle()
    if why is None or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return why
    variables = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    # Nothing is to start by itself: the tests have daemons of their own.
    with _no_services():
        for command in (
            ["apt-get", "update", "-qq"],
            ["apt-get", "install", "-qq", "--yes", "--no-install-recommends", *packages],
        ):
            done = subprocess.run(
                command, env=variables, capture_output=True, text=True, check=False
            )
            if done.returncode:
                lines = done.stderr.strip().splitlines()
                return f"{' '.join(command)} failed: {lines[-1] if lines else done.returncode}"
    return obstacle()


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Keep packages from starting their daemons, in the way that Debian has for it."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()
