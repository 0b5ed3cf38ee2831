"""The runner in the form that starts fastest."""

from __future__ import annotations

import functools
import hashlib
import os
import py_compile
import sys
from pathlib import Path

from rankwise import runner
from rankwise.errors import RankwiseError
from rankwise.runtime.cache import cache_folder

_SOURCE = Path(str(runner.__file__))


@functools.cache
def compiled_runner() -> Path:
    """Give the runner's file, compiled if that is possible.

    Compiling takes longer than running it, and Python keeps only what is imported. The name tells
    what it was made from: one that is there is right, and stays as long as anything may use it.
    """
    try:
        made_from = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
        place = cache_folder() / "runners" / f"{sys.implementation.cache_tag}-{made_from}.pyc"
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            new = place.with_name(f".{os.getpid()}-{place.name}")
            unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(
                str(_SOURCE), cfile=str(new), doraise=True, invalidation_mode=unchecked
            )
            new.replace(place)
    except (OSError, RankwiseError, py_compile.PyCompileError):
        return _SOURCE
    return place
