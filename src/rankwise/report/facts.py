"""All that a report says of a run, gathered once as plain data, for every way to write it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankwise.report.explanation import Explanation, Group, explain_run
from rankwise.report.figures import Figure, figures_of
from rankwise.report.judging import judged
from rankwise.report.matrix import Matrix, matrix_of
from rankwise.report.measures import Measure, Trend, measures_of, run_before, trends_of
from rankwise.report.timeline import Timeline, timeline_of_run
from rankwise.report.usage import Used, used_by_tasks
from rankwise.report.words import short_path
from rankwise.store import RunRow, State, Store, TaskRow

MOST_FAILURES = 25
"""So many are told in detail; of the others, the reasons."""
_LINES = 30
_MOST_TRENDS = 6
_MOST_RUNS = 40
_MOST_LETTERS = 400
_MOST_OF_A_MESSAGE = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """All that a report says of a run."""

    run: RunRow
    counts: Mapping[State, int]
    cases: Sequence[Case]
    failures: Sequence[Explanation]
    others: Sequence[Group]
    """What else is not green, by its reasons."""
    tests: Sequence[SingleTest] = ()
    measures: Sequence[Measure] = ()
    trends: Sequence[Trend] = ()
    figures: Sequence[Figure] = ()
    before: str = ""
    """The run that measures are compared with."""
    conditions: Sequence[tuple[str, str]] = ()
    document: str = ""
    timeline: Timeline | None = None
    """None: there is only one task."""
    matrix: Matrix | None = None
    """None: the run is of another kind."""
    used: Mapping[str, Used] = field(default_factory=dict)
    """What tasks have used over time; that of a matrix is in its cells."""
    folder: Path = Path()
    """Where the report will be: links to files begin there."""
    made: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def seconds(self) -> float | None:
        """How long the run took."""
        if self.run.started is None or self.run.ended is None:
            return None
        return self.run.ended - self.run.started


def gather(store: Store, run: RunRow, *, now: float) -> ReportData:
    """Gather all that a report says of a run; nothing is changed by it."""
    rows = list(store.task_rows(run.id, bodies=True))
    tasks = {row.key: row.body for row in rows if row.body is not None}
    explained = explain_run(store, run.id, most=MOST_FAILURES, lines=_LINES)
    cases = [_case(run, row, is_alone=len(rows) == 1) for row in rows]
    before = run_before(store, run)
    measures = measures_of(store, run.id, run.name, before=before, tasks=tasks)
    if before:
        measures = judged(store, measures, run=run, before=store.run(before))
    trends = trends_of(store, _telling(measures), run=run.id, most_runs=_MOST_RUNS)
    times = [(case.key, case.seconds) for case in cases if case.seconds is not None]
    matrix = matrix_of(store, run)
    return ReportData(
        run=run,
        counts=store.counts(run.id),
        cases=cases,
        failures=explained.first,
        others=explained.others,
        tests=_tests(store, run.id),
        measures=measures,
        trends=trends,
        figures=figures_of(measures, trends, times),
        before=before or "",
        conditions=_conditions(store.conditions(run.id).values()),
        document=store.spec_text(run.id),
        timeline=timeline_of_run(store, run.id, now=now) if len(rows) > 1 else None,
        matrix=matrix,
        used={} if matrix else used_by_tasks(store, run.id, rows),
        folder=store.run_folder(run.id),
        made=now,
    )


def repeat_command(run: RunRow, key: str, *, is_alone: bool) -> str:
    """Give the command that runs one task of a run again."""
    line = ["rankwise", "run", short_path(run.source) or run.name]
    return shlex.join(line if is_alone else [*line, "--only", key])


def _case(run: RunRow, row: TaskRow, *, is_alone: bool) -> Case:
    parameters = dict(row.body.tags) if row.body is not None else {}
    seconds = None
    if row.started is not None and row.ended is not None:
        seconds = row.ended - row.started
    return Case(
        key=row.key,
        state=row.state,
        reason=cut(row.reason),
        seconds=seconds,
        attempts=row.attempts,
        exit_code=row.exit_code,
        parameters=parameters,
        repeat=repeat_command(run, row.key, is_alone=is_alone),
    )


def _tests(store: Store, run: str) -> list[SingleTest]:
    return [
        SingleTest(
            task=task,
            name=one.name,
            state=one.state,
            seconds=one.seconds,
            message=cut(one.message, _MOST_OF_A_MESSAGE),
        )
        for task, results in store.results(run).items()
        for one in results
    ]


def cut(text: str, most: int = _MOST_LETTERS) -> str:
    """Shorten a text that nobody reads to its end."""
    return text if len(text) <= most else f"{text[:most]} …"


def _telling(measures: Sequence[Measure]) -> list[Measure]:
    """Choose the measures whose history is drawn: what is worse, then what has changed most."""
    known = [one for one in measures if one.before is not None]
    order = sorted(known, key=lambda one: (one.verdict != "regressed", -abs(one.change or 0.0)))
    return order[:_MOST_TRENDS]


def _conditions(found: Iterable[Mapping[str, object]]) -> list[tuple[str, str]]:
    """Put the conditions of all attempts together: what was equal is said once."""
    values: dict[str, list[str]] = {}
    for one in found:
        for name, value in one.items():
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            seen = values.setdefault(name, [])
            if text not in seen:
                seen.append(text)
    return [(name, _listed(seen)) for name, seen in values.items()]


def _listed(values: Sequence[str]) -> str:
    few = values[:3]
    more = f" and {len(values) - len(few)} more" if len(values) > len(few) else ""
    return cut(" · ".join(few) + more)
