"""Reports of ReFrame: the performance of each test case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rankwise.metrics.collecting import Collector
from rankwise.metrics.contract import Reading
from rankwise.metrics.parsers.json_text import load, mapping, mappings, number
from rankwise.plan import Metric

# In `perfvalues`: the value, its reference, lower and upper limit, the unit.
_UNIT = 4


def read(wish: Metric, text: str) -> Reading:
    """Read what `--report-file` has written."""
    found = Collector(wish)
    try:
        shown = mapping(load(text))
    except ValueError as error:
        found.fault(f"{wish.on} is no report of ReFrame: {error}")
        return found.reading()
    for run in mappings(shown.get("runs")):
        for case in mappings(run.get("testcases")):
            _add(found, case)
    return found.reading()


def _add(found: Collector, case: dict[str, Any]) -> None:
    test = str(case.get("display_name") or case.get("name") or "")
    point = {name: str(case[name]) for name in ("environ",) if case.get(name)}
    for where, name, value, unit in _values(case):
        metric = f"{test}.{name}" if test else name
        if value is None:
            found.fault(f"{metric} has no value")
        else:
            found.add(metric, value, unit, point={"system": where, **point} if where else point)


def _values(case: dict[str, Any]) -> Iterator[tuple[str, str, float | None, str]]:
    """Give where something was measured, what, its value and its unit."""
    for key, given in mapping(case.get("perfvalues")).items():
        where, _, name = key.rpartition(":")
        if isinstance(given, list) and len(given) > _UNIT:
            yield where, name, number(given[0]), str(given[_UNIT] or "")
    # Reports of ReFrame 3 and earlier 4.
    for variable in mappings(case.get("perfvars")):
        yield "", str(variable.get("name")), number(variable.get("value")), _unit(variable)


def _unit(variable: dict[str, Any]) -> str:
    return str(variable.get("unit") or "")
