"""Why a run is not green: who failed first, what it said last, and what became of the others."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwise.logs import last_lines
from rankwise.plan import Task, fill_in, later, show
from rankwise.records import LOGS, PROCESSES, process_folders, read_processes
from rankwise.report.tracebacks import without_starters
from rankwise.report.words import ending
from rankwise.store import AttemptRow, ProcessRow, State, Store, TaskRow

_RED = tuple(state for state in State if state.is_over and not state.is_green)
# Where nobody is to blame, so many processes are quoted.
_MOST_QUOTED = 8
# So many lines of a traceback may be left out.
_MOST_STARTERS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The last lines that a process has written."""

    process: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why one task is not green."""

    task: str
    state: State
    reason: str
    attempts: int = 0
    culprit: str = ""
    seconds: float | None = None
    """How long the culprit ran, or else the attempt."""
    command: str = ""
    folder: str = ""
    """Where the command ran."""
    log: Path | None = None
    quotes: tuple[Quote, ...] = ()
    fates: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """What became of the other processes: how they ended, and which ones did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Tasks that are not green for the same reason."""

    state: State
    reason: str
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExplanation:
    """Why a run is not green."""

    first: tuple[Explanation, ...]
    """The tasks that failed first, in detail."""
    others: tuple[Group, ...]

    def __bool__(self) -> bool:
        return bool(self.first or self.others)


def explain_run(store: Store, run: str, *, most: int = 3, lines: int = 20) -> RunExplanation:
    """Explain the tasks of a run that failed first, and name the others by their reasons."""
    rows = list(store.tasks_in(run, _RED))
    tried = sorted((row for row in rows if row.attempts), key=_end_order)[:most]
    detailed = {row.key for row in tried}
    groups: dict[tuple[State, str], list[TaskRow]] = {}
    for row in rows:
        if row.key not in detailed:
            groups.setdefault((row.state, row.reason), []).append(row)
    in_order = sorted(groups.items(), key=lambda group: min(map(_end_order, group[1])))
    return RunExplanation(
        first=tuple(explain_task(store, row, lines=lines) for row in tried),
        others=tuple(
            Group(state=state, reason=reason, tasks=tuple(row.key for row in them))
            for (state, reason), them in in_order
        ),
    )


def explain_task(store: Store, row: TaskRow, *, lines: int = 20) -> Explanation:
    """Explain what became of a task, from its last attempt."""
    attempts = store.attempts(row.run, row.key)
    if not attempts:
        return Explanation(task=row.key, state=row.state, reason=row.reason)
    attempt, task = attempts[-1], store.task(row.run, row.key)
    processes = store.processes(row.run, row.key, attempt.number) or read_processes(attempt.folder)
    culprit = next((one for one in processes if one.name == attempt.culprit), None)
    return Explanation(
        task=row.key,
        state=row.state,
        reason=row.reason or attempt.reason,
        attempts=len(attempts),
        culprit=attempt.culprit or "",
        seconds=_seconds(culprit or attempt),
        command=_command(task, attempt, culprit),
        folder=_folder(task, attempt, culprit),
        log=_log(attempt, culprit),
        quotes=_quotes(task, attempt, culprit, lines),
        fates=_fates([one for one in processes if one is not culprit]),
    )


def _end_order(row: TaskRow) -> tuple[bool, float, int]:
    """Put what was tried first, by its end; what was not has no part in how it began."""
    return not row.attempts, row.ended or 0.0, row.position


def _seconds(one: ProcessRow | AttemptRow) -> float | None:
    if one.started is None or one.ended is None:
        return None
    return one.ended - one.started


def _command(task: Task, attempt: AttemptRow, culprit: ProcessRow | None) -> str:
    """Give the command of a process; for a rank, that of the launcher on its node."""
    if culprit is None:
        chosen = list(task.processes[:1])
    else:
        chosen = [one for one in task.processes if one.name == culprit.name]
        chosen += [one for one in task.processes if one.node == culprit.node]
        chosen += task.processes[:1]
    if not chosen:
        return ""
    command = chosen[0].command
    text = command if isinstance(command, str) else shlex.join(command)
    known = {"folder": str(attempt.folder)}
    return show(fill_in(text, lambda what: known.get(what, later(what))))


def _folder(task: Task, attempt: AttemptRow, culprit: ProcessRow | None) -> str:
    if not task.code:
        return task.folder
    node = culprit.node if culprit is not None else 0
    return str(attempt.folder / "nodes" / f"node{node}")


def _log(attempt: AttemptRow, culprit: ProcessRow | None) -> Path | None:
    if culprit is None:
        return None
    path = attempt.folder / PROCESSES / culprit.name / LOGS[-1]
    return path if path.exists() else None


def _quotes(
    task: Task, attempt: AttemptRow, culprit: ProcessRow | None, count: int
) -> tuple[Quote, ...]:
    places = process_folders(attempt.folder)
    if culprit is None:
        found = [_quote(place, 1) for place in places]
        return tuple(quote for quote in found if quote.lines)[:_MOST_QUOTED]
    # What a rank writes may be in the log of its launcher, best in that of its own node.
    starters = sorted(task.processes, key=lambda one: one.node != culprit.node)
    names = [culprit.name, *(one.name for one in starters)]
    quotes = (_quote(attempt.folder / PROCESSES / name, count) for name in names)
    found = [quote for quote in quotes if quote.lines]
    return tuple(found[:1])


def _quote(place: Path, count: int) -> Quote:
    lines = without_starters(last_lines(place, count + _MOST_STARTERS))[-count:]
    while lines and not lines[-1].strip():
        lines.pop()
    return Quote(process=place.name, lines=tuple(lines))


def _fates(processes: Sequence[ProcessRow]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    fates: dict[str, list[str]] = {}
    for one in processes:
        fates.setdefault(_fate(one), []).append(one.name)
    return tuple((fate, tuple(names)) for fate, names in fates.items())


def _fate(one: ProcessRow) -> str:
    if one.by_us:
        return "ended by rankwise"
    if one.signal is not None:
        return f"ended by {ending(None, one.signal)}"
    if one.exit_code is not None:
        return f"left with {ending(one.exit_code, None)}"
    return "left no record of its end" if one.started is not None else "never started"
