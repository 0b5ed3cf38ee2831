"""Tracebacks without the frames of those who only start a program."""

from __future__ import annotations

import re
from collections.abc import Iterable

# How Python runs modules, and how mpi4py runs programs so that an exception ends all ranks.
_STARTERS = re.compile(
    r'(?P<indent>\s*)File "(<frozen runpy>|[^"]*/mpi4py/(__main__|run)\.py|[^"]*/runpy\.py)", line '
)


def without_starters(lines: Iterable[str]) -> list[str]:
    """Leave out the frames in which nobody has made a mistake, with their source lines."""
    kept: list[str] = []
    indent: int | None = None
    for line in lines:
        if found := _STARTERS.match(line):
            indent = len(found["indent"])
            continue
        # The source lines of a frame stand further to the right than the frame.
        if indent is not None and len(line) - len(line.lstrip()) > indent:
            continue
        indent = None
        kept.append(line)
    return kept
