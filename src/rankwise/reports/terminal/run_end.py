"""The end of a run: verdict, failures, tests, measurements."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rankwise.records import INSTANCES
from rankwise.reports import failures
from rankwise.reports.failures import CaseResult, FailureExplanation, FailureGroup, RunExplanation
from rankwise.reports.palette import STYLES
from rankwise.reports.terminal import console as consoles
from rankwise.reports.terminal.console import height_of, room_on, show_next, show_rows, styled
from rankwise.reports.terminal.status import count_words
from rankwise.safe_text import clean, clip
from rankwise.store import RunRow, State
from rankwise.store.rows import RED
from rankwise.wording import counted, duration, fold, label, listed, short_path

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.text import Text

    from rankwise.plan import Task
    from rankwise.reports.measurements import Measure
    from rankwise.store import Store

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


def show_in_brief(console: Console, explained: failures.RunExplanation, *, room: int) -> None:
    """Show why a run is not green in so many lines.

    What failed first is quoted as far as there is room; of the others there is a line each, and
    then only their number.
    """
    others = len(explained.first) + len(explained.others) - 1
    # A line for each that is not quoted, and one that counts the rest.
    kept = min(others, _MOST_HEADINGS) + 1 if others > 0 else 0
    quoted, left = show_first(console, explained, room=room, kept=kept)
    waiting: list[FailureExplanation | FailureGroup] = list(explained.first[quoted:])
    waiting += explained.others
    if waiting:
        _show_headings(console, waiting, max(2, left - 1))
        console.print()


def show_first(
    console: Console, explained: failures.RunExplanation, *, room: int, kept: int = 0
) -> tuple[int, int]:
    """Quote what failed first, as far as there is room beside the lines that are to be kept.

    Return how many there was room for, and how many lines are left.
    """
    left = room
    for number, one in enumerate(explained.first):
        # As much as there is room for; if it is a heading at most, the others have none either.
        for lines in _LINES_QUOTED:
            show = partial(show_explanation, console, _shortened(one, lines))
            if (height := height_of(console, show)) <= left - kept - 1:
                break
        else:
            return number, left
        left -= height + 1
        show()
        console.print()
    return len(explained.first), left


def _shortened(one: FailureExplanation, lines: int) -> FailureExplanation:
    said = one.reason.splitlines()
    reason = "\n".join([*said[:lines], "  ..."]) if len(said) > lines + 1 else one.reason
    quotes = (replace(quote, lines=quote.lines[-lines:]) for quote in one.quotes[:lines])
    return replace(one, reason=reason, quotes=tuple(quotes))


def _show_headings(
    console: Console, waiting: Sequence[FailureExplanation | FailureGroup], room: int
) -> None:
    """Show a line each, and how many there is no line for."""
    named = len(waiting) if len(waiting) <= room else room - 1
    for one in waiting[:named]:
        # The first line only: `explain` has the rest.
        text = _group_heading(one) if isinstance(one, FailureGroup) else _heading(one)
        line = text.split("\n")[0]
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
    left = waiting[named:]
    if count := sum(len(one.tasks) if isinstance(one, FailureGroup) else 1 for one in left):
        console.print(f"... and {count:,} more")


def show_explanation(console: Console, one: FailureExplanation, *, is_brief: bool = True) -> None:
    """Show why a task is not green; in brief, without what only matters when one looks closer."""
    for line in _heading(one).split("\n"):
        # A reason of several lines quotes what processes wrote, as they wrote it.
        console.print(line, soft_wrap=line.plain.lstrip().startswith("|"))
    if not is_brief:
        _show_facts(console, one)
    for quote in one.quotes:
        _show_quote(console, quote, is_of_culprit=quote.process == one.culprit)
    if one.fates and not is_brief:
        console.print("  The others:" if one.culprit else "  The processes:")
        for fate, names in one.fates:
            console.print(f"    {fold(names)}: {fate}", soft_wrap=True)


def _heading(one: FailureExplanation) -> Text:
    heading = styled((one.task, "bold"), " ", (str(one.state), STYLES[one.state]))
    if one.reason:
        heading.append(f": {one.reason}")
    if one.attempts > 1:
        heading.append(f" (attempt {one.attempts})")
    return heading


def _show_facts(console: Console, one: FailureExplanation) -> None:
    after = f", after {duration(one.seconds)}" if one.seconds is not None else ""
    facts = {
        "first to fail": f"{label(one.culprit)}{after}" if one.culprit else "",
        "command": one.command,
        "folder": short_path(one.folder),
        "log": short_path(str(one.log or "")),
    }
    given = {name: value for name, value in facts.items() if value}
    width = max(map(len, given), default=0)
    for name, value in given.items():
        console.print(f"  {name:{width}}  {value}", soft_wrap=True)


def _show_quote(console: Console, quote: failures.Quote, *, is_of_culprit: bool) -> None:
    # Of a single line, the name is before it.
    bar = f"{label(quote.process)} | "
    if len(quote.lines) > 1 or is_of_culprit:
        console.print(f"  {label(quote.process)} wrote last:")
        bar = "| "
    for line in quote.lines:
        text = styled("  ", (bar, "red" if is_of_culprit else "dim"))
        text.append(clean(line).expandtabs())
        console.print(text, soft_wrap=True)


def _group_heading(group: FailureGroup) -> Text:
    names = listed(group.tasks, most=_MOST_NAMES)
    text = styled((names, "bold"), " ", (str(group.state), STYLES[group.state]))
    return text.append(f": {group.reason}" if group.reason else "")


def show_measures(console: Console, measures: Sequence[Measure], *, room: int) -> None:
    """Show the middle of each, and between what it varies; more are for a report, or a program."""
    console.print()
    is_compared = any(one.change is not None for one in measures)
    lines = max(1, room - 1 - is_compared)
    most = lines if len(measures) <= lines else lines - 1
    # What is the same for all tells nothing apart, and takes the room of what does.
    pairs = [set(one.parameters.items()) for one in measures]
    same = set.intersection(*pairs) if len(pairs) > 1 else set()
    rows = []
    for one in measures[:most]:
        told = [pair for pair in one.parameters.items() if pair[1] and pair not in same]
        rows.append(
            [
                (clean(one.metric), "bold"),
                (clean(" ".join(map("=".join, told))), ""),
                (f"{one.now.middle:.4g} {one.unit}", "cyan"),
                (f"{one.now.low:.4g} - {one.now.high:.4g}", "dim"),
                ("" if one.change is None else f"{one.change:+.0%}", ""),
            ]
        )
    show_rows(console, rows, is_cut=True)
    if left := len(measures) - len(rows):
        console.print(f"  ... and {left:,} more")
    if is_compared:
        console.print("  Changes are since the run before.", style="dim")


_MOST_TASKS_WITH_NOTES = 3
# Of a suite, what fails is looked at; `plan` has the rest.
_SUITE, _MATRIX = "Suite", "Matrix"
_MOST_TESTS_EXPLAINED = 10
# A log with more of them is not easier to read.
_MOST_SECTIONS = 50
_LINES_IN_SECTIONS = 100
LINES_OF_END = 5
"""An empty line, how it ended, the counts, where the logs are, and what is next."""


def show_start(console: Console, run: RunRow, tasks: Sequence[Task], *, is_again: bool) -> None:
    """Say what starts, and what people must know about it."""
    verb = "resumes" if is_again else "starts"
    text = styled((run.id, "bold"), f" {verb}: {run.kind}, {counted(len(tasks), 'task')}")
    console.print(text)
    consoles.show_notices(console, run.notices)
    if len(tasks) <= _MOST_TASKS_WITH_NOTES and run.kind != _SUITE:
        for task in tasks:
            for note in task.notes:
                console.print(styled((f"{task.key}: {note}", "dim")))


def show_last(store: Store, run: RunRow, console: Console, sections: consoles.Sections) -> None:
    """Show how a run ended and why, in one screen; on a CI that folds, all that failed above it."""
    counts = store.counts(run.id)
    if sections.are_folded and sum(counts.values()) > 1:
        # Above the rest: a log is read from its end, where the verdict is.
        _show_failed(store, run, console, sections)
    with sections.inert():
        _show_provided(store, run, console)
        if run.kind == _SUITE:
            show_suite_end(
                console,
                run,
                cases=failures.results_of(store, run.id),
                repeated=failures.repeated_of(store, run.id),
                explained=failures.explain_run(store, run.id, most=_MOST_TESTS_EXPLAINED, lines=10),
                folder=store.run_folder(run.id),
            )
        else:
            _show_other_end(store, run, console, counts)


def _show_provided(store: Store, run: RunRow, console: Console) -> None:
    """Say what a provider has made and measured, a line each."""
    if (store.folder / "runs" / run.id / INSTANCES).exists():
        # Late: most runs make no instances.
        from rankwise.reports.model import provided_in

        console.print()
        for name, value in provided_in(store, run.id):
            console.print(f"  {clean(name)}: {value}", markup=False)


def _show_failed(store: Store, run: RunRow, console: Console, sections: consoles.Sections) -> None:
    """Put all that is known of each task that failed in a section of its own."""
    console.print()
    for one in failures.explain_run(
        store, run.id, most=_MOST_SECTIONS, lines=_LINES_IN_SECTIONS
    ).first:
        reason = f": {one.reason.partition(chr(10))[0]}" if one.reason else ""
        with sections.section(f"{one.task} {one.state}{reason}"):
            show_explanation(console, one, is_brief=False)


def _show_other_end(
    store: Store, run: RunRow, console: Console, counts: Mapping[State, int]
) -> None:
    is_red = any(counts[state] for state in RED)
    explained = (
        failures.explain_run(store, run.id, lines=10)
        if is_red
        else RunExplanation(first=(), others=())
    )
    measures = _measures(store, run)
    room = room_on(console) - LINES_OF_END
    # What is shown above it leaves as much for what has failed.
    above = room // 2 if is_red else room
    for show in _views(store, run, measures):
        room -= height_of(console, partial(show, console, room=above))
        show(console, room=above)
    console.print()
    show_in_brief(console, explained, room=room)
    show_verdict(console, run)
    is_large = sum(counts.values()) > 1
    if is_large:
        console.print("  ", count_words(counts), sep="")
    steps = {"logs": short_path(str(store.run_folder(run.id)))} if is_red else {}
    steps |= next_step(run, is_red=is_red, is_large=is_large, has_measured=bool(measures))
    show_next(console, steps)


def _views(store: Store, run: RunRow, measures: Sequence[Measure]) -> Iterator[Callable[..., None]]:
    """Return what shows the table of a matrix, and what was measured, in so many lines."""
    if run.kind == _MATRIX:
        # Late: most runs are no matrix.
        from rankwise.reports.matrix import matrix_of
        from rankwise.reports.terminal.matrix import show_matrix_in_brief

        if (matrix := matrix_of(store, run)) is not None:
            yield partial(show_matrix_in_brief, matrix=matrix)
    if measures:
        yield partial(show_measures, measures=measures)


def _measures(store: Store, run: RunRow) -> Sequence[Measure]:
    if not store.has_samples(run.id):
        return ()
    # Late: most runs measure nothing.
    from rankwise.reports.measurements import measures_of, run_before

    return measures_of(store, run.id, run.name, before=run_before(store, run), tasks={})


def show_verdict(console: Console, run: RunRow) -> None:
    """Say how a run ended, in one line."""
    seconds = failures.seconds_of(run)
    took = f" after {duration(seconds)}" if seconds is not None else ""
    text = styled((run.id, "bold"), " ", (str(run.state), STYLES[run.state]), took)
    if run.exit_code:
        text.append(f", exit code {run.exit_code}")
    console.print(text)
    if run.reason:
        console.print(f"  {run.reason}", markup=False)


def next_step(
    run: RunRow, *, is_red: bool, is_large: bool, has_measured: bool = False
) -> dict[str, str]:
    """Return the one command that most people want next; it stands last."""
    if is_red:
        return {"more": f"rankwise explain {run.id}"}
    if not (has_measured or is_large):
        return {"logs": f"rankwise logs {run.id}"}
    # Plots of what was measured are in the page only.
    page = " --html report.html" if has_measured else ""
    return {"more": f"rankwise report {run.id}{page}"}


def show_left(console: Console, run: str) -> None:
    """Say what becomes of a run whose processes were left to their runners."""
    console.print(f"{run} is detached: running tasks continue, and nothing more starts.")
    show_next(
        console,
        {
            "to look at it": f"rankwise status {run}",
            "to end it": f"rankwise cancel {run}",
            "to go on": f"rankwise resume {run}",
        },
    )


# Of more tests than this, or fewer in a low window, only those are in the table that are not green.
_MOST_ROWS = 8
_MOST_FLAKY = 3
_LONGEST_REASON = 120


def show_suite_end(
    console: Console,
    run: RunRow,
    *,
    cases: Sequence[CaseResult],
    repeated: Sequence[failures.Repeated],
    explained: RunExplanation,
    folder: Path,
) -> None:
    """Say how a suite ended, why, and where to look."""
    console.print()
    # What failed first is the cause more often than what failed last.
    order = [one.task for one in explained.first]
    red = [case for case in cases if not case.state.is_green]
    red.sort(key=lambda one: order.index(one.task) if one.task in order else len(order))
    flaky = [one for one in repeated if one.is_flaky]
    not_run = [case for case in red if case.state is State.NOT_RUN]
    # One more than other ends have: how to run again what is not green.
    room = room_on(console) - LINES_OF_END - 1 - min(len(flaky), _MOST_FLAKY + 1) - bool(not_run)
    # Where not all are in the table, there is more room for what the first of them wrote.
    lines_each = 2 if consoles.is_narrow(console) else 1
    most = min(_MOST_ROWS, room // 2 // lines_each)
    rows = cases if len(cases) <= most else red
    most = most if rows is cases else max(1, room // 3 // lines_each)
    table = partial(_show_table, console, rows, most)
    show_first(console, explained, room=room - height_of(console, table) - 1)
    table()
    console.print()
    _show_flaky(console, flaky)
    show_verdict(console, run)
    console.print("  ", count_words(Counter(case.state for case in cases), "test"), sep="")
    if not_run:
        why = listed(list(dict.fromkeys(case.headline for case in not_run)), most=3)
        who = counted(len(not_run), "test")
        console.print(f"  {who} did not run, which the suite requires: {why}")
    steps = {}
    if explained:
        steps["logs"] = short_path(str(folder))
        steps["again"] = shlex.join(
            ["rankwise", "run", *map(short_path, run.documents), "--failed"]
        )
    steps |= next_step(run, is_red=bool(explained), is_large=len(cases) > 1)
    show_next(console, steps)


def _show_table(console: Console, rows: Sequence[CaseResult], most: int) -> None:
    show_rows(console, [_cells(case) for case in rows[:most]], is_cut=True)
    if len(rows) > most:
        console.print(f"  ... and {len(rows) - most:,} more")


def _show_flaky(console: Console, flaky: Sequence[failures.Repeated]) -> None:
    for one in flaky[:_MOST_FLAKY]:
        line = f"{one.name} is flaky: it passed {one.passed} of {one.times} times"
        console.print(styled((line, "yellow")))
    if len(flaky) > _MOST_FLAKY:
        console.print(f"... and {len(flaky) - _MOST_FLAKY:,} more are flaky")


# However little it was.
_ALWAYS_TIMED = (State.PASSED, State.FAILED)


def _cells(case: CaseResult) -> list[consoles.Cell]:
    return [
        (clean(case.name), "bold"),
        (str(case.state), STYLES[case.state]),
        (duration(case.seconds) if case.seconds or case.state in _ALWAYS_TIMED else "", ""),
        (clip(clean(case.headline), _LONGEST_REASON), ""),
    ]
