"""Runtimes and machines, as data: what became of every cell, and how it differs from others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from rankwise.records import LOGS, Usage, process_folders, read_usage
from rankwise.report.contrasts import Contrast, contrasts_of
from rankwise.report.environments import Environment, read_environment
from rankwise.report.explanation import explain_task
from rankwise.store import AttemptRow, RunRow, State, Store, TaskRow

KIND = "Matrix"
"""What the plan of a matrix is called."""
_BAD = (State.FAILED, State.CRASHED, State.TIMED_OUT, State.LOST)
_LINES = 16
# Of more failures than this, only the reasons are told.
_MOST_QUOTED = 60
_MOST_LOG = 4_000_000


class Verdict(StrEnum):
    """What became of a cell."""

    PASSED = "passed"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    LOST = "lost"
    CANCELLED = "cancelled"
    SOFT_FAILED = "soft-failed"
    """Something failed of which it is known that it may."""
    BLOCKED = "could not run"
    """Something kept it from running that nobody knew of before: its runtime could not be made."""
    NOT_RUN = "not run"
    """It was known before that something is missing there."""
    SKIPPED = "skipped"
    RUNNING = "running"
    QUEUED = "queued"

    @property
    def is_red(self) -> bool:
        """Tell whether somebody has to look at it."""
        return self in _RED


_RED = frozenset(
    {
        *(Verdict.FAILED, Verdict.CRASHED, Verdict.TIMED_OUT, Verdict.LOST),
        *(Verdict.SOFT_FAILED, Verdict.BLOCKED),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTest:
    """One task of a cell."""

    task: str
    name: str
    state: State
    is_soft: bool = False
    is_environment: bool = False
    """Whether it makes or looks at the environment, and is no test."""
    is_left_out: bool = False
    """Whether the plan itself does not want to run it."""
    reason: str = ""
    seconds: float | None = None
    tail: tuple[str, ...] = ()
    """What it has written last, where it failed."""
    folder: Path | None = None
    """Of its last attempt."""
    log: Path | None = None
    usage: Usage | None = None
    """On the first of its nodes."""
    peak_memory: float = 0
    cpu_seconds: float = 0.0

    @property
    def has_failed(self) -> bool:
        return self.state in _BAD

    @property
    def is_blocked(self) -> bool:
        """Tell whether it did not run though it should."""
        return self.state is State.NOT_RUN and not self.is_left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What became of one runtime on one machine."""

    runtime: str
    machine: str
    verdict: Verdict
    tests: tuple[CellTest, ...]
    environment: Environment | None = None
    contrasts: tuple[Contrast, ...] = ()

    @property
    def counts(self) -> Counter[State]:
        """Count the tests in each state, without what is only the environment's."""
        return Counter(one.state for one in self.tests if not one.is_environment)

    @property
    def reason(self) -> str:
        """Say why it is not green, in the words of the first that is not."""
        return next((one.reason for one in _telling(self.tests) if one.reason), "")

    @property
    def seconds(self) -> float:
        return sum(one.seconds or 0.0 for one in self.tests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """All cells; those that were never asked for are not there."""

    runtimes: tuple[str, ...]
    machines: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]

    def cell(self, runtime: str, machine: str) -> Cell | None:
        return self.cells.get((runtime, machine))

    @property
    def in_order(self) -> list[Cell]:
        """Give the cells row by row."""
        places = ((runtime, machine) for runtime in self.runtimes for machine in self.machines)
        return [self.cells[place] for place in places if place in self.cells]

    @property
    def counts(self) -> Counter[Verdict]:
        return Counter(cell.verdict for cell in self.cells.values())


def matrix_of(store: Store, run: RunRow) -> Matrix | None:
    """Gather the matrix of a run; None: it is something else."""
    if run.kind != KIND:
        return None
    rows = list(store.task_rows(run.id, bodies=True))
    last = {attempt.task: attempt for attempt in store.attempts(run.id)}
    quoted = _quoted(store, rows)
    places: dict[tuple[str, str], list[CellTest]] = {}
    shared: dict[str, list[CellTest]] = {}
    for row in rows:
        tags = row.body.tags if row.body is not None else {}
        runtime, machine = tags.get("runtime", ""), tags.get("machine", "")
        test = _test(row, last.get(row.key), quoted.get(row.key, ()))
        if runtime and machine:
            places.setdefault((runtime, machine), []).append(test)
        elif runtime:
            shared.setdefault(runtime, []).append(test)
    made = {
        place: _cell(*place, [*shared.get(place[0], ()), *tests]) for place, tests in places.items()
    }
    matrix = Matrix(
        runtimes=tuple(dict.fromkeys(runtime for runtime, _ in made)),
        machines=tuple(dict.fromkeys(machine for _, machine in made)),
        cells=made,
    )
    found = {place: contrasts_of(matrix, cell) for place, cell in made.items()}
    cells = {place: replace(cell, contrasts=found[place]) for place, cell in made.items()}
    return replace(matrix, cells=cells)


