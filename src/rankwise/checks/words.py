"""How checks are named, and how what they have looked at is quoted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

from rankwise.checks.material import STREAMS, Source
from rankwise.plan import Check

_MOST_LINES = 5
_LONGEST_LINE = 200
# Among so many of the last lines, one is looked for that is like what was wanted.
_MOST_COMPARED = 500
_COMPARISONS = {
    "equals": "equals",
    "less_than": "is less than",
    "greater_than": "is greater than",
    "approx": "is about",
}


def describe(check: Check) -> str:
    """Say what a check wants: `regex 'rank (\\d+) of 4', 4 times on stdout`."""
    match check.kind:
        case "exit_code":
            return f"exit code {' or '.join(map(str, check.codes))}"
        case "exists":
            return f"exists {check.what}{_of_rank(check)}"
        case "python":
            return f"python {Path(check.what).name}"
        case "json":
            value = repr(check.value) if isinstance(check.value, str) else _json(check.value)
            wanted = f" {_COMPARISONS[check.compare]} {value}" if check.compare else " is there"
            return f"json {check.what}{wanted}{_where(check)}"
    wanted = shown(check.what)
    return f"{check.kind} '{wanted}'{_how_often(check)}{_where(check)}"


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def _how_often(check: Check) -> str:
    if check.kind == "absent":
        return ""
    least, most = check.least, check.most
    if most is None:
        return f", at least {times(least)}" if least != 1 else ""
    if least == most:
        return f", {times(least)}"
    return f", {least} to {most} times" if least else f", at most {times(most)}"


def times(count: int) -> str:
    """Say how often."""
    return "once" if count == 1 else f"{count} times"


def _where(check: Check) -> str:
    if check.on not in STREAMS:
        return f" in {check.on}{_of_rank(check)}"
    return ("" if check.on == "output" else f" on {check.on}") + _of_rank(check)


def _of_rank(check: Check) -> str:
    if not check.rank:
        return ""
    return " on every rank" if check.rank == "all" else f" on rank {check.rank}"


def shown(text: str) -> str:
    """Make a text fit for one line of any terminal."""
    safe = harmless(text[: _LONGEST_LINE + 1].expandtabs(4).replace("\n", "\\n"))
    return safe if len(safe) <= _LONGEST_LINE else safe[:_LONGEST_LINE] + "…"


def harmless(text: str) -> str:
    """Show what a terminal would obey, and leave the ends of lines."""
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


def quote(lines: Iterable[str]) -> str:
    """Put lines under a message."""
    return "".join(f"\n  | {shown(line)}" for line in lines)


def last_lines(sources: Sequence[Source]) -> list[str]:
    """Give the last lines that say something, of the first source that has any."""
    for source in sources:
        lines = [line for line in source.text.splitlines() if line.strip()]
        if lines:
            return lines[-_MOST_LINES:]
    return []


def most_like(wanted: str, sources: Sequence[Source]) -> list[str]:
    """Give the lines that are most like what was wanted; where none is, the last ones."""
    lines = [line for source in sources for line in source.text.splitlines()[-_MOST_COMPARED:]]
    short = list(dict.fromkeys(line[:_LONGEST_LINE] for line in lines if line.strip()))
    near = difflib.get_close_matches(wanted[:_LONGEST_LINE], short[-_MOST_COMPARED:], n=3)
    return near or last_lines(sources)


def first_lines(lines: Sequence[str]) -> list[str]:
    """Give the first few, and say how many more there are."""
    more = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], *([f"… and {more} more"] if more > 0 else [])]


def names_of(sources: Sequence[Source]) -> str:
    """Name what was looked at."""
    if len(sources) > 2:
        return f"{sources[0].name} and {len(sources) - 1} more logs"
    return " and ".join(source.name for source in sources)
