"""All that a report says of a run, gathered once."""

from __future__ import annotations

import copy
import json
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rankwise.errors import InputError
from rankwise.plugins import REPORT_FORMATS
from rankwise.records import DELETED, MADE, count_instances, read_provided
from rankwise.reports import failures as faults
from rankwise.reports.analysis import AnalysisResult, analyses_of
from rankwise.reports.comparison import judged
from rankwise.reports.failures import CaseResult, FailureExplanation, seconds_of
from rankwise.reports.figures import Figure, figures_of
from rankwise.reports.lanes import Timeline
from rankwise.reports.matrix import CellVerdict, MatrixResult, Used, matrix_of, used_in
from rankwise.reports.measurements import Measure, Trend, measures_of, run_before, trends_of
from rankwise.reports.palette import TONES, URGENCY
from rankwise.reports.plots.axes import number_text
from rankwise.reports.rendering import template_text
from rankwise.reports.timeline import timeline_of_run
from rankwise.safe_text import cut
from rankwise.store import RunRow, State, Store, TaskRow
from rankwise.store.samples import SampleRow
from rankwise.wording import counted, duration, grouped, listed, moment, short_path

_MOST_TASKS = 150
# Less than this is not looked at by runners.
_SHORTEST_SECONDS = 1.0


def used_by_tasks(store: Store, run: str, rows: Sequence[TaskRow]) -> dict[str, Used]:
    """Read what tasks have used, as far as it is known; of many, what is not green comes first."""
    long = [row for row in rows if (seconds_of(row) or 0.0) >= _SHORTEST_SECONDS]
    # Each is a file to read: of a large run, that would take longer than all the rest.
    first = sorted(long, key=lambda row: row.state.is_green)[:_MOST_TASKS]
    # The last attempt of each task, since they come in order.
    folders = {one.task: one.folder for one in store.attempts(run)} if first else {}
    found = {row.key: used_in(folders[row.key]) for row in first if row.key in folders}
    return {key: used for key, used in found.items() if used is not None}


