"""A matrix as a report shows it: cells, verdicts, contrasts between neighbours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Self

from rankwise.files import open_left
from rankwise.records import LOGS, Usage, process_folders, read_provided, read_usage
from rankwise.reports import environments
from rankwise.reports.environments import Environment, EnvironmentChange
from rankwise.reports.failures import explain_task, seconds_of
from rankwise.reports.palette import TONES
from rankwise.safe_text import cut
from rankwise.store import AttemptRow, RunRow, State, Store, TaskRow
from rankwise.wording import counted, grouped, listed, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A cell in the same row or column, in which tests pass that fail here."""

    runtime: str
    machine: str
    """Those of the other cell."""
    tests: tuple[str, ...]
    changes: tuple[EnvironmentChange, ...] = ()
    is_known: bool = True
    """Whether both environments are known; otherwise nothing is said of what differs."""


def contrasts_of(matrix: MatrixResult, cell: Cell) -> tuple[Contrast, ...]:
    """Find the cells where the tests pass that fail here, and say what differs there.

    A cell need not be all green for that: only what fails here has to pass there. One in the same
    column has another runtime on the same machine, one in the same row is the other way round. Of
    each, the one is taken that differs least, which tells most; then the one that is nearest.
    """
    failed = [one for one in cell.tests if one.has_failed and not one.is_environment]
    words = "\n".join(line for one in failed for line in (one.reason, *one.tail))
    # By the cell where it passes: one table of what differs serves several tests.
    found: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys(one.name for one in failed):
        for neighbours in _neighbours(matrix, cell):
            if passing := [one for one in neighbours if (name, State.PASSED) in one.outcomes]:
                best = min(passing, key=lambda one: _distance(cell, one))
                found.setdefault((best.runtime, best.machine), []).append(name)
    changes = {place: _changes(cell, matrix.cells[place]) for place in found}
    return tuple(
        Contrast(
            runtime=place[0],
            machine=place[1],
            tests=tuple(tests),
            changes=environments.ranked(changes[place] or (), words),
            is_known=changes[place] is not None,
        )
        for place, tests in found.items()
    )


def _changes(cell: Cell, other: Cell) -> tuple[EnvironmentChange, ...] | None:
    """Return what differs between two cells; None: the environment of one is not known."""
    here, there = cell.environment, other.environment
    return environments.difference(here, there) if here and there else None


def _distance(cell: Cell, other: Cell) -> float:
    """Count what differs; where that is not known, nothing is farther."""
    changes = _changes(cell, other)
    return inf if changes is None else len(changes)


def _neighbours(matrix: MatrixResult, cell: Cell) -> Iterator[list[Cell]]:
    """Return the others in the column of a cell, and those in its row."""
    column = [(name, cell.machine) for name in _nearest(matrix.runtimes, cell.runtime)]
    row = [(cell.runtime, name) for name in _nearest(matrix.machines, cell.machine)]
    for places in (column, row):
        yield [matrix.cells[place] for place in places if place in matrix.cells]


def _nearest(names: Sequence[str], own: str) -> Iterator[str]:
    """Return the other names, those next to ours first."""
    place = names.index(own)
    others = sorted(enumerate(names), key=lambda one: abs(one[0] - place))
    return (name for _, name in others[1:])


KIND = "Matrix"
# Not what was cancelled: that says nothing about the test.
_BAD = (State.FAILED, State.CRASHED, State.TIMED_OUT, State.LOST)
_LINES = 16
# Of more failures than this, only the reasons are told.
_MOST_QUOTED = 60
# The line about the environment may stand behind much other output.
_MOST_LOG = 4_000_000


