"""Why tasks failed, and the results of everything that was tested."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rankwise.logs import last_lines
from rankwise.plan import REPEATED, Task, fill_in, later, show
from rankwise.records import LOGS, PROCESSES, process_folders, read_processes
from rankwise.safe_text import clean
from rankwise.store import AttemptRow, ProcessRow, ResultRow, RunRow, State, Store, TaskRow
from rankwise.store.rows import RED
from rankwise.wording import ending, grouped, headline_of, label

# How Python runs modules, and how mpi4py runs programs so that an exception ends all ranks.
_STARTERS = re.compile(
    r'(?P<indent>\s*)File "(<frozen runpy>|[^"]*/mpi4py/(__main__|run)\.py|[^"]*/runpy\.py)", line '
)


def without_starters(lines: Iterable[str]) -> list[str]:
    """Leave out the frames of programs that only start others, with their source lines."""
    kept: list[str] = []
    indent: int | None = None
    for line in lines:
        if found := _STARTERS.match(line):
            indent = len(found["indent"])
            continue
        # The source lines of a frame stand further to the right than the frame.
        if indent is not None and len(line) - len(line.lstrip()) > indent:
            continue
        indent = None
        kept.append(line)
    return kept


# Where no process is to blame, so many are quoted.
_MOST_QUOTED = 8
# So many lines of a traceback may be left out.
_MOST_STARTERS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The last lines that a process has written."""

    process: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureExplanation:
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
class FailureGroup:
    """Tasks that are not green for the same reason."""

    state: State
    reason: str
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExplanation:
    """Why a run is not green."""

    first: tuple[FailureExplanation, ...]
    """The tasks that failed first, in detail."""
    others: tuple[FailureGroup, ...]

    def __bool__(self) -> bool:
        return bool(self.first or self.others)


def explain_run(store: Store, run: str, *, most: int = 3, lines: int = 20) -> RunExplanation:
    """Explain the tasks of a run that failed first, and name the others by their reasons."""
    rows = list(store.tasks_in(run, RED))
    # What failed first is often the cause of what failed later.
    tried = sorted((row for row in rows if row.attempts), key=_end_order)[:most]
    detailed = {row.key for row in tried}
    groups = grouped(((row.state, row.reason), row) for row in rows if row.key not in detailed)
    in_order = sorted(groups.items(), key=lambda group: min(map(_end_order, group[1])))
    return RunExplanation(
        first=tuple(explain_task(store, row, lines=lines) for row in tried),
        others=tuple(
            FailureGroup(state=state, reason=reason, tasks=tuple(row.key for row in them))
            for (state, reason), them in in_order
        ),
    )


def seconds_of(one: RunRow | TaskRow | AttemptRow | ProcessRow) -> float | None:
    """Return how long something took; None: it has not begun, or not ended."""
    if one.started is None or one.ended is None:
        return None
    return one.ended - one.started


def processes_of(store: Store, attempt: AttemptRow) -> Sequence[ProcessRow]:
    """Return the processes of an attempt: while it runs, as its runner has written them."""
    known = store.processes(attempt.run, attempt.task, attempt.number)
    return known or read_processes(attempt.folder)


def explain_task(store: Store, row: TaskRow, *, lines: int = 20) -> FailureExplanation:
    """Explain what became of a task, from its last attempt."""
    attempts = store.attempts(row.run, row.key)
    if not attempts:
        return FailureExplanation(task=row.key, state=row.state, reason=row.reason)
    attempt, task = attempts[-1], store.task(row.run, row.key)
    processes = processes_of(store, attempt)
    # None where the whole attempt failed: a time limit, a check.
    culprit = next((one for one in processes if one.name == attempt.culprit), None)
    return FailureExplanation(
        task=row.key,
        state=row.state,
        reason=row.reason or attempt.reason,
        attempts=len(attempts),
        culprit=attempt.culprit or "",
        seconds=seconds_of(culprit or attempt),
        command=_command(task, attempt, culprit),
        folder=_folder(task, attempt, culprit),
        log=_log(attempt, culprit),
        quotes=_quotes(task, attempt, culprit, lines),
        fates=_fates(one for one in processes if one is not culprit),
    )


def _end_order(row: TaskRow) -> tuple[bool, float, int]:
    """Put what was tried first, by its end; what was not has no part in how it began."""
    return not row.attempts, row.ended or 0.0, row.position


def _command(task: Task, attempt: AttemptRow, culprit: ProcessRow | None) -> str:
    """Return the command of a process; for a rank, that of the launcher on its node."""
    if not task.processes:
        return ""
    name, node = (culprit.name, culprit.node) if culprit else ("", 0)
    # Of equals, the first: a rank has no process of its own in the plan.
    chosen = max(task.processes, key=lambda one: (one.name == name, one.node == node))
    text = chosen.command if isinstance(chosen.command, str) else shlex.join(chosen.command)
    known = {"folder": str(attempt.folder)}
    return show(fill_in(text, lambda what: known.get(what, later(what))))


def _folder(task: Task, attempt: AttemptRow, culprit: ProcessRow | None) -> str:
    node = culprit.node if culprit is not None else 0
    return str(attempt.folder / "nodes" / f"node{node}") if task.code else task.folder


def _log(attempt: AttemptRow, culprit: ProcessRow | None) -> Path | None:
    path = attempt.folder / PROCESSES / culprit.name / LOGS[-1] if culprit else None
    return path if path and path.exists() else None


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
    return tuple(islice((quote for quote in quotes if quote.lines), 1))


