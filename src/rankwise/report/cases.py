"""What became of everything that was tested in a run, one by one, for those who count tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from rankwise.plan import REPEATED
from rankwise.report.explanation import Explanation, explain_task
from rankwise.report.terminal import clean
from rankwise.report.words import label
from rankwise.store import ResultRow, State, Store, TaskRow

_QUOTED_LINES = 30
_FRAME = re.compile(r"^([^\s:]+\.py):(\d+): ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
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
    """Whether nobody minds that it has failed."""

    @property
    def headline(self) -> str:
        """Give the first line of the reason."""
        return self.reason.partition("\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A task that was run several times."""

    name: str
    passed: int
    times: int

    @property
    def is_flaky(self) -> bool:
        """Tell whether it passed sometimes, and sometimes not."""
        return 0 < self.passed < self.times


def cases_of(store: Store, run: str) -> list[Case]:
    """Give everything that was tested, in the order of the plan."""
    results = store.results(run)
    found: list[Case] = []
    for row in store.task_rows(run, bodies=True):
        own = list(_single_tests(row, results.get(row.key, [])))
        found += own
        # What its tests cannot explain, the task must: a crash, a time limit, a failed check.
        is_explained = row.state is State.PASSED or any(one.state is State.FAILED for one in own)
        if not own or not (is_explained and row.state in (State.PASSED, State.FAILED)):
            found.append(_of_task(store, row))
    return found


def repeated_of(store: Store, run: str) -> list[Repeated]:
    """Give how often each task passed that was run several times."""
    counts: dict[str, list[bool]] = {}
    for row in store.task_rows(run, bodies=True):
        if row.body is not None and (name := row.body.tags.get(REPEATED)):
            counts.setdefault(name, []).append(row.state is State.PASSED)
    return [
        Repeated(name=name, passed=sum(tries), times=len(tries)) for name, tries in counts.items()
    ]


def _single_tests(row: TaskRow, results: list[ResultRow]) -> Iterator[Case]:
    for one in results:
        yield Case(
            task=row.key,
            name=one.name,
            state=one.state,
            seconds=one.seconds,
            reason=_last_words(one.message),
            details=one.message,
            place=_place(row, one.message),
            **_in_matrix(row),
        )


def _place(row: TaskRow, message: str) -> str:
    """Give the line of the test that pytest names last; else where the task is asked for."""
    if row.body is None:
        return ""
    for path, line in reversed(_FRAME.findall(message)):
        whole = Path(row.body.folder) / path
        if whole.is_file():
            return f"{whole}:{line}:1"
    return row.body.place


def _last_words(message: str) -> str:
    """Give the line of a test's report that says most: what pytest marks with E, or the first."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    marked = [line.removeprefix("E").strip() for line in lines if line.startswith("E  ")]
    return next(iter([*marked, *lines]), "")


def _of_task(store: Store, row: TaskRow) -> Case:
    details, log = "", None
    if row.state.is_over and not row.state.is_green and row.attempts:
        explained = explain_task(store, row, lines=_QUOTED_LINES)
        details, log = _quoted(explained), explained.log
    took = row.ended - row.started if row.started is not None and row.ended is not None else 0.0
    return Case(
        task=row.key,
        name=row.key,
        state=row.state,
        seconds=max(0.0, took),
        reason=clean(row.reason, keep_colours=False),
        details=details,
        place=row.body.place if row.body is not None else "",
        log=log,
        **_in_matrix(row),
    )


class _Place(TypedDict):
    cell: str
    test: str
    is_soft: bool


def _in_matrix(row: TaskRow) -> _Place:
    task = row.body
    if task is None:
        return {"cell": "", "test": "", "is_soft": False}
    names = [task.tags.get(name, "") for name in ("runtime", "machine")]
    return {
        "cell": ".".join(names) if all(names) else "",
        "test": task.tags.get("test", "") if all(names) else "",
        "is_soft": task.is_soft,
    }


def _quoted(explained: Explanation) -> str:
    parts = []
    for quote in explained.quotes:
        parts.append(f"{label(quote.process)} wrote last:")
        parts += [f"  {clean(line, keep_colours=False)}" for line in quote.lines]
    return "\n".join(parts)
