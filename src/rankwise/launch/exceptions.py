"""Ranks that raise: without help, the others wait for them for ever.

At its end, also after an exception, Python finalizes MPI, and that waits for ranks which wait for
this one. mpi4py has the remedy: run by `python -m mpi4py`, a rank that raises ends all others.
"""

from __future__ import annotations

import re

from rankwise.launch.command import Launch, Segment
from rankwise.launch.launchers import is_python
from rankwise.launch.shell import Edit

_FLAGS = re.compile(r"-[bBdEIOqsSuvxP]+")
NOTE = (
    "exceptions: `python` became `python -m mpi4py`: a rank that raises ends the others, which "
    "would wait for it for ever"
)


def ending_all(launch: Launch) -> list[Edit]:
    """Give the changes that have every Python of a line end all ranks when it raises."""
    if launch.is_torch:
        return []
    places = (_place(segment) for segment in launch.segments)
    return [Edit(place, place, "-m mpi4py ") for place in places if place is not None]


def _place(segment: Segment) -> int | None:
    """Find where Python's own options end; None: it is no Python, or runs mpi4py already."""
    program = segment.program
    if not is_python(program[0]):
        return None
    rest = list(program[1:])
    while rest and rest[0].text is not None and _FLAGS.fullmatch(rest[0].text):
        del rest[0]
    texts = [word.text or "" for word in rest[:2]]
    if not rest or texts == ["-m", "mpi4py"] or texts[0] in ("-W", "-X", "-V", "--version", "-h"):
        return None
    return rest[0].start