class CellVerdict(StrEnum):
    """What became of a cell; where there is little room, in short, and how urgent it is."""

    PASSED = "passed", "ok", 6
    FAILED = "failed", "FAIL", 0
    CRASHED = "crashed", "CRASH", 0
    TIMED_OUT = "timed out", "TIME", 0
    LOST = "lost", "LOST", 0
    CANCELLED = "cancelled", "STOP", 2
    SOFT_FAILED = "soft-failed", "soft", 1
    """Something failed of which it is known that it may."""
    BLOCKED = "could not run", "NONE", 0
    """Something unexpected kept it from running, such as a runtime that could not be made."""
    NOT_RUN = "not run", "none", 4
    """The plan says already that something is missing there."""
    SKIPPED = "skipped", "skip", 7
    RUNNING = "running", "run", 3
    QUEUED = "queued", "wait", 5

    short: str
    urgency: int
    """Its place in an order: what needs attention comes first."""

    def __new__(cls, value: str, short: str = "", urgency: int = 0) -> Self:
        made = str.__new__(cls, value)
        made._value_ = value
        made.short, made.urgency = short, urgency
        return made

    @property
    def is_red(self) -> bool:
        """Return whether it needs attention."""
        return self.urgency <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What the last attempt of a task has used."""

    usage: Usage
    """On the first of its nodes."""
    cpu_seconds: float
    peak_memory: float
    """Those of all nodes together."""


def used_in(folder: Path) -> Used | None:
    """Read what an attempt has used; None: nothing was recorded."""
    if not (nodes := read_usage(folder)):
        return None
    cpu, memory = sum(one.cpu_seconds for one in nodes), sum(one.peak_memory for one in nodes)
    return Used(usage=nodes[0], cpu_seconds=cpu, peak_memory=memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTask:
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
    used: Used | None = None
    provided: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """What the provider of the machine has measured, as pairs of seconds and a value."""

    @property
    def has_failed(self) -> bool:
        return self.state in _BAD

    @property
    def is_forgiven(self) -> bool:
        """Return whether it has failed, and may."""
        return self.is_soft and self.state.has_failed

    @property
    def is_blocked(self) -> bool:
        """Return whether it did not run though it should."""
        return self.state is State.NOT_RUN and not self.is_left_out


def _importance(one: CellTask) -> tuple[bool, bool, int]:
    """Put hard failures first, then soft ones, then what did not run: it explains the rest."""
    quiet = {State.NOT_RUN: 1, State.SKIPPED: 2, State.PASSED: 3}
    return not one.has_failed, one.is_soft, quiet.get(one.state, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What became of one runtime on one machine."""

    runtime: str
    machine: str
    verdict: CellVerdict
    tests: tuple[CellTask, ...]
    environment: Environment | None = None
    contrasts: tuple[Contrast, ...] = ()

    @property
    def counts(self) -> Counter[State]:
        """Count the tests in each state, without what is only the environment's."""
        return Counter(one.state for one in self.tests if not one.is_environment)

    @property
    def outcomes(self) -> set[tuple[str, State]]:
        """The names and states of what is in it."""
        return {(one.name, one.state) for one in self.tests}

    @property
    def reason(self) -> str:
        """Why it is not green, in the words of what explains most."""
        told = [one for one in self.tests if one.reason]
        return min(told, key=_importance).reason if told else ""

    @property
    def seconds(self) -> float:
        return sum(one.seconds or 0.0 for one in self.tests)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixResult:
    """All cells; those that were never asked for are not there."""

    runtimes: tuple[str, ...]
    machines: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]

    def cell(self, runtime: str, machine: str) -> Cell | None:
        return self.cells.get((runtime, machine))

    def environment_on(self, machine: str) -> Environment | None:
        """Return what the first runtime that could say so has found on a machine."""
        cells = (self.cell(runtime, machine) for runtime in self.runtimes)
        return next((cell.environment for cell in cells if cell and cell.environment), None)

    def left_out(self, runtimes: Collection[str], machines: Collection[str]) -> int:
        """Count the cells that a table of these rows and columns has no place for."""
        return sum(row not in runtimes or column not in machines for row, column in self.cells)

    @property
    def in_order(self) -> list[Cell]:
        """Return the cells row by row."""
        places = ((runtime, machine) for runtime in self.runtimes for machine in self.machines)
        return [self.cells[place] for place in places if place in self.cells]

    @property
    def counts(self) -> Counter[CellVerdict]:
        return Counter(cell.verdict for cell in self.cells.values())


