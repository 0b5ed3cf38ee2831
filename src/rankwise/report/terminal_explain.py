"""Explanations on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise.report.explanation import Explanation, Group, RunExplanation
from rankwise.report.terminal import STATE_STYLES, clean
from rankwise.report.words import counted, duration, fold, label, listed, short_path

if TYPE_CHECKING:
    from rich.console import Console

_MOST_NAMES = 3
_MOST_GROUPS = 10


def show_run_explanation(console: Console, explained: RunExplanation, *, is_brief: bool) -> None:
    """Show why a run is not green."""
    for one in explained.first:
        show_explanation(console, one, is_brief=is_brief)
        console.print()
    for group in explained.others[:_MOST_GROUPS]:
        _show_group(console, group)
    if left := explained.others[_MOST_GROUPS:]:
        count = sum(len(group.tasks) for group in left)
        console.print(f"{counted(count, 'more task')} for {counted(len(left), 'more reason')}")
    if explained.others:
        console.print()


def show_explanation(console: Console, one: Explanation, *, is_brief: bool) -> None:
    """Show why a task is not green; in brief, without what only matters when one looks closer."""
    from rich.text import Text

    heading = Text.assemble((one.task, "bold"), " ", (str(one.state), STATE_STYLES[one.state]))
    if one.reason:
        heading.append(f": {one.reason}")
    if one.attempts > 1:
        heading.append(f" (attempt {one.attempts})")
    # A reason of several lines quotes what processes wrote, as they wrote it.
    console.print(heading, soft_wrap="\n" in one.reason)
    if not is_brief:
        _show_facts(console, one)
    for quote in one.quotes:
        _show_quote(console, quote.process, quote.lines, is_of_culprit=quote.process == one.culprit)
    if one.fates and not is_brief:
        console.print("  The others:" if one.culprit else "  The processes:")
        for fate, names in one.fates:
            console.print(f"    {fold(names)}: {fate}", soft_wrap=True)


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


def _show_group(console: Console, group: Group) -> None:
    from rich.text import Text

    names = listed(group.tasks, most=_MOST_NAMES)
    text = Text.assemble((names, "bold"), " ", (str(group.state), STATE_STYLES[group.state]))
    console.print(text.append(f": {group.reason}" if group.reason else ""))
