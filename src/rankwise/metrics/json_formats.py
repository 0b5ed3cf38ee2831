"""Measurements in JSON: lines, pytest-benchmark, ReFrame."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from rankwise.metrics.base import Collector, ParsedMetrics, lines_of
from rankwise.plan import Metric
from rankwise.store.samples import Better


def load(text: str) -> Any:
    """Read JSON; raises ValueError for whatever is none, or too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is too deep") from None


def number(value: Any) -> float | None:
    """Return a number, which may be one that is no value; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def mappings(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list, if it is one."""
    given = value if isinstance(value, list) else []
    return [each for each in given if isinstance(each, dict)]


def mapping(value: Any) -> dict[str, Any]:
    """Return an object, if it is one."""
    return value if isinstance(value, dict) else {}


def point(value: Any) -> dict[str, float | int | str]:
    """Return where on its axes something was taken: what is no number or text is told as text."""
    return {
        str(name): each if isinstance(each, int | float | str) else json.dumps(each)
        for name, each in mapping(value).items()
    }


def better(value: Any) -> Better:
    """Return which direction is the good one, if that is said."""
    return "lower" if value == "lower" else "higher" if value == "higher" else ""


def read_json_lines(wish: Metric, text: str) -> ParsedMetrics:
    """Read the lines that are objects; a log may have others between them."""
    found = Collector(wish)
    for line in lines_of(text):
        stripped = line.strip()
        if stripped.startswith("{"):
            # A line that a log has cut, or that is no JSON after all, is one of the others.
            try:
                _add_line(found, wish, mapping(load(stripped)))
            except ValueError:
                continue
    return found.parsed()


def _add_line(found: Collector, wish: Metric, shown: dict[str, Any]) -> None:
    at = {name: shown[name] for name in wish.axes if name in shown}
    if isinstance(name := shown.get("metric"), str):
        add_mapping(found, name, {**shown, "point": {**mapping(shown.get("point")), **at}})
        return
    for name in wish.only:
        if name in shown:
            add_mapping(found, name, {"value": shown[name], "point": at})


def add_mapping(found: Collector, name: str, shown: dict[str, Any]) -> None:
    """Take a value with its unit, its direction and its place on axes, as far as they are said."""
    value = number(shown.get("value"))
    if value is None:
        found.fault(f"the value of {name} is {shown.get('value')!r}, which is no number")
    else:
        unit, where = str(shown.get("unit", "")), point(shown.get("point"))
        found.add(name, value, unit, better=better(shown.get("better")), point=where)


def read_pytest_benchmark(wish: Metric, text: str) -> ParsedMetrics:
    """Read what `--benchmark-json` has written; rounds are there with `--benchmark-save-data`."""
    found = Collector(wish)
    shown = _whole(found, text, f"{wish.on} is no JSON of pytest-benchmark")
    for benchmark in mappings(shown.get("benchmarks")):
        _add_benchmark(found, benchmark)
    return found.parsed()


def _whole(found: Collector, text: str, otherwise: str) -> dict[str, Any]:
    """Read a text that is one object; what is none is a fault."""
    try:
        return mapping(load(text))
    except ValueError as error:
        found.fault(f"{otherwise}: {error}")
        return {}


def _add_benchmark(found: Collector, benchmark: dict[str, Any]) -> None:
    name = str(benchmark.get("name", "")).partition("[")[0]
    statistics = mapping(benchmark.get("stats"))
    median = number(statistics.get("median"))
    if not name or median is None:
        found.fault(f"the benchmark {name or '(without a name)'} has no median")
        return
    rounds = statistics.get("data")
    raw = [number(each) for each in rounds] if isinstance(rounds, list) else []
    found.add(
        name,
        median,
        # It is what every timer gives.
        "s",
        point=point(benchmark.get("params")),
        raw=tuple(each for each in raw if each is not None),
    )


# In `perfvalues`: the value, its reference, lower and upper limit, the unit.
_UNIT = 4


def read_reframe(wish: Metric, text: str) -> ParsedMetrics:
    """Read what `--report-file` has written."""
    found = Collector(wish)
    shown = _whole(found, text, f"{wish.on} is no report of ReFrame")
    for run in mappings(shown.get("runs")):
        for case in mappings(run.get("testcases")):
            _add_case(found, case)
    return found.parsed()


def _add_case(found: Collector, case: dict[str, Any]) -> None:
    test = str(case.get("display_name") or case.get("name") or "")
    point = {name: str(case[name]) for name in ("environ",) if case.get(name)}
    for where, name, value, unit in _values(case):
        metric = f"{test}.{name}" if test else name
        if value is None:
            found.fault(f"{metric} has no value")
        else:
            found.add(metric, value, unit, point={"system": where, **point} if where else point)


def _values(case: dict[str, Any]) -> Iterator[tuple[str, str, float | None, str]]:
    """Return where something was measured, what, its value and its unit."""
    for key, given in mapping(case.get("perfvalues")).items():
        where, _, name = key.rpartition(":")
        if isinstance(given, list) and len(given) > _UNIT:
            yield where, name, number(given[0]), str(given[_UNIT] or "")
    # Reports of ReFrame 3 and earlier 4.
    for variable in mappings(case.get("perfvars")):
        unit = str(variable.get("unit") or "")
        yield "", str(variable.get("name")), number(variable.get("value")), unit
