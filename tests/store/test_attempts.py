"""What is written of attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rankwise.errors import StoreFailure
from rankwise.store.rows import Outcome, State
from rankwise.store.store import Store
from tests.store.samples import FAILED, FOLDER, PASSED, PROCESSES, begin, live, new_run


def test_an_attempt_is_announced_before_it_is_submitted(store: Store) -> None:
    run = new_run(store)
    assert store.begin_attempt(run, "a", marker="rw-1", folder=FOLDER, now=11.0) == 1
    (attempt,) = store.attempts(run)
    assert (attempt.run, attempt.task, attempt.number) == (run, "a", 1)
    assert (attempt.state, attempt.marker, attempt.folder) == (State.SUBMITTING, "rw-1", FOLDER)
    assert (attempt.begun, attempt.submitted, attempt.job_id) == (11.0, None, None)
    task = store.task_row(run, "a")
    assert (task.state, task.attempts, task.started) == (State.SUBMITTING, 1, None)


def test_what_was_submitted_waits_until_somebody_sees_it_start(store: Store) -> None:
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
        "reason": "rank 1 left with exit code 7",
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


def test_what_happens_to_an_attempt_that_nobody_has_begun_is_a_failure(store: Store) -> None:
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