_MOST_FAILURES = 25
_LINES = 30
_MOST_TRENDS = 6
# On a plot, more runs are too close to be told apart.
_MOST_RUNS = 40
# The message of a test may be a whole log.
_MOST_OF_A_MESSAGE = 3000
# A change that is smaller is not counted as one for the worse.
_LEAST_CHANGE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What became of one task, as a row of a table."""

    key: str
    state: State
    reason: str
    seconds: float | None
    attempts: int
    exit_code: int | None
    parameters: Mapping[str, str]
    repeat: str
    """The command that runs it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleTest:
    """One test of a task that has several, as pytest tells of it."""

    task: str
    name: str
    state: State
    seconds: float
    message: str


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """All that any format says of a run.

    Each part is gathered when a format first asks for it, and is the same for all of them then: so
    no two formats disagree, and none pays for what only others show. The store must stay open.
    """

    store: Store
    run: RunRow
    now: float

    @cached_property
    def folder(self) -> Path:
        """Where the report will be: links to files begin there."""
        return self.store.run_folder(self.run.id)

    def with_parts(self, **parts: Any) -> ReportData:
        """Return the same with other parts, such as the folder."""
        other = copy.copy(self)
        # What was gathered is kept with the attributes: a part takes its place.
        vars(other).update(parts)
        return other

    @cached_property
    def counts(self) -> Mapping[State, int]:
        return self.store.counts(self.run.id)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def seconds(self) -> float | None:
        """How long the run took."""
        return seconds_of(self.run)

    @property
    def verdict(self) -> str:
        """How the run ended in a word, or that it has not."""
        state = self.run.state
        return str(state) if state.is_over else f"{state}, not over yet"

    @property
    def outcomes(self) -> list[tuple[str, int, str]]:
        """How many tasks are in each state, with its tone; what is wrong comes first."""
        found = [(str(state), count, TONES[state]) for state, count in self.counts.items() if count]
        return sorted(found, key=lambda one: URGENCY[one[0]])

    @property
    def said(self) -> str:
        """What became of the run, in a sentence."""
        counts = [f"{count:,} {name}" for name, count, _ in self.outcomes]
        sentence = f"{self.total:,} {'case' if self.total == 1 else 'cases'}"
        sentence += f": {listed(counts)}." if self.total != 1 or counts else "."
        if self.run.reason:
            sentence += f" {cut(self.run.reason)}"
        return sentence

    @cached_property
    def _rows(self) -> Sequence[TaskRow]:
        return list(self.store.task_rows(self.run.id, bodies=True))

    @cached_property
    def cases(self) -> Sequence[TaskResult]:
        """The tasks, as rows of a table."""
        return [
            TaskResult(
                key=row.key,
                state=row.state,
                reason=cut(row.reason),
                seconds=seconds_of(row),
                attempts=row.attempts,
                exit_code=row.exit_code,
                parameters=dict(row.body.tags) if row.body is not None else {},
                repeat=repeat_command(self.run, row.key, is_alone=len(self._rows) == 1),
            )
            for row in self._rows
        ]

    @cached_property
    def results(self) -> Sequence[CaseResult]:
        """Everything that was tested, with what it said, as a CI wants it."""
        return faults.results_of(self.store, self.run.id)

    @cached_property
    def repeated(self) -> Sequence[faults.Repeated]:
        return faults.repeated_of(self.store, self.run.id)

    @cached_property
    def tests(self) -> Sequence[SingleTest]:
        return [
            SingleTest(
                task=task,
                name=one.name,
                state=one.state,
                seconds=one.seconds,
                message=cut(one.message, _MOST_OF_A_MESSAGE),
            )
            for task, results in self.store.results(self.run.id).items()
            for one in results
        ]

    # The failures in detail, and the others by their reasons.
    @cached_property
    def _explained(self) -> faults.RunExplanation:
        return faults.explain_run(self.store, self.run.id, most=_MOST_FAILURES, lines=_LINES)

    @property
    def failures(self) -> Sequence[FailureExplanation]:
        return self._explained.first

    @property
    def others(self) -> Sequence[faults.FailureGroup]:
        """What else is not green, by its reasons."""
        return self._explained.others

    @cached_property
    def before(self) -> str:
        """The run that measures are compared with; empty: there is none."""
        return run_before(self.store, self.run) or ""

    @cached_property
    def analyses(self) -> Sequence[AnalysisResult]:
        """What the analyses of sweeps have made of the samples."""
        return analyses_of(self.store, self.run.id, self._rows)

    @cached_property
    def samples(self) -> Sequence[SampleRow]:
        return self.store.samples_of_run(self.run.id)

    @cached_property
    def measures(self) -> Sequence[Measure]:
        tasks = {row.key: row.body for row in self._rows if row.body is not None}
        name, before = self.run.name, self.before
        found = measures_of(self.store, self.run.id, name, before=before or None, tasks=tasks)
        before_run = self.store.run(before) if before else None
        return judged(self.store, found, run=self.run, before=before_run) if before_run else found

    @cached_property
    def trends(self) -> Sequence[tuple[Measure, Trend]]:
        known = [one for one in self.measures if one.before is not None]
        # What is worse, then what has changed most.
        known.sort(key=lambda one: (one.verdict != "regressed", -abs(one.change or 0.0)))
        return trends_of(self.store, known[:_MOST_TRENDS], run=self.run.id, most_runs=_MOST_RUNS)

    @cached_property
    def figures(self) -> Sequence[Figure]:
        times = [(case.key, case.seconds) for case in self.cases if case.seconds is not None]
        return figures_of(self.measures, self.trends, times)

    @property
    def repeat(self) -> str:
        """Return the command that repeats the whole run."""
        return repeat_command(self.run, "", is_alone=True)

    @cached_property
    def conditions(self) -> Sequence[tuple[str, str]]:
        return _conditions(self.store.conditions(self.run.id).values())

    @property
    def conditions_in_words(self) -> Iterator[tuple[str, str]]:
        """The conditions as people read them."""
        known = tomllib.loads(template_text("conditions.toml"))
        for name, value in self.conditions:
            words, form = known.get(name, (name, "{}"))
            yield words, form.format(value)

    @cached_property
    def document(self) -> str:
        return self.store.spec_text(self.run.id)

    @cached_property
    def timeline(self) -> Timeline | None:
        """None: there is only one task."""
        is_alone = len(self._rows) < 2
        return None if is_alone else timeline_of_run(self.store, self.run.id, now=self.now)

    @cached_property
    def matrix(self) -> MatrixResult | None:
        """None: the run is of another kind."""
        return matrix_of(self.store, self.run)

    @cached_property
    def used(self) -> Mapping[str, Used]:
        """What tasks have used over time; that of a matrix is in its cells."""
        return {} if self.matrix else used_by_tasks(self.store, self.run.id, self._rows)

    @property
    def cards(self) -> Iterator[tuple[str, str]]:
        """The few figures that people look for."""
        run = self.run
        if self.seconds is not None:
            yield "took", duration(self.seconds)
        yield "begun", moment(run.started if run.started is not None else run.created)
        if run.exit_code:
            yield "exit code", str(run.exit_code)
        retried = sum(case.attempts > 1 for case in self.cases)
        if retried:
            yield "tried again", counted(retried, "case")
        if self.matrix:
            passed = self.matrix.counts[CellVerdict.PASSED]
            yield "cells that passed", f"{passed:,} of {len(self.matrix.cells):,}"
        if self.measures:
            yield "measured", f"{len(self.measures):,} series"
        yield from self._changes()
        yield from provided_in(self.store, self.run.id)
        if commit := run.tags.get("git.commit", ""):
            yield "commit", cut(commit, 8).removesuffix(" …")

    def _changes(self) -> Iterator[tuple[str, str]]:
        compared = [one for one in self.measures if one.verdict]
        # A judged change tells more than a share, which may be noise.
        if compared:
            for verdict in ("regressed", "improved"):
                count = sum(one.verdict == verdict for one in compared)
                yield f"{verdict} since {self.before}", f"{count:,} of {len(compared):,}"
        elif self.before and self.measures:
            signs = {"lower": 1, "higher": -1}
            changes = ((one.change or 0.0) * signs.get(one.better, 0) for one in self.measures)
            worse = sum(change >= _LEAST_CHANGE for change in changes)
            yield f"worse by 5% or more than {self.before}", f"{worse:,} of {len(self.measures):,}"