def matrix_of(store: Store, run: RunRow) -> MatrixResult | None:
    """Gather the matrix of a run; None: it is something else."""
    if run.kind != KIND:
        return None
    rows = list(store.task_rows(run.id, bodies=True))
    # Attempts come in order: the last one of each task stays.
    last = {attempt.task: attempt for attempt in store.attempts(run.id)}
    quoted = _quoted(store, rows)
    places: dict[tuple[str, str], list[CellTask]] = {}
    shared: dict[str, list[CellTask]] = {}
    for row in rows:
        tags = row.body.tags if row.body is not None else {}
        runtime, machine = tags.get("runtime", ""), tags.get("machine", "")
        test = _test(row, last.get(row.key), quoted.get(row.key, ()))
        if runtime and machine:
            places.setdefault((runtime, machine), []).append(test)
        elif runtime:
            shared.setdefault(runtime, []).append(test)
    made = {}
    for (runtime, machine), own in places.items():
        # What makes a runtime is a task of all its cells.
        tests = (*shared.get(runtime, ()), *own)
        made[runtime, machine] = Cell(
            runtime=runtime,
            machine=machine,
            verdict=verdict_of(tests),
            tests=tests,
            environment=_environment(tests),
        )
    matrix = MatrixResult(
        runtimes=tuple(dict.fromkeys(runtime for runtime, _ in made)),
        machines=tuple(dict.fromkeys(machine for _, machine in made)),
        cells=made,
    )
    # Afterwards, since a contrast is with what became of another cell.
    for place, cell in made.items():
        made[place] = replace(cell, contrasts=contrasts_of(matrix, cell))
    return matrix


def _quoted(store: Store, rows: Sequence[TaskRow]) -> dict[str, tuple[str, ...]]:
    """Return the last lines of what failed first: later failures often follow from it."""
    failed = [row for row in rows if row.state in _BAD and row.attempts]
    first = sorted(failed, key=lambda row: row.ended or 0.0)[:_MOST_QUOTED]
    explained = (explain_task(store, row, lines=_LINES) for row in first)
    return {one.task: one.quotes[0].lines if one.quotes else () for one in explained}


def _test(row: TaskRow, attempt: AttemptRow | None, tail: Sequence[str]) -> CellTask:
    tags = row.body.tags if row.body is not None else {}
    folder = attempt.folder if attempt is not None else None
    return CellTask(
        task=row.key,
        name=tags.get("test") or row.key,
        state=row.state,
        is_soft=tags.get("soft_fail") == "true" or (row.body is not None and row.body.is_soft),
        is_environment=tags.get("part") == "environment",
        is_left_out=row.body is not None and bool(row.body.skip),
        reason=row.reason,
        seconds=seconds_of(row),
        tail=tuple(tail),
        folder=folder,
        log=_log(folder),
        used=used_in(folder) if folder is not None else None,
        provided=read_provided(folder) if folder is not None else {},
    )


def _log(folder: Path | None) -> Path | None:
    places = process_folders(folder) if folder is not None else []
    paths = (place / LOGS[-1] for place in places)
    return next((path for path in paths if path.exists()), None)


def _environment(tests: Sequence[CellTask]) -> Environment | None:
    """Read what the last task that looks at the environment has said."""
    for test in reversed(tests):
        if test.is_environment and test.log is not None:
            try:
                with open_left(test.log) as file:
                    text = file.read(_MOST_LOG).decode(errors="replace")
            except OSError:
                continue
            if found := environments.read_environment(text):
                return found
    return None


