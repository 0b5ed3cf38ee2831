"""Checks of values in JSON, in a file or in what was written."""

from __future__ import annotations

import json
import math
from typing import Any

from rankwise.checks import json_path
from rankwise.checks.material import STREAMS, Material, Missing, Source
from rankwise.checks.words import last_lines, quote, shown
from rankwise.plan import Check

_CLOSE = 1e-6
_LONGEST_VALUE = 80


def fault_in_values(check: Check, material: Material) -> str:
    """Say what is wrong; empty: nothing is. Raises Missing."""
    for wanted, group in material.sources(check):
        data, where = _data(check, group)
        found = json_path.find(data, wanted.what)
        if not found:
            return f"{wanted.what} leads nowhere in {where}, which has {_outline(data)}"
        for value in found:
            if not _is_right(check, value):
                return f"it is {_short(value)} in {where}"
    return ""


def _data(check: Check, sources: list[Source]) -> tuple[Any, str]:
    """Give the data, and where it is from; of what was written, the last line that is JSON."""
    for source in sources:
        texts = [source.text]
        if check.on in STREAMS:
            texts += [line for line in reversed(source.text.splitlines()) if line[:1] in "{["]
        for text in texts:
            try:
                return json.loads(text), source.name
            except (ValueError, RecursionError):
                continue
    names = ", ".join(source.name for source in sources)
    raise Missing(f"there is no JSON in {names}:{quote(last_lines(sources))}")


def _is_right(check: Check, value: Any) -> bool:
    wanted = check.value
    if not check.compare:
        return True
    if check.compare == "equals" and not (_is_number(value) and _is_number(wanted)):
        return type(value) is type(wanted) and bool(value == wanted)
    if not _is_number(value) or not isinstance(wanted, (int, float)):
        return False
    match check.compare:
        case "equals":
            return bool(value == wanted)
        case "less_than":
            return bool(value < wanted)
        case "greater_than":
            return bool(value > wanted)
    tolerance = check.tolerance
    if tolerance is None:
        return math.isclose(value, wanted, rel_tol=_CLOSE, abs_tol=_CLOSE * 1e-3)
    return bool(abs(value - wanted) <= tolerance)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return shown(text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…")


def _outline(data: Any) -> str:
    match data:
        case dict() if data:
            return shown(", ".join(map(repr, list(data)[:10])))
        case list():
            return f"a list of {len(data)}"
    return _short(data)