def provided_in(store: Store, run: str) -> Iterator[tuple[str, str]]:
    """Return what a provider has made and measured for a run: names and values, for people."""
    counts = count_instances(store.run_folder(run))
    if not counts:
        return
    yield "instances", f"{counts[MADE]} made, {counts[DELETED]} deleted"
    measured = (read_provided(one.folder).items() for one in store.attempts(run))
    for name, series in grouped(pair for items in measured for pair in items).items():
        values = [value for points in series for _, value in points]
        middle, most = (number_text(one, 3) for one in (sum(values) / len(values), max(values)))
        yield cut(name, 40), f"{middle} on average, at most {most}"


def write_report(data: ReportData, name: str) -> bytes:
    """Write a report in the format of a name, ours or another package's; InputError: it failed."""
    try:
        write = REPORT_FORMATS.load(name)
    except ImportError as error:
        raise InputError(str(error)) from error
    try:
        made = write(data)
    except Exception as error:
        if name in REPORT_FORMATS.ours:
            raise
        # Whatever the code of another package raises is the fault of that package.
        said = f"{type(error).__name__}: {error}"
        raise InputError(f"report format {name} failed: {said}") from error
    if not isinstance(made, str | bytes):
        kind = type(made).__name__
        raise InputError(f"report format {name} returned {kind} in place of str or bytes")
    return made.encode() if isinstance(made, str) else made


def repeat_command(run: RunRow, key: str, *, is_alone: bool) -> str:
    """Return the command that runs one task of a run again."""
    # The path as it is here: the command is to be copied into this terminal.
    line = ["rankwise", "run", *(map(short_path, run.documents) if run.source else [run.name])]
    return shlex.join(line if is_alone else [*line, "--only", key])


def _conditions(found: Iterable[Mapping[str, object]]) -> list[tuple[str, str]]:
    """Put the conditions of all attempts together: what was equal is said once."""
    values = grouped(pair for one in found for pair in one.items())
    # When each was measured says nothing about how.
    return [(name, _condition(seen)) for name, seen in values.items() if name != "time"]


def _condition(seen: Sequence[object]) -> str:
    """Write the different values of a condition: numbers as the range that they are in."""
    numbers = [value for value in seen if isinstance(value, int | float)]
    if len(numbers) == len(seen):
        ends = (number_text(end(numbers), 3) for end in (min, max))
        return " to ".join(dict.fromkeys(ends))
    said = (value if isinstance(value, str) else json.dumps(value, default=str) for value in seen)
    texts = [*dict.fromkeys(said)]
    # More than three are no longer conditions, but data.
    return cut(" · ".join(texts[:3]) + f" and {len(texts) - 3} more" * (len(texts) > 3))
