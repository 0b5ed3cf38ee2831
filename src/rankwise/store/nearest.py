"""Names that a person may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

_FEW = 3


def name_nearest(text: str, names: Sequence[str]) -> str:
    """Say which names are most like a wrong one, or else which come first."""
    if close := difflib.get_close_matches(text, names, n=_FEW):
        return f"Did you mean {' or '.join(close)}?"
    some = [*names[:_FEW], *["…"] * (len(names) > _FEW)]
    return f"There is {', '.join(some)}."
