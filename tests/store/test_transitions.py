"""Any order of writes, also wrong ones: what is over stays, and all rows agree."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rankwise.errors import StoreFailure
from rankwise.store.rows import AttemptRow, Outcome, ProcessRow, RunRow, State, TaskRow
from rankwise.store.store import Store
from tests.store.invariants import check_run, check_store
from tests.store.samples import FOLDER, PROCESSES, new_run

KEYS = ("a", "b", "c")

keys = st.sampled_from(KEYS)
numbers = st.integers(1, 3)
ends = st.sampled_from([state for state in State if state.is_over])
times = st.floats(0, 1e10)
outcomes = st.builds(
    Outcome,
    state=ends,
    ended=times,
    started=st.none() | times,
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    culprit=st.none() | st.just("rank-1"),
    reason=st.text(max_size=5),
)
groups_of_processes = st.sampled_from([(), PROCESSES[:1], PROCESSES])


class Life(RuleBasedStateMachine):
    """One run, written by somebody who errs and repeats himself."""

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.TemporaryDirectory()
        self.store = Store.open(Path(self.place.name))
        self.run = new_run(self.store, *KEYS)
        self.markers = 0
        self.over: dict[object, RunRow | TaskRow | AttemptRow] = {}

    def teardown(self) -> None:
        self.store.close()
        check_store(Path(self.place.name))
        self.place.cleanup()

    def write(self, action: Callable[[], bool | int]) -> bool:
        """Write, and check that the answer tells whether anything was changed."""
        before = self.everything()
        try:
            is_new = bool(action())
        except StoreFailure:
            is_new = False
        assert (self.everything() != before) == is_new
        return is_new

    def everything(self) -> list[object]:
        return [
            self.store.run(self.run),
            *self.store.task_rows(self.run),
            *self.store.attempts(self.run),
            *self.store.events_after(self.run),
        ]

    @rule(now=times)
    def start_run(self, now: float) -> None:
        self.write(lambda: self.store.run_started(self.run, now=now))

    @rule(now=times)
    def cancel(self, now: float) -> None:
        self.write(lambda: self.store.want_cancel(self.run, now=now))

    @rule(state=ends, now=times)
    def end_run(self, state: State, now: float) -> None:
        self.write(lambda: self.store.run_ended(self.run, state, exit_code=1, now=now))

    @rule(key=keys, state=ends, now=times)
    def end_task(self, key: str, state: State, now: float) -> None:
        self.write(lambda: self.store.task_over(self.run, key, state, now=now))

    @rule(key=keys, now=times)
    def begin(self, key: str, now: float) -> None:
        self.markers += 1
        marker = str(self.markers)
        self.write(
            lambda: self.store.begin_attempt(self.run, key, marker=marker, folder=FOLDER, now=now)
        )

    @rule(key=keys, number=numbers, now=times)
    def submit(self, key: str, number: int, now: float) -> None:
        self.write(lambda: self.store.attempt_heard(self.run, key, number, job_id="1", now=now))

    @rule(key=keys, number=numbers, now=times)
    def start(self, key: str, number: int, now: float) -> None:
        self.write(
            lambda: self.store.attempt_heard(self.run, key, number, has_started=True, now=now)
        )

    @rule(key=keys, number=numbers, outcome=outcomes, processes=groups_of_processes)
    def end(
        self, key: str, number: int, outcome: Outcome, processes: tuple[ProcessRow, ...]
    ) -> None:
        is_new = self.write(
            lambda: self.store.attempt_ended(self.run, key, number, outcome, processes)
        )
        if is_new:
            assert self.store.processes(self.run, key, number) == list(processes)

    @invariant()
    def what_is_over_stays_as_it_is(self) -> None:
        for row in self.everything():
            match row:
                case RunRow():
                    name: object = "run"
                case TaskRow():
                    name = row.key
                case AttemptRow():
                    name = (row.task, row.number)
                case _:
                    continue
            if row.state.is_over:
                assert self.over.setdefault(name, row) == row
            else:
                assert name not in self.over

    @invariant()
    def all_rows_agree(self) -> None:
        check_run(self.store, self.store.run(self.run))


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
