"""Values that a pattern finds."""

from __future__ import annotations

import re

from rankwise.checks.limits import TooLong, at_most
from rankwise.metrics.collecting import Collector
from rankwise.metrics.contract import Reading
from rankwise.metrics.lines import number_in, plain
from rankwise.plan import Metric

_OURS = ("value", "metric", "unit")


def read(wish: Metric, text: str) -> Reading:
    """Read every match; `^` and `$` are those of lines."""
    found = Collector(wish)
    try:
        pattern = re.compile(wish.pattern, re.MULTILINE)
        if not pattern.groups:
            raise re.error("it has no group for the value")
        with at_most(wish.seconds):
            for match in pattern.finditer(text):
                _add(found, wish, match)
    except re.error as error:
        found.fault(f"the pattern {wish.pattern!r} cannot be used: {error}")
    except TooLong as error:
        found.fault(f"the pattern {wish.pattern!r}: {error}")
    return found.reading()


def _add(found: Collector, wish: Metric, match: re.Match[str]) -> None:
    groups = {name: plain(given) for name, given in match.groupdict().items() if given}
    # Without a group of that name, the first one is the value.
    groups.setdefault("value", plain(match[1] or ""))
    name = groups.get("metric") or wish.name or "value"
    value = number_in(groups["value"].strip())
    if value is None:
        found.fault(f"the value of {name} is {groups['value'][:40]!r}, which is no number")
        return
    point = {name: _place(given) for name, given in groups.items() if name not in _OURS}
    found.add(name, value, groups.get("unit", ""), point=point)


def _place(given: str) -> int | str:
    return int(given) if given.isascii() and given.isdigit() and len(given) < 19 else given