def _quote(place: Path, count: int) -> Quote:
    # More are read than shown, since some are left out.
    lines = without_starters(last_lines(place, count + _MOST_STARTERS))[-count:]
    while lines and not lines[-1].strip():
        lines.pop()
    return Quote(process=place.name, lines=tuple(lines))


def _fates(processes: Iterable[ProcessRow]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    fates = grouped((_fate(one), one.name) for one in processes)
    return tuple((fate, tuple(names)) for fate, names in fates.items())


def _fate(one: ProcessRow) -> str:
    if one.by_us:
        return "ended by rankwise"
    if one.signal is not None:
        return f"ended by {ending(None, one.signal)}"
    if one.exit_code is not None:
        return f"exited with code {one.exit_code}"
    return "left no record of its end" if one.started is not None else "never started"


_QUOTED_LINES = 30
_FRAME = re.compile(r"^([^\s:]+\.py):(\d+): ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One task, or one test within it."""

    task: str
    name: str
    """The test's own, if it is one of several in the task."""
    state: State
    seconds: float = 0.0
    reason: str = ""
    details: str = ""
    """What was written last, or the test's own report."""
    place: str = ""
    """Where it is asked for: FILE:LINE:COLUMN."""
    log: Path | None = None
    cell: str = ""
    """RUNTIME.MACHINE, in a matrix."""
    test: str = ""
    """What the task is called there."""
    is_soft: bool = False
    """Whether a failure of it is allowed (`soft_fail`)."""

    @property
    def is_forgiven(self) -> bool:
        """Return whether it has failed, and may."""
        return self.is_soft and self.state.has_failed

    @property
    def title(self) -> str:
        """The name, with that of the task if it is one of several in it."""
        return self.name if self.name == self.task else f"{self.task}: {self.name}"

    @property
    def headline(self) -> str:
        """Return the first line of the reason."""
        return self.reason.partition("\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A task that was run several times."""

    name: str
    passed: int
    times: int

    @property
    def is_flaky(self) -> bool:
        """Return whether it passed sometimes, and sometimes not."""
        return 0 < self.passed < self.times


def results_of(store: Store, run: str) -> list[CaseResult]:
    """Return everything that was tested, in the order of the plan."""
    results = store.results(run)
    found: list[CaseResult] = []
    for row in store.task_rows(run, bodies=True):
        own = [_single_test(row, one) for one in results.get(row.key, [])]
        found += own
        # What its tests cannot explain, the task must: a crash, a time limit, a failed check.
        is_explained = row.state is State.PASSED or any(one.state is State.FAILED for one in own)
        if not own or not (is_explained and row.state in (State.PASSED, State.FAILED)):
            found.append(_of_task(store, row))
    return found


def with_run(run: RunRow, cases: Sequence[CaseResult]) -> list[CaseResult]:
    """Add a case for a run that is not green though none of its cases says why."""
    is_told = any(case.state in RED and not case.is_forgiven for case in cases)
    if run.state not in RED or is_told:
        return list(cases)
    return [*cases, CaseResult(task=run.id, name=run.id, state=run.state, reason=run.reason)]


def repeated_of(store: Store, run: str) -> list[Repeated]:
    """Return how often each task passed that was run several times."""
    counts = grouped(
        (name, row.state is State.PASSED)
        for row in store.task_rows(run, bodies=True)
        if row.body is not None and (name := row.body.tags.get(REPEATED))
    )
    return [
        Repeated(name=name, passed=sum(tries), times=len(tries)) for name, tries in counts.items()
    ]


def _case(row: TaskRow, **told: Any) -> CaseResult:
    """Make a result of a task, or of a test within it; in a matrix, with its cell."""
    if (task := row.body) is None:
        return CaseResult(task=row.key, **told)
    names = [task.tags.get(name, "") for name in ("runtime", "machine")]
    cell, test = (".".join(names), task.tags.get("test", "")) if all(names) else ("", "")
    return CaseResult(task=row.key, cell=cell, test=test, is_soft=task.is_soft, **told)


def _single_test(row: TaskRow, one: ResultRow) -> CaseResult:
    return _case(
        row,
        name=one.name,
        state=one.state,
        seconds=one.seconds,
        reason=headline_of(one.message),
        details=one.message,
        place=_place(row, one.message),
    )


def _place(row: TaskRow, message: str) -> str:
    """Return the line of the test that pytest names last; else where the task is asked for."""
    if row.body is None:
        return ""
    # The last frame that is still there: a test may have removed its own files.
    for path, line in reversed(_FRAME.findall(message)):
        whole = Path(row.body.folder) / path
        if whole.is_file():
            return f"{whole}:{line}:1"
    return row.body.place


def _of_task(store: Store, row: TaskRow) -> CaseResult:
    parts: list[str] = []
    # Reading the logs of what is green would take long, and nothing shows them.
    explained = explain_task(store, row, lines=_QUOTED_LINES) if row.state in RED else None
    for quote in explained.quotes if explained else ():
        parts.append(f"{label(quote.process)} wrote last:")
        parts += [f"  {clean(line)}" for line in quote.lines]
    return _case(
        row,
        name=row.key,
        state=row.state,
        seconds=max(0.0, seconds_of(row) or 0.0),
        reason=clean(row.reason),
        details="\n".join(parts),
        place=row.body.place if row.body is not None else "",
        log=explained.log if explained else None,
    )
