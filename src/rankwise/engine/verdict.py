"""What is made of the end of an attempt: its measurements, and the end of the run."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankwise.files import read_left
from rankwise.plan import Check, Metric, RuntimeChoice, Task, is_look
from rankwise.records import CONDITIONS, PROCESSES, AttemptEnd, read_processes
from rankwise.store import ProcessRow, State
from rankwise.wording import counted

if TYPE_CHECKING:
    from rankwise.metrics.base import ParsedMetrics


def measure(
    task: Task, metrics: Sequence[Metric], folder: Path, started: float | None
) -> tuple[ParsedMetrics, dict[str, Any] | None]:
    """Read what a task that has passed has measured, and under which conditions.

    It only reads, so it may be asked again.
    """
    # Most tasks measure nothing.
    from rankwise.checks.sources import AttemptOutput, Missing
    from rankwise.metrics.base import read_all

    material = AttemptOutput(task=task, folder=folder, started=started)

    def text_of(name: str) -> str:
        try:
            groups = material.sources(Check(kind="contains", on=name))
        except Missing as missing:
            raise OSError(str(missing)) from missing
        return "\n".join(source.text for _, sources in groups for source in sources)

    # All of them, also after a fault: people mend all mistakes at once.
    found = read_all(metrics, text_of)
    conditions = _conditions(task, folder)
    if found.remarks:
        conditions = {**(conditions or {}), "remarks": "; ".join(found.remarks)}
    return found, conditions


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


# Notebooks, and what is made of them for people to look at.
_FOR_PEOPLE = (".ipynb", ".html", ".pdf", ".png", ".jpeg", ".gif", ".svg")
_COPY_SECONDS = 600.0


def copied_out(
    task: Task, folder: Path, label: str, end: AttemptEnd, redact: Callable[[str], str] = str
) -> AttemptEnd:
    """Copy what an attempt has left for people to a folder of its own at another place.

    What could not be copied makes a failure of it; it stays where it is.
    """
    places = folder.iterdir() if folder.is_dir() else ()
    # Not in copies of code, and in logs.
    own = (one for one in places if one.name not in ("nodes", PROCESSES))
    found = (file for one in own for file in (one, *one.rglob("*")))
    made = (file for file in found if str(file.relative_to(folder)) not in task.files)
    files = [file for file in made if file.suffix in _FOR_PEOPLE and file.is_file()]
    faults = [f"they could not be copied in {_COPY_SECONDS:g} s"]

    def copy() -> None:
        try:
            _copy(files, folder, task.outputs, label)
            faults.clear()
        # Whatever the package for that kind of place raises: it is its reason.
        except Exception as error:
            faults[:] = [str(error) or repr(error)]

    if not files:
        return end
    # Such packages have no limits that can be relied on, and cannot be stopped.
    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    thread.join(_COPY_SECONDS)
    if not (why := "".join(faults)):
        return end
    reason = f"{counted(len(files), 'file')} not copied to {task.outputs}/{label}: {redact(why)}"
    outcome = State.FAILED if end.outcome == State.PASSED else end.outcome
    return replace(end, outcome=outcome, reason="\n".join(filter(None, [end.reason, reason])))


def _copy(files: Sequence[Path], folder: Path, to: str, label: str) -> None:
    if "://" not in to:
        for file in files:
            target = Path(to, label, file.relative_to(folder))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        return
    from fsspec.core import url_to_fs

    there, root = url_to_fs(to)
    for file in files:
        place = f"{root.rstrip('/')}/{label}/{file.relative_to(folder)}"
        try:
            there.put_file(str(file), place)
        except FileNotFoundError:
            # Stores of objects have no folders, and may not let us make any.
            there.makedirs(place.rpartition("/")[0], exist_ok=True)
            there.put_file(str(file), place)
        if (size := there.info(place)["size"]) != file.stat().st_size:
            raise OSError(f"{place} has {size} bytes in place of {file.stat().st_size}")


def _own_seconds(processes: Sequence[ProcessRow]) -> float:
    """Return the CPU time of an attempt. A launcher's has that of its ranks in it, if they are its
    children: whichever is more, counts."""
    ranks = sum(one.cpu_seconds or 0.0 for one in processes if one.rank is not None)
    return max(ranks, sum(one.cpu_seconds or 0.0 for one in processes) - ranks)


_MOST_REASONS = 3


class RunVerdict:
    """How a run ends: how its tasks have ended, and what of that is forgiven."""

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self._exit_code = 0
        self._soft: set[str] = set()
        self._looks: set[str] = set()
        """Tasks that only look around: that they ran does not count as a run."""
        for task in tasks:
            if task.is_soft:
                self._soft.add(task.key)
            if is_look(task):
                self._looks.add(task.key)
        self._counts: Counter[State] = Counter()
        self._forgiven: Counter[State] = Counter()
        self._left_out: Counter[str] = Counter()
        self._counting: set[State] = set()
        """States of tasks that did not only look around."""

    def count(self, key: str, state: State, exit_code: int | None, reason: str = "") -> None:
        """Count a task that is over: its failure is the run's, unless the task is soft."""
        self._counts[state] += 1
        if state is State.SKIPPED:
            self._left_out[reason] += 1
        elif key not in self._looks:
            self._counting.add(state)
        if state.is_green:
            return
        # A soft task that was lost or cancelled has not failed: that is not forgiven.
        if key in self._soft and state.has_failed:
            self._forgiven[state] += 1
        else:
            self._exit_code = self._exit_code or exit_code or 1

    def end(self, *, is_failed: bool = False) -> RunEnd:
        """Return how the run ends, once all its tasks are counted.

        `is_failed`: a failure has ended it, and what was cancelled for that does not count.
        """
        counts = dict.fromkeys(State, 0) | self._counts
        is_cancelled = counts[State.CANCELLED] and not is_failed
        state = State.CANCELLED if is_cancelled else self._state()
        # That of the first task whose failure counts.
        code = self._exit_code or int(bool(self._nothing_ran()))
        return RunEnd(
            state=state,
            exit_code=CANCELLED_CODE if state is State.CANCELLED else code,
            counts=counts,
            reason=self._nothing_ran() if state is State.NOT_RUN else "",
        )

    def _nothing_ran(self) -> str:
        """Return why nothing ran, though there was something to run; empty: something did."""
        if self._counting or not self._left_out:
            return ""
        most = self._left_out.most_common(_MOST_REASONS)
        if self._left_out.total() == 1:
            return f"nothing ran: {most[0][0]}"
        said = [f"{why} ({counted(count, 'task')})" for why, count in most]
        if len(self._left_out) > len(most):
            said.append("…")
        return f"nothing ran: {', '.join(said)}"

    def _state(self) -> State:
        """Return the state of the run from those of its tasks, without what is forgiven."""
        only = {state for state in self._counts - self._forgiven if not state.is_green}
        if not only:
            return State.NOT_RUN if self._nothing_ran() else State.PASSED
        # Several kinds of trouble have no name of their own.
        if len(only) > 1 or (only == {State.NOT_RUN} and State.PASSED in self._counting):
            return State.FAILED
        return only.pop()


Functions = Literal["call", "leave", "refuse"]
"""What to do with functions of the user's that judge an attempt, and with what it has submitted:
call and start them, as the driver of a run does; leave the attempt to one that does; or give it up,
as it is cancelled anyway."""


CANCELLED_CODE = 130
FAILURES = (State.FAILED, State.CRASHED, State.TIMED_OUT, State.LOST)
"""How an attempt ends that is worth another try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run has ended."""

    state: State
    exit_code: int
    counts: Mapping[State, int]
    reason: str = ""
    """Why nothing ran."""