def verdict_of(tests: Sequence[CellTask]) -> CellVerdict:
    """Say what became of a cell from what became of its tasks."""
    # That the environment could not be looked at says nothing about the tests.
    tests = [one for one in tests if not (one.is_environment and one.is_soft)] or tests
    # What is lost is never forgiven: it says nothing about the test.
    hard = {one.state for one in tests if one.has_failed and not one.is_forgiven}
    if hard:
        return CellVerdict(next(iter(hard))) if len(hard) == 1 else CellVerdict.FAILED
    states = {one.state for one in tests}
    if State.CANCELLED in states:
        return CellVerdict.CANCELLED
    if any(not state.is_over for state in states):
        return CellVerdict.QUEUED if states == {State.QUEUED} else CellVerdict.RUNNING
    if State.NOT_RUN in states:
        is_blocked = any(one.is_blocked for one in tests)
        return CellVerdict.BLOCKED if is_blocked else CellVerdict.NOT_RUN
    if any(one.has_failed for one in tests):
        return CellVerdict.SOFT_FAILED
    own = {one.state for one in tests if not one.is_environment} or states
    return CellVerdict.SKIPPED if own == {State.SKIPPED} else CellVerdict.PASSED


_MOST_CHANGES = 4
_MOST_CELLS = 3
_LONGEST_REASON = 400
TOLD_BY_REASON = (CellVerdict.SKIPPED, CellVerdict.NOT_RUN, CellVerdict.BLOCKED)
"""What is best told by the reason for it."""


def counts_words(cell: Cell) -> str:
    """Say how many tests of a cell came to what: `2 of 6 failed`, `6 passed`."""
    failed, total = _failed(cell), _total(cell)
    if failed:
        return f"{failed} of {total} failed"
    if any(one.has_failed for one in cell.tests):
        # No test has failed, so it is a task that makes or looks at the environment.
        return "its environment failed"
    if cell.verdict is CellVerdict.RUNNING:
        return f"{_over(cell)} of {total} over"
    if cell.verdict is not CellVerdict.PASSED:
        return counted(total, "test") if total else ""
    skipped = cell.counts[State.SKIPPED]
    return f"{cell.counts[State.PASSED]} passed" + (f", {skipped} skipped" if skipped else "")


def cell_words(cell: Cell) -> str:
    """Say what became of a cell: `passed 6`, `timed out 1 of 6`, `skipped`."""
    return " ".join(filter(None, [str(cell.verdict), _fraction(cell, " of ")]))


def short_words(cell: Cell) -> str:
    """Say the same where there is little room: `ok 6`, `TIME 1/6`, `skip`."""
    return " ".join(filter(None, [cell.verdict.short, _fraction(cell, "/")]))


def legend(matrix: MatrixResult) -> str:
    """Explain the short words that are in use."""
    used = [verdict for verdict in CellVerdict if verdict in matrix.counts]
    return ", ".join(f"{verdict.short} {verdict}" for verdict in used)


def _fraction(cell: Cell, of: str) -> str:
    if cell.verdict is CellVerdict.PASSED:
        return str(cell.counts[State.PASSED])
    if cell.verdict is CellVerdict.RUNNING:
        return f"{_over(cell)}{of}{_total(cell)}"
    return f"{failed}{of}{_total(cell)}" if (failed := _failed(cell)) else ""


def _failed(cell: Cell) -> int:
    return sum(one.has_failed and not one.is_environment for one in cell.tests)


def _over(cell: Cell) -> int:
    return sum(count for state, count in cell.counts.items() if state.is_over)


def _total(cell: Cell) -> int:
    return sum(cell.counts.values())


def reasons(matrix: MatrixResult) -> Iterator[tuple[str, str]]:
    """Return why cells did not run, with the cells for which that is so."""
    pairs = []
    for cell in matrix.in_order:
        if cell.verdict in TOLD_BY_REASON:
            reason = " ".join(cell.reason.split())[:_LONGEST_REASON]
            pairs.append((f"{cell.verdict}: {reason}" if reason else str(cell.verdict), cell))
    return _named_once(pairs)


def differences(matrix: MatrixResult) -> Iterator[tuple[str, str]]:
    """Return what differs where the same tests pass, with the cells for which that is so."""
    return _named_once(
        (contrast_words(contrast, cell), cell)
        for cell in matrix.in_order
        for contrast in cell.contrasts
    )


