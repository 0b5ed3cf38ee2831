"""Paths into JSON: `$.loss`, `$.epochs[-1].loss`, `$.ranks[*]["wall time"]`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Step = str | int | None
"""A name, an index, or None: each of them."""

_STEP = re.compile(
    r"""\.(?P<name>[^\s.\[\]'"*]+)          # .loss
      | \[(?P<index>-?\d{1,9})\]            # [0], [-1]
      | \[(?P<quoted>'[^']*'|"[^"]*")\]     # ["wall time"]
      | (?P<each>\.\*|\[\*\])               # .* and [*]
    """,
    re.VERBOSE,
)


def steps_of(path: str) -> tuple[Step, ...]:
    """Read a path; raises ValueError that says what is wrong with it."""
    if not path.startswith("$"):
        raise ValueError("must begin with `$`, which is the whole, as in `$.loss`")
    steps: list[Step] = []
    # Step by step, for an error that says where the path goes wrong.
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            rest = path[at : at + 20]
            raise ValueError(f'must go on with `.name`, `[0]`, `["name"]` or `[*]`, not {rest!r}')
        steps.append(_step(found))
        at = found.end()
    return tuple(steps)


def _step(found: re.Match[str]) -> Step:
    if found["each"]:
        return None
    if found["index"]:
        return int(found["index"])
    return found["name"] or found["quoted"][1:-1]


def find(data: Any, path: str) -> list[Any]:
    """Return all values at a path; none: it leads nowhere."""
    found = [data]
    for step in steps_of(path):
        found = [inner for value in found for inner in _inside(value, step)]
    return found


def _inside(value: Any, step: Step) -> Iterator[Any]:
    match value, step:
        case (dict(), None):
            yield from value.values()
        case (list(), None):
            yield from value
        case (dict(), str()) if step in value:
            yield value[step]
        case (list(), int()) if -len(value) <= step < len(value):
            yield value[step]