def _quoted(store: Store, rows: Sequence[TaskRow]) -> dict[str, tuple[str, ...]]:
    """Give the last words of what failed first."""
    failed = [row for row in rows if row.state in _BAD and row.attempts]
    first = sorted(failed, key=lambda row: row.ended or 0.0)[:_MOST_QUOTED]
    explained = (explain_task(store, row, lines=_LINES) for row in first)
    return {one.task: one.quotes[0].lines if one.quotes else () for one in explained}


def _test(row: TaskRow, attempt: AttemptRow | None, tail: Sequence[str]) -> CellTest:
    tags = row.body.tags if row.body is not None else {}
    is_over = row.started is not None and row.ended is not None
    folder = attempt.folder if attempt is not None else None
    used = read_usage(folder) if folder is not None else []
    return CellTest(
        task=row.key,
        name=tags.get("test") or row.key,
        state=row.state,
        is_soft=tags.get("soft_fail") == "true" or (row.body is not None and row.body.is_soft),
        is_environment=tags.get("part") == "environment",
        is_left_out=row.body is not None and bool(row.body.skip),
        reason=row.reason,
        seconds=(row.ended or 0.0) - (row.started or 0.0) if is_over else None,
        tail=tuple(tail),
        folder=folder,
        log=_log(folder),
        usage=used[0] if used else None,
        peak_memory=sum(one.peak_memory for one in used),
        cpu_seconds=sum(one.cpu_seconds for one in used),
    )


def _log(folder: Path | None) -> Path | None:
    places = process_folders(folder) if folder is not None else []
    paths = (place / LOGS[-1] for place in places)
    return next((path for path in paths if path.exists()), None)


def _cell(runtime: str, machine: str, tests: Sequence[CellTest]) -> Cell:
    return Cell(
        runtime=runtime,
        machine=machine,
        verdict=verdict_of(tests),
        tests=tuple(tests),
        environment=_environment(tests),
    )


def _environment(tests: Sequence[CellTest]) -> Environment | None:
    """Read what the last of those has said whose matter it is."""
    for test in reversed(tests):
        if test.is_environment and test.log is not None:
            try:
                with test.log.open("rb") as file:
                    text = file.read(_MOST_LOG).decode(errors="replace")
            except OSError:
                continue
            if found := read_environment(text):
                return found
    return None


def verdict_of(tests: Sequence[CellTest]) -> Verdict:
    """Say what became of a cell from what became of its tasks.

    That nobody could look around there is no matter of its tests.
    """
    tests = [one for one in tests if not (one.is_environment and one.is_soft)] or tests
    hard = {one.state for one in tests if one.has_failed and not one.is_soft}
    if hard:
        return Verdict(next(iter(hard))) if len(hard) == 1 else Verdict.FAILED
    states = {one.state for one in tests}
    if State.CANCELLED in states:
        return Verdict.CANCELLED
    if any(not state.is_over for state in states):
        return Verdict.QUEUED if states == {State.QUEUED} else Verdict.RUNNING
    if any(one.is_blocked and not one.is_soft for one in tests):
        return Verdict.BLOCKED
    if any(one.state is State.NOT_RUN and not one.is_soft for one in tests):
        return Verdict.NOT_RUN
    if any(one.has_failed or one.state is State.NOT_RUN for one in tests):
        return Verdict.SOFT_FAILED if any(one.has_failed for one in tests) else Verdict.NOT_RUN
    own = {one.state for one in tests if not one.is_environment} or states
    return Verdict.SKIPPED if own == {State.SKIPPED} else Verdict.PASSED


def _telling(tests: Sequence[CellTest]) -> list[CellTest]:
    """Put first what explains the rest: hard failures, soft ones, what did not run."""
    order = (State.PASSED, State.SKIPPED, State.NOT_RUN)
    return sorted(
        tests,
        key=lambda one: (not one.has_failed, one.is_soft, -_place(one.state, order)),
    )


def _place(state: State, order: Sequence[State]) -> int:
    return order.index(state) if state in order else len(order)
