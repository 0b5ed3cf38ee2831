"""JSON in an output, from whoever wrote it."""

from __future__ import annotations

import json
import math
from typing import Any

from rankwise.store.samples import Better


def load(text: str) -> Any:
    """Read JSON; raises ValueError for whatever is none, or too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is too deep") from None


def number(value: Any) -> float | None:
    """Give a number, which may be one that is no value; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def mappings(value: Any) -> list[dict[str, Any]]:
    """Give the objects of a list, if it is one."""
    given = value if isinstance(value, list) else []
    return [each for each in given if isinstance(each, dict)]


def mapping(value: Any) -> dict[str, Any]:
    """Give an object, if it is one."""
    return value if isinstance(value, dict) else {}


def point(value: Any) -> dict[str, float | int | str]:
    """Give where on its axes something was taken: what is no number or text is told as text."""
    return {
        str(name): each if isinstance(each, int | float | str) else json.dumps(each)
        for name, each in mapping(value).items()
    }


def better(value: Any) -> Better:
    """Give which direction is the good one, if that is said."""
    return "lower" if value == "lower" else "higher" if value == "higher" else ""
