"""What is made of the end of an attempt: its measurements, and the end of the run."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rankwise.files import read_left
from rankwise.plan import Check, RuntimeChoice, Task, is_look
from rankwise.records import CONDITIONS, AttemptEnd, read_processes
from rankwise.store import Outcome, ProcessRow, State, Store
from rankwise.store.samples import Sample


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of reading it."""

    end: AttemptEnd
    """A case that has measured nothing has failed, whatever its exit code."""
    samples: tuple[Sample, ...] = ()
    conditions: dict[str, Any] | None = None
    remarks: tuple[str, ...] = ()


def measure(
    task: Task, folder: Path, end: AttemptEnd, *, redact: Callable[[str], str] = str
) -> Measured:
    """Read what a task measures. Only reads, so it may be asked again."""
    if task.measuring is None or end.outcome != "passed":
        return Measured(end=end)
    # Most tasks measure nothing.
    from rankwise.checks.sources import AttemptOutput, Missing
    from rankwise.metrics.base import read_all

    material = AttemptOutput(task=task, folder=folder, started=end.started)

    def text_of(name: str) -> str:
        try:
            groups = material.sources(Check(kind="contains", on=name))
        except Missing as missing:
            raise OSError(str(missing)) from missing
        return "\n".join(source.text for _, sources in groups for source in sources)

    found = read_all(task.measuring.metrics, text_of)
    if found.faults:
        end = dataclasses.replace(
            end, outcome="failed", exit_code=1, reason="; ".join(map(redact, found.faults))
        )
        return Measured(end=end)
    return Measured(
        end=end, samples=found.samples, conditions=_conditions(task, folder), remarks=found.remarks
    )


def keep(store: Store, run: str, task: Task, attempt: int, measured: Measured) -> None:
    """Store what was measured."""
    if task.measuring is not None and measured.samples:
        store.add_samples(
            run,
            task.key,
            attempt,
            measured.samples,
            case=task.measuring.case,
            trial=task.measuring.trial,
            conditions=measured.conditions,
        )


def _conditions(task: Task, folder: Path) -> dict[str, Any] | None:
    """Join what the runner has read before and afterwards; None: it could not."""
    from rankwise.metrics.conditions import joined

    try:
        data = json.loads(read_left(folder / CONDITIONS))
        used = _own_seconds(read_processes(folder))
        conditions = joined(data["before"], data["after"], own_cpu_seconds=used)
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return {**conditions, **_versions(task.runtime)}


def _versions(runtime: RuntimeChoice) -> Mapping[str, str]:
    """Return the versions of what a task has run in, as far as they can be seen from here."""
    from rankwise.metrics.conditions import versions_in

    match runtime.kind:
        case "current":
            return versions_in(Path(sys.prefix))
        case "python":
            place = Path(runtime.python)
            return versions_in(place if place.is_dir() else place.parent.parent)
    return {}


def _own_seconds(processes: Sequence[ProcessRow]) -> float:
    """Return the CPU time of an attempt. A launcher's has that of its ranks in it, if they are its
    children: whichever is more, counts."""
    ranks = sum(one.cpu_seconds or 0.0 for one in processes if one.rank is not None)
    return max(ranks, sum(one.cpu_seconds or 0.0 for one in processes) - ranks)


_MOST_REASONS = 3


class RunVerdict:
    """Counts what has gone wrong, and what of that is forgiven."""

    def __init__(self) -> None:
        self._exit_code = 0
        self._soft: set[str] = set()
        self._looks: set[str] = set()
        """What says nothing of its own: whether something has run depends on the others."""
        self._forgiven: Counter[State] = Counter()
        self._left_out: Counter[str] = Counter()
        self._has_run = False
        self._has_passed = False

    def know(self, task: Task | None) -> None:
        """Learn of a task before it is over."""
        if task is not None and task.is_soft:
            self._soft.add(task.key)
        if task is not None and is_look(task):
            self._looks.add(task.key)

    def count(self, key: str, state: State, exit_code: int | None, reason: str = "") -> None:
        """Have a failure be the run's, unless its task is soft."""
        if state is State.SKIPPED:
            self._left_out[reason] += 1
        elif key not in self._looks:
            self._has_run = True
            self._has_passed = self._has_passed or state is State.PASSED
        if state.is_green:
            return
        if key in self._soft and state.has_failed:
            self._forgiven[state] += 1
        else:
            self._exit_code = self._exit_code or exit_code or 1

    @property
    def exit_code(self) -> int:
        """Give that of the first task whose failure counts; 1 if nothing ran."""
        return self._exit_code or int(bool(self.nothing_ran))

    @property
    def nothing_ran(self) -> str:
        """Say why nothing ran, though there was something to run; empty: something did."""
        if self._has_run or not self._left_out:
            return ""
        most = self._left_out.most_common(_MOST_REASONS)
        if len(self._left_out) == 1 == sum(self._left_out.values()):
            return f"nothing ran: {most[0][0]}"
        said = [f"{why} ({count} task{'s' * (count != 1)})" for why, count in most]
        if len(self._left_out) > len(most):
            said.append("…")
        return f"nothing ran: {', '.join(said)}"

    def state_of_run(self, all_counts: Mapping[State, int]) -> State:
        """Return the state of a run from those of its tasks, without what is forgiven."""
        counts = {state: count - self._forgiven[state] for state, count in all_counts.items()}
        only = {state for state, count in counts.items() if count and not state.is_green}
        if not only:
            return State.NOT_RUN if self.nothing_ran else State.PASSED
        if len(only) > 1 or (only == {State.NOT_RUN} and self._has_passed):
            return State.FAILED
        return only.pop()


Functions = Literal["call", "leave", "refuse"]
"""What to do with functions of the user's that judge an attempt, and with what it has submitted:
call and start them, as the driver of a run does; leave the attempt to one that does; or give it up,
as it is cancelled anyway."""


CANCELLED_CODE = 130
_WORTH_ANOTHER_TRY = (State.FAILED, State.CRASHED, State.TIMED_OUT, State.LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run has ended."""

    state: State
    exit_code: int
    counts: Mapping[State, int]


def _outcome(end: AttemptEnd) -> Outcome:
    return Outcome(
        state=State(end.outcome),
        started=end.started,
        ended=end.ended or time.time(),
        exit_code=end.exit_code,
        signal=end.signal,
        culprit=end.culprit,
        reason=end.reason,
    )


def _in_words(state: State) -> str:
    return {State.NOT_RUN: "was not run", State.CANCELLED: "was cancelled"}.get(state, str(state))
