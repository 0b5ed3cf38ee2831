"""Measurements found by a pattern or a function of the user's.

The function is called in a process of its own. It may have any of the parameters `output` (the
text) and `folder` (where it is called). It gives a mapping of names to numbers, or a list of
mappings as lines of JSON have them."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from rankwise.checks.call_function import call
from rankwise.checks.sources import TooLong, at_most
from rankwise.metrics.base import Collector, ParsedMetrics, number_in, plain
from rankwise.metrics.json_formats import add_mapping, mappings, number
from rankwise.plan import Metric

_LAST_CHARACTERS = 500


def read_python(wish: Metric, text: str) -> ParsedMetrics:
    """Call the function and read what it gives."""
    found = Collector(wish)
    try:
        answer = _call(wish, text)
    except ValueError as error:
        found.fault(f"{wish.function}: {error}")
        return found.parsed()
    if isinstance(answer, dict):
        answer = [{"metric": name, "value": value} for name, value in answer.items()]
    for each in mappings(answer):
        name, value = str(each.get("metric", wish.name)), each.get("value")
        if number(value) is None:
            found.fault(f"{wish.function} gave {value!r} for {name}, which is no number")
        else:
            add_mapping(found, name, each)
    return found.parsed()


def _call(wish: Metric, text: str) -> Any:
    with tempfile.TemporaryDirectory(prefix="rankwise-metrics-") as folder:
        output = Path(folder) / "output"
        output.write_text(text, "utf-8", "surrogateescape")
        given = {"output": [str(output)], "folder": str(Path.cwd())}
        done = call(wish.function, given, work=None, seconds=wish.seconds, is_check=False)
    if done.exit_code is None:
        raise ValueError(f"it took longer than {wish.seconds:g} s")
    if done.told is None:
        said = done.printed.strip()[-_LAST_CHARACTERS:]
        raise ValueError(f"its process ended with {done.exit_code}: {said}")
    if fault := done.told.get("missing") or done.told.get("fault"):
        raise ValueError(str(fault))
    return done.told.get("result")


_OURS = ("value", "metric", "unit")


def read_regex(wish: Metric, text: str) -> ParsedMetrics:
    """Read every match; `^` and `$` are those of lines."""
    found = Collector(wish)
    try:
        pattern = re.compile(wish.pattern, re.MULTILINE)
        # The whole match would be a value only by chance.
        if not pattern.groups:
            raise re.error("it has no group for the value")
        with at_most(wish.seconds):
            for match in pattern.finditer(text):
                _add(found, wish, match)
    except re.error as error:
        found.fault(f"the pattern {wish.pattern!r} cannot be used: {error}")
    except TooLong as error:
        found.fault(f"the pattern {wish.pattern!r}: {error}")
    return found.parsed()


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
