"""Lines of JSON, each an object.

Either `{"metric": "loss", "value": 0.3, "unit": "1"}`, with `better` and `point` if there are any;
or any object with numbers, such as `{"step": 10, "loss": 0.3}`, if `only` says which are metrics.
"""

from __future__ import annotations

from typing import Any

from rankwise.metrics.collecting import Collector
from rankwise.metrics.contract import Reading
from rankwise.metrics.lines import lines_of
from rankwise.metrics.parsers.json_text import better, load, mapping, number, point
from rankwise.plan import Metric


def read(wish: Metric, text: str) -> Reading:
    """Read the lines that are objects; a log may have others between them."""
    found = Collector(wish)
    for line in lines_of(text):
        stripped = line.strip()
        if stripped.startswith("{"):
            try:
                _add(found, wish, mapping(load(stripped)))
            except ValueError:
                continue
    return found.reading()


def _add(found: Collector, wish: Metric, shown: dict[str, Any]) -> None:
    at = {name: shown[name] for name in wish.axes if name in shown}
    if isinstance(name := shown.get("metric"), str):
        value = number(shown.get("value"))
        if value is None:
            found.fault(f"the value of {name} is {shown.get('value')!r}, which is no number")
            return
        unit, where = str(shown.get("unit", "")), {**mapping(shown.get("point")), **at}
        found.add(name, value, unit, better=better(shown.get("better")), point=point(where))
        return
    for name in wish.only:
        value = number(shown.get(name))
        if value is not None:
            found.add(name, value, "", point=point(at))
