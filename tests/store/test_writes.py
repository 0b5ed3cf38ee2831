"""What is written of runs and tasks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rankwise.errors import StoreFailure
from rankwise.plan import Plan
from rankwise.store.rows import AttemptRow, Outcome, ProcessRow, RunRow, State, TaskRow
from rankwise.store.store import Store
from tests.store.invariants import check_run, check_store
from tests.store.samples import (
    FAILED,
    FOLDER,
    PASSED,
    PROCESSES,
    begin,
    live,
    new_run,
    plan_of,
    rich_task,
)


def kinds(store: Store, run: str) -> list[str]:
    return [event.kind for event in store.events_after(run)]


# Runs


def test_a_run_has_its_plans_name_and_a_number_of_its_own(store: Store) -> None:
    ids = [new_run(store, name=name) for name in ("job", "other", "job", "job-1")]
    assert ids == ["job-1", "other-1", "job-2", "job-1-1"]


def test_a_new_run_is_queued_with_all_its_tasks(store: Store) -> None:
    plan = plan_of("b", "a", experiment="speed")
    run = store.create_run(plan, "type: MpiJob # ✓\n", now=10.0)
    row = store.run(run)
    assert (row.name, row.number, row.kind, row.state) == ("job", 1, "MpiJob", State.QUEUED)
    assert (row.experiment, row.source, row.created) == ("speed", "job.yaml", 10.0)
    assert (row.tags, row.notices) == (plan.tags, plan.notices)
    assert (row.started, row.ended, row.exit_code, row.reason, row.wanted) == (None,) * 3 + (
        "",
        None,
    )
    assert store.spec_text(run) == "type: MpiJob # ✓\n"
    assert [(task.key, task.position) for task in store.task_rows(run)] == [("b", 0), ("a", 1)]
    assert {task.state for task in store.task_rows(run)} == {State.QUEUED}


def test_a_plan_without_tasks_makes_a_run_that_can_end(store: Store) -> None:
    run = store.create_run(Plan(name="job", kind="Suite", tasks=()), "", now=10.0)
    assert store.run_ended(run, State.PASSED, exit_code=0, now=11.0)


def test_a_plan_in_which_two_tasks_have_one_key_is_refused_as_a_whole(store: Store) -> None:
    with pytest.raises(StoreFailure, match=r"store\.db.*UNIQUE"):
        new_run(store, "a", "b", "a")
    assert store.runs() == []


def test_a_number_whose_folder_is_there_is_passed_over(store: Store) -> None:
    for number in (1, 2):
        (store.folder / "runs" / f"job-{number}").mkdir(parents=True)
    assert new_run(store) == "job-3"


def test_the_first_start_of_a_run_counts(store: Store) -> None:
    run = new_run(store)
    assert store.run_started(run, now=11.0)
    assert not store.run_started(run, now=12.0)
    assert (store.run(run).state, store.run(run).started) == (State.RUNNING, 11.0)


def test_the_first_end_of_a_run_counts(store: Store) -> None:
    run = new_run(store)
    store.run_started(run, now=11.0)
    store.task_over(run, "a", State.FAILED, exit_code=7, now=12.0)
    assert store.run_ended(run, State.FAILED, exit_code=7, reason="task a failed", now=13.0)
    ended = store.run(run)
    assert (ended.state, ended.exit_code, ended.reason) == (State.FAILED, 7, "task a failed")
    assert ended.ended == 13.0
    assert not store.run_ended(run, State.PASSED, exit_code=0, now=14.0)
    assert not store.run_started(run, now=15.0)
    assert store.run(run) == ended


def test_a_run_whose_task_is_not_over_cannot_end(store: Store) -> None:
    run = new_run(store, "a", "b")
    store.task_over(run, "a", State.PASSED, now=11.0)
    with pytest.raises(StoreFailure, match=r"job-1 cannot have ended \(passed\): its task b"):
        store.run_ended(run, State.PASSED, exit_code=0, now=12.0)
    assert store.run(run).state is State.QUEUED


def test_a_cancel_is_wanted_once_and_only_of_what_goes_on(store: Store) -> None:
    run, other = new_run(store), new_run(store)
    assert store.wanted(run) is None
    assert store.want_cancel(run, now=11.0)
    assert not store.want_cancel(run, now=12.0)
    assert store.wanted(run) == store.run(run).wanted == "cancel"
    assert store.wanted(other) is None

    store.task_over(other, "a", State.PASSED, now=11.0)
    store.run_ended(other, State.PASSED, exit_code=0, now=12.0)
    assert not store.want_cancel(other, now=13.0)
    assert store.wanted(other) is None


def test_what_happens_to_a_run_that_is_not_there_is_a_failure(store: Store) -> None:
    writes: tuple[Callable[[], bool], ...] = (
        lambda: store.run_started("job-9", now=1.0),
        lambda: store.want_cancel("job-9", now=1.0),
        lambda: store.run_ended("job-9", State.PASSED, exit_code=0, now=1.0),
    )
    for write in writes:
        with pytest.raises(StoreFailure, match=r"store\.db: nothing in runs has id job-9"):
            write()
    with pytest.raises(StoreFailure, match=r"store\.db.*FOREIGN KEY"):
        store.add_event("job-9", "anything", {}, now=1.0)


# Tasks


def test_the_first_end_of_a_task_counts(store: Store) -> None:
    run = new_run(store, "a", "b")
    reason = "needs 4 GPUs, found 0"
    assert store.task_over(run, "a", State.NOT_RUN, reason=reason, now=11.0)
    over = store.task_row(run, "a")
    assert (over.state, over.reason, over.exit_code) == (State.NOT_RUN, reason, None)
    assert (over.started, over.ended, over.attempts) == (None, 11.0, 0)
    assert not store.task_over(run, "a", State.PASSED, exit_code=0, now=12.0)
    assert store.task_row(run, "a") == over
    assert store.task_row(run, "b").state is State.QUEUED


def test_a_task_whose_attempt_is_not_over_cannot_be_over(store: Store) -> None:
    run = new_run(store)
    begin(store, run)
    with pytest.raises(StoreFailure, match=r"task a of run job-1 cannot be over \(lost\): its att"):
        store.task_over(run, "a", State.LOST, now=12.0)
    assert store.task_row(run, "a").state is State.SUBMITTING


def test_a_task_that_is_not_there_cannot_be_over(store: Store) -> None:
    run = new_run(store)
    with pytest.raises(StoreFailure, match="nothing in tasks has run job-1, key z"):
        store.task_over(run, "z", State.PASSED, now=12.0)


@pytest.mark.parametrize("state", [state for state in State if not state.is_over])
def test_what_goes_on_is_no_end(store: Store, state: State) -> None:
    run = new_run(store)
    with pytest.raises(ValueError, match="is no end"):
        store.task_over(run, "a", state, now=12.0)
    with pytest.raises(ValueError, match="is no end"):
        store.run_ended(run, state, exit_code=0, now=12.0)


# Events


def test_every_change_is_an_event_once(store: Store) -> None:
    run, other = new_run(store), new_run(store)
    for _ in range(2):
        store.run_started(run, now=11.0)
        store.want_cancel(run, now=11.5)
    live(store, run)
    for _ in range(2):
        store.task_over(run, "a", State.PASSED, now=12.0)
        store.run_ended(run, State.PASSED, exit_code=0, now=13.0)
    assert kinds(store, run) == [
        "run_created",
        "run_started",
        "cancel_wanted",
        "attempt_begun",
        "attempt_submitted",
        "attempt_started",
        "attempt_ended",
        "task_over",
        "run_ended",
    ]
    assert kinds(store, other) == ["run_created"]


def test_an_event_of_the_callers_own_is_told_to_followers(store: Store) -> None:
    run = new_run(store)
    store.add_event(run, "notice", {"text": "✓", "numbers": [1, 2]}, now=11.0)
    event = store.events_after(run)[-1]
    assert (event.run, event.time, event.kind) == (run, 11.0, "notice")
    assert event.body == {"text": "✓", "numbers": [1, 2]}


# Odd values


def test_text_that_is_no_unicode_comes_back_as_it_was(store: Store) -> None:
    odd = "caf\udce9"
    plan = replace(plan_of(name=odd), source=f"/{odd}/job.yaml", tasks=(rich_task(odd),))
    run = store.create_run(plan, "", now=10.0)
    folder = Path(f"/{odd}/attempt")
    number = store.begin_attempt(run, odd, marker="rw-1", folder=folder, now=11.0)
    assert store.find_run(odd).source == f"/{odd}/job.yaml"
    assert store.attempts(run, odd)[0].folder == folder
    assert number == store.task_row(run, odd).attempts == 1
    assert store.task(run, odd) == rich_task(odd)


def test_text_with_quotes_and_zeros_comes_back_as_it_was(store: Store) -> None:
    run = new_run(store)
    reason = 'it\'s "so"; DROP TABLE runs; -- \0 \n'
    store.task_over(run, "a", State.FAILED, reason=reason, now=11.0)
    assert store.task_row(run, "a").reason == reason


# What is written of attempts


def test_an_attempt_is_announced_before_it_is_submitted(store: Store) -> None:
    run = new_run(store)
    assert store.begin_attempt(run, "a", marker="rw-1", folder=FOLDER, now=11.0) == 1
    (attempt,) = store.attempts(run)
    assert (attempt.run, attempt.task, attempt.number) == (run, "a", 1)
    assert (attempt.state, attempt.marker, attempt.folder) == (State.SUBMITTING, "rw-1", FOLDER)
    assert (attempt.begun, attempt.submitted, attempt.job_id) == (11.0, None, None)
    task = store.task_row(run, "a")
    assert (task.state, task.attempts, task.started) == (State.SUBMITTING, 1, None)


def test_a_submitted_attempt_keeps_its_first_job_id_until_it_starts(store: Store) -> None:
    run = new_run(store)
    number = begin(store, run)
    assert store.attempt_heard(run, "a", number, job_id="4711", now=12.0)
    assert not store.attempt_heard(run, "a", number, job_id="4712", now=13.0)
    (attempt,) = store.attempts(run)
    assert (attempt.state, attempt.job_id, attempt.submitted) == (State.SUBMITTING, "4711", 12.0)


def test_the_first_start_of_an_attempt_counts(store: Store) -> None:
    run = new_run(store)
    number = begin(store, run)
    assert store.attempt_heard(run, "a", number, has_started=True, now=12.0)
    assert not store.attempt_heard(run, "a", number, has_started=True, now=13.0)
    (attempt,) = store.attempts(run)
    assert (attempt.state, attempt.started) == (State.RUNNING, 12.0)
    task = store.task_row(run, "a")
    assert (task.state, task.started) == (State.RUNNING, 12.0)


def test_an_end_brings_the_outcome_its_processes_and_an_event(store: Store) -> None:
    run = new_run(store)
    number = begin(store, run)
    assert store.attempt_ended(run, "a", number, FAILED, PROCESSES)
    (attempt,) = store.attempts(run, "a")
    assert (attempt.state, attempt.exit_code, attempt.signal) == (State.FAILED, 7, None)
    assert (attempt.culprit, attempt.reason) == (FAILED.culprit, FAILED.reason)
    assert (attempt.started, attempt.ended) == (11.0, 12.0)
    assert store.processes(run, "a", number) == list(PROCESSES)
    event = store.events_after(run)[-1]
    assert (event.kind, event.time) == ("attempt_ended", 12.0)
    assert event.body == {
        "task": "a",
        "attempt": 1,
        "state": "failed",
        "exit_code": 7,
        "signal": None,
        "culprit": "rank-1",
        "reason": "rank 1 exited with code 7",
    }


def test_an_end_brings_the_time_at_which_the_runner_started_it(store: Store) -> None:
    run = new_run(store)
    number = begin(store, run)
    store.attempt_heard(run, "a", number, has_started=True, now=11.9)
    store.attempt_ended(run, "a", number, FAILED)
    (attempt,) = store.attempts(run, "a")
    assert (attempt.started, attempt.ended) == (11.0, 12.0)
    assert store.task_row(run, "a").started == 11.0


def test_an_end_leaves_it_open_what_becomes_of_the_task(store: Store) -> None:
    run = new_run(store)
    number = begin(store, run)
    store.attempt_ended(run, "a", number, FAILED)
    task = store.task_row(run, "a")
    assert (task.state, task.started, task.ended) == (State.SUBMITTING, 11.0, None)


def test_an_end_that_comes_twice_changes_nothing(store: Store) -> None:
    run = new_run(store)
    number = begin(store, run)
    store.attempt_ended(run, "a", number, PASSED, PROCESSES[:1])
    before = (store.attempts(run), store.processes(run, "a", number), store.events_after(run))
    again = (PASSED, PROCESSES[:1])
    other = (replace(FAILED, started=1.0), PROCESSES)
    for outcome, processes in (again, other):
        assert not store.attempt_ended(run, "a", number, outcome, processes)
    after = (store.attempts(run), store.processes(run, "a", number), store.events_after(run))
    assert after == before


def test_what_has_ended_cannot_be_submitted_or_started(store: Store) -> None:
    run = new_run(store)
    number = begin(store, run)
    never = Outcome(state=State.LOST, ended=12.0, reason="it was given up")
    store.attempt_ended(run, "a", number, never)
    before = store.attempts(run), store.task_row(run, "a")
    assert not store.attempt_heard(run, "a", number, job_id="1", now=13.0)
    assert not store.attempt_heard(run, "a", number, has_started=True, now=13.0)
    assert (store.attempts(run), store.task_row(run, "a")) == before
    assert before[0][0].started is None


def test_a_task_may_be_tried_again_when_its_attempt_is_over(store: Store) -> None:
    run = new_run(store)
    store.attempt_ended(run, "a", begin(store, run), FAILED, PROCESSES)
    assert begin(store, run) == 2
    store.attempt_heard(run, "a", 2, has_started=True, now=20.0)
    task = store.task_row(run, "a")
    assert (task.state, task.attempts, task.started) == (State.RUNNING, 2, 11.0)
    states = [attempt.state for attempt in store.attempts(run, "a")]
    assert states == [State.FAILED, State.RUNNING]
    assert store.processes(run, "a", 2) == []


def test_a_task_with_an_attempt_that_goes_on_is_not_tried_again(store: Store) -> None:
    run = new_run(store)
    begin(store, run)
    with pytest.raises(StoreFailure, match="cannot be tried again: its attempt 1 is not over"):
        begin(store, run)
    assert len(store.attempts(run)) == store.task_row(run, "a").attempts == 1


def test_a_task_that_is_over_is_not_tried_again(store: Store) -> None:
    run = new_run(store)
    live(store, run)
    with pytest.raises(StoreFailure, match="task a of run job-1 is over"):
        begin(store, run)
    assert (store.task_row(run, "a").state, store.task_row(run, "a").attempts) == (State.PASSED, 1)


def test_two_attempts_never_have_the_same_marker(store: Store) -> None:
    run = new_run(store, "a", "b")
    store.begin_attempt(run, "a", marker="rw-1", folder=FOLDER, now=11.0)
    with pytest.raises(StoreFailure, match=r"UNIQUE.*marker"):
        store.begin_attempt(run, "b", marker="rw-1", folder=FOLDER, now=11.0)
    assert store.task_row(run, "b").state is State.QUEUED


def test_an_event_of_an_attempt_that_was_not_begun_is_a_failure(store: Store) -> None:
    run = new_run(store)
    writes: tuple[Callable[[], bool], ...] = (
        lambda: store.attempt_heard(run, "a", 1, job_id="1", now=1.0),
        lambda: store.attempt_heard(run, "a", 1, has_started=True, now=1.0),
        lambda: store.attempt_ended(run, "a", 1, PASSED),
    )
    for write in writes:
        with pytest.raises(
            StoreFailure, match="nothing in attempts has run job-1, task a, number 1"
        ):
            write()
    with pytest.raises(StoreFailure, match="nothing in tasks has run job-1, key z"):
        begin(store, run, "z")


def test_an_end_whose_processes_cannot_be_stored_is_not_stored_either(store: Store) -> None:
    run = new_run(store)
    number = begin(store, run)
    with pytest.raises(StoreFailure):
        store.attempt_ended(run, "a", number, PASSED, [PROCESSES[0], PROCESSES[0]])
    assert store.attempts(run)[0].state is State.SUBMITTING
    assert store.attempt_ended(run, "a", number, PASSED, PROCESSES)


def test_an_attempt_ends_in_a_final_state(store: Store) -> None:
    run = new_run(store)
    with pytest.raises(ValueError, match="'running' is no end"):
        store.attempt_ended(run, "a", begin(store, run), Outcome(state=State.RUNNING, ended=1.0))


def test_why_an_attempt_waits_is_known_until_it_starts(store: Store) -> None:
    run = new_run(store)
    number = begin(store, run)
    assert store.attempt_heard(run, "a", number, waits="is pending: Resources", now=11.0)
    assert store.task_row(run, "a").reason == "is pending: Resources"
    store.attempt_heard(run, "a", number, has_started=True, now=11.0)
    assert store.task_row(run, "a").reason == ""
    assert not store.attempt_heard(run, "a", number, waits="is pending: Resources", now=11.0)


# Any order of writes, also wrong ones: what is over stays, and all rows agree

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
    """One run, written by a client that makes mistakes and repeats itself."""

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
