"""What is written of runs and tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rankwise.errors import StoreFailure
from rankwise.plan import Plan
from rankwise.store.rows import State
from rankwise.store.store import Store
from tests.store.samples import begin, live, new_run, plan_of, rich_task


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