def _named_once(pairs: Iterable[tuple[str, Cell]]) -> Iterator[tuple[str, str]]:
    """Return the cells of which the same is said, with these words."""
    for words, cells in grouped(pairs).items():
        yield cells_named(cells), words


def contrast_words(one: Contrast, cell: Cell) -> str:
    """Say where the tests pass, and what is different there, the most telling of it."""
    tests = listed(one.tests, most=3)
    verb = "passes" if len(one.tests) == 1 else "pass"
    where = f"with {one.runtime}" if one.machine == cell.machine else f"on {one.machine}"
    said = f"{tests} {verb} {where}"
    if not one.is_known:
        return f"{said}; what differs is not known"
    if not one.changes:
        return f"{said}, where nothing is known to differ"
    named = [change for change in one.changes if change.is_named]
    # What the failure names is always shown, however much it is.
    shown = one.changes[: max(_MOST_CHANGES, len(named))]
    words = [change_words(change) for change in shown]
    if rest := len(one.changes) - len(shown):
        words.append(f"{rest} more")
    return f"{said}. Different here: {listed(words)}"


def change_words(one: EnvironmentChange) -> str:
    """Say what is here and what was there: `numpy 2.3.1 (1.26.4 there)`."""
    # The names of these say what they are.
    kind = "" if one.kind in ("package", "Python") else one.kind
    name = " ".join(filter(None, [kind, one.name]))
    there = "" if (one.here, one.there) == ("no", "yes") else f" ({one.there or 'not'} there)"
    match one.here:
        case "no" | "":
            return f"no {name}{there}"
        case "yes":
            return f"{name} (not there)"
    return f"{name} {one.here}{there}".strip()


def cells_named(cells: list[Cell]) -> str:
    """Name cells; those of one runtime together."""
    rows = grouped((cell.runtime, cell.machine) for cell in cells)
    names = [f"{row} on {listed(them, most=_MOST_CELLS)}" for row, them in rows.items()]
    return listed(names, most=_MOST_CELLS)


# A row of more marks than this is no longer seen at a glance.
_MOST_MARKS = 24
_LONGEST_GIST = 120


def counts_in_order(matrix: MatrixResult) -> list[tuple[CellVerdict, int]]:
    """Count the cells of each verdict that there is."""
    return sorted(matrix.counts.items(), key=lambda one: one[0].urgency)


def gist(cell: Cell) -> str:
    """Say in a few words why a cell is as it is."""
    first = cell.reason.partition("\n")[0]
    return cut(first, _LONGEST_GIST) if cell.verdict in TOLD_BY_REASON else counts_words(cell)


def marks_of(cell: Cell) -> Iterator[str]:
    """Return a tone for each test, in the order of the plan: the same test is at the same place."""
    if cell.verdict in TOLD_BY_REASON:
        return
    tests = [one for one in cell.tests if not one.is_environment]
    for one in tests[:_MOST_MARKS]:
        yield "warn" if one.is_forgiven else TONES[one.state]


def about_machine(matrix: MatrixResult, machine: str) -> str:
    """Say what a machine is, if anything that ran there has said so."""
    known = matrix.environment_on(machine)
    return machine_words(known) if known else ""


def about_runtime(matrix: MatrixResult, runtime: str) -> str:
    """Say what is in a runtime, if anything that ran in it has said so."""
    cells = (matrix.cell(runtime, machine) for machine in matrix.machines)
    known = next((cell.environment for cell in cells if cell and cell.environment), None)
    if known is None:
        return ""
    python = known.python.replace("CPython", "Python")
    return f"{python} · {counted(len(known.packages), 'package')}"


def machine_words(one: Environment) -> str:
    """Say in a few words what a machine is."""
    parts = [
        one.gpus[0] if one.gpus else one.cpu,
        counted(one.cores, "core") if one.cores else "",
        size(one.memory) if one.memory else "",
    ]
    return " · ".join(part for part in parts if part)
