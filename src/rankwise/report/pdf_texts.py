"""Texts for a page of paper, which nobody can scroll: a line may end even in a long name."""

from __future__ import annotations

import re

from rankwise.report.markup import fit

# It has no width: a line may end there.
_BREAK = "\u200b"
_AFTER = re.compile(r"([-_./:,=@+\\])(?=\w)")
_LONGEST_PIECE = 10
_LONGEST_WORD = 30


def breakable(text: str) -> str:
    """Make a text safe to show where there is little room for it, as in a cell of a table."""
    return _divided(_AFTER.sub(rf"\1{_BREAK}", fit(text)), _LONGEST_PIECE)


def wrapped(text: str) -> str:
    """Make a text safe to show; only what would be too long for any line is divided."""
    return _divided(fit(text), _LONGEST_WORD)


def _divided(text: str, most: int) -> str:
    solid = rf"[^\s{_BREAK}]"
    return re.sub(rf"{solid}{{{most}}}(?={solid}{{3}})", rf"\g<0>{_BREAK}", text)
