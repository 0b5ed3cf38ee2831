"""The JSON of pytest-benchmark: a metric for each benchmark, the median of its rounds."""

from __future__ import annotations

from typing import Any

from rankwise.metrics.collecting import Collector
from rankwise.metrics.contract import Reading
from rankwise.metrics.parsers.json_text import load, mapping, mappings, number, point
from rankwise.plan import Metric


def read(wish: Metric, text: str) -> Reading:
    """Read what `--benchmark-json` has written; rounds are there with `--benchmark-save-data`."""
    found = Collector(wish)
    try:
        shown = mapping(load(text))
    except ValueError as error:
        found.fault(f"{wish.on} is no JSON of pytest-benchmark: {error}")
        return found.reading()
    for benchmark in mappings(shown.get("benchmarks")):
        _add(found, benchmark)
    return found.reading()


def _add(found: Collector, benchmark: dict[str, Any]) -> None:
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
