"""Explanations on a terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankwise.report.explanation import Explanation, Group, RunExplanation
from rankwise.report.terminal import STATE_STYLES, clean
from rankwise.report.terminal_room import height_of
from rankwise.report.words import counted, duration, fold, label, listed, short_path

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_MOST_NAMES = 3
_MOST_GROUPS = 10
# How much is quoted where there is room, and where there is less and less.
_LINES_QUOTED = (10, 6, 3, 1)
_MOST_HEADINGS = 6


def show_run_explanation(console: Console, explained: RunExplanation) -> None:
    """Show why a run is not green, with all that matters when one looks closer."""
    for one in explained.first:
        show_explanation(console, one, is_brief=False)
        console.print()
    for group in explained.others[:_MOST_GROUPS]:
        console.print(_group_heading(group))
    if left := explained.others[_MOST_GROUPS:]:
        count = sum(len(group.tasks) for group in left)
        console.print(f"{counted(count, 'more task')} for {counted(len(left), 'more reason')}")
    if explained.others:
        console.print()


def show_in_brief(console: Console, explained: RunExplanation, *, room: int) -> None:
    """Show why a run is not green in so many lines.

    What failed first is quoted as far as there is room; of the others there is a line each, and
    then only their number.
    """
    others = len(explained.first) + len(explained.others) - 1
    # A line for each that is not quoted, and one that counts the rest.
    kept = min(others, _MOST_HEADINGS) + 1 if others > 0 else 0
    quoted, left = show_first(console, explained, room=room, kept=kept)
    waiting: list[Explanation | Group] = [*explained.first[quoted:], *explained.others]
    if waiting:
        _show_headings(console, waiting, max(2, left - 1))
        console.print()


def show_first(
    console: Console, explained: RunExplanation, *, room: int, kept: int = 0
) -> tuple[int, int]:
    """Quote what failed first, as far as there is room beside the lines that are to be kept.

    Give how many there was room for, and how many lines are left.
    """
    left = room
    for number, one in enumerate(explained.first):
        shown = _fitting(console, one, left - kept - 1)
        if shown is None:
            return number, left
        left -= _height(console, shown) + 1
        show_explanation(console, shown)
        console.print()
    return len(explained.first), left


def _fitting(console: Console, one: Explanation, room: int) -> Explanation | None:
    """Quote as much as there is room for; None: there is room for a heading at most."""
    for lines in _LINES_QUOTED:
        shorter = _shortened(one, lines)
        if _height(console, shorter) <= room:
            return shorter
    return None


def _height(console: Console, one: Explanation) -> int:
    return height_of(console, lambda: show_explanation(console, one))


def _shortened(one: Explanation, lines: int) -> Explanation:
    said = one.reason.splitlines()
    reason = "\n".join([*said[:lines], "  ..."]) if len(said) > lines + 1 else one.reason
    quotes = [
        dataclasses.replace(quote, lines=quote.lines[-lines:]) for quote in one.quotes[:lines]
    ]
    return dataclasses.replace(one, reason=reason, quotes=tuple(quotes))


def _show_headings(console: Console, waiting: Sequence[Explanation | Group], room: int) -> None:
    """Show a line each, and how many there is no line for."""
    named = len(waiting) if len(waiting) <= room else room - 1
    for one in waiting[:named]:
        text = _group_heading(one) if isinstance(one, Group) else _heading(one)
        line = text.split("\n")[0]
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
    left = waiting[named:]
    if count := sum(len(one.tasks) if isinstance(one, Group) else 1 for one in left):
        console.print(f"... and {count:,} more")


def show_explanation(console: Console, one: Explanation, *, is_brief: bool = True) -> None:
    """Show why a task is not green; in brief, without what only matters when one looks closer."""
    # A reason of several lines quotes what processes wrote, as they wrote it.
    console.print(_heading(one), soft_wrap="\n" in one.reason)
    if not is_brief:
        _show_facts(console, one)
    for quote in one.quotes:
        _show_quote(console, quote.process, quote.lines, is_of_culprit=quote.process == one.culprit)
    if one.fates and not is_brief:
        console.print("  The others:" if one.culprit else "  The processes:")
        for fate, names in one.fates:
            console.print(f"    {fold(names)}: {fate}", soft_wrap=True)


def _heading(one: Explanation) -> Text:
    from rich.text import Text

    heading = Text.assemble((one.task, "bold"), " ", (str(one.state), STATE_STYLES[one.state]))
    if one.reason:
        heading.append(f": {one.reason}")
    if one.attempts > 1:
        heading.append(f" (attempt {one.attempts})")
    return heading


def _show_facts(console: Console, one: Explanation) -> None:
    facts = {
        "first to fail": _first(one),
        "command": one.command,
        "folder": short_path(one.folder),
        "log": short_path(str(one.log or "")),
    }
    given = {name: value for name, value in facts.items() if value}
    width = max(map(len, given), default=0)
    for name, value in given.items():
        console.print(f"  {name:{width}}  {value}", soft_wrap=True)


def _first(one: Explanation) -> str:
    if not one.culprit:
        return ""
    after = f", after {duration(one.seconds)}" if one.seconds is not None else ""
    return f"{label(one.culprit)}{after}"


def _show_quote(
    console: Console, process: str, lines: tuple[str, ...], *, is_of_culprit: bool
) -> None:
    from rich.text import Text

    if len(lines) > 1 or is_of_culprit:
        console.print(f"  {label(process)} wrote last:")
    bar = "| " if len(lines) > 1 or is_of_culprit else f"{label(process)} | "
    for line in lines:
        text = Text.assemble("  ", (bar, "red" if is_of_culprit else "dim"))
        text.append(clean(line, keep_colours=False).expandtabs())
        console.print(text, soft_wrap=True)


def _group_heading(group: Group) -> Text:
    from rich.text import Text

    names = listed(group.tasks, most=_MOST_NAMES)
    text = Text.assemble((names, "bold"), " ", (str(group.state), STATE_STYLES[group.state]))
    return text.append(f": {group.reason}" if group.reason else "")
