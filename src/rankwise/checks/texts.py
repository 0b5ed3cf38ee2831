"""Checks of what was written: that it is there, how often, or that it is not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rankwise.checks.material import Material, Source
from rankwise.checks.words import first_lines, last_lines, most_like, names_of, quote, times
from rankwise.plan import Check

# Matches beyond this are not counted: no check asks for so many.
_MOST_MATCHES = 1_000_000


def fault_in_text(check: Check, material: Material) -> str:
    """Say what is wrong; empty: nothing is. Raises Missing."""
    return next(filter(None, (_fault(*group) for group in material.sources(check))), "")


def _fault(check: Check, sources: Sequence[Source]) -> str:
    least, most = (0, 0) if check.kind == "absent" else (check.least, check.most)
    found = [(source, at) for source in sources for at in _places(check, source.text)]
    count = len(found)
    lost = sum(source.lost for source in sources)
    if least <= count and (most is None or count <= most):
        if lost and most is not None:
            return (
                f"{lost} bytes of {names_of(sources)} were left out, so nobody can say that it is "
                "not in there"
            )
        return ""
    where = names_of(sources)
    if not count:
        lines = most_like(check.what, sources) if check.kind == "contains" else last_lines(sources)
        what = f"not found in {where}" if lines else f"not found: {where} is empty"
    else:
        lines = first_lines([_line_at(source.text, at) for source, at in found])
        what = f"found {times(count)} in {where}"
    if lost:
        what += f", of which {lost} bytes were left out"
    return f"{what}:{quote(lines)}" if lines else what


def _places(check: Check, text: str) -> Iterator[int]:
    if check.kind == "regex":
        for number, found in enumerate(re.finditer(check.what, text, re.MULTILINE)):
            if number >= _MOST_MATCHES:
                return
            yield found.start()
        return
    at = text.find(check.what)
    while at >= 0:
        yield at
        at = text.find(check.what, at + max(len(check.what), 1))


def _line_at(text: str, at: int) -> str:
    begin = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    return text[begin : end if end >= 0 else len(text)]
