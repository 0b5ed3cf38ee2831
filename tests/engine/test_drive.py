"""Runs that are driven to their end, on a compute that does what the test says."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rankwise.backends.base import Backend, Submission
from rankwise.backends.batch import backend as batch_backend
from rankwise.backends.batch.backend import BatchBackend
from rankwise.backends.batch.system import BatchJob
from rankwise.documents.site_models import ComputeConfig, SlurmConfig
from rankwise.engine.drive import Drive
from rankwise.engine.verdict import RunEnd
from rankwise.errors import ComputeFailure
from rankwise.node.files import give_up
from rankwise.plan import Measuring, Metric, Plan, Resources, Restart, RuntimeChoice, Task
from rankwise.runtimes.base import PreparedRuntime
from rankwise.store import ResultRow, State, Store
from rankwise.store.rows import Event
from tests.backends.test_batch_systems import QueueStandIn
from tests.engine.driven import Ends, FakeCompute, always, drive, end, prepared, states, task


def test_a_run_passes_if_all_its_tasks_do(store: Store) -> None:
    compute = FakeCompute(always("passed"))
    result, events = drive(store, compute, task("a"), task("b", "a"))
    assert (result.state, result.exit_code) == (State.PASSED, 0)
    assert compute.submitted == ["a", "b"]
    assert [event.kind for event in events] == [
        "run started",
        *("task started", "attempt ended", "task over") * 2,
        "run over",
    ]


def test_what_a_reader_of_measurements_should_know_is_said_once_and_kept(store: Store) -> None:
    def ends(job: Submission) -> tuple[str, int]:
        line = '{"metric": "latency", "value": 2.5, "unit": "us"}'
        (job.attempt.folder / "m.json").write_text(line)
        return "passed", 0

    metric = Metric(parser="json-lines", on="m.json", unit="ms")
    tasks = [dataclasses.replace(task(key), measuring=Measuring(metrics=(metric,))) for key in "ab"]
    result, events = drive(store, FakeCompute(ends), *tasks)
    assert result.state is State.PASSED
    remark = "latency is taken in ms, though the output says us"
    assert [event.reason for event in events if event.kind == "notice"] == [f"a: {remark}"]
    kept = store.conditions("p-1")
    assert [one["remarks"] for one in kept.values()] == [remark, remark]


def test_the_exit_code_is_that_of_the_first_task_that_failed(store: Store) -> None:
    def ends(job: Submission) -> tuple[str, int]:
        return ("failed", 7) if job.task.key == "b" else ("passed", 0)

    result, _ = drive(store, FakeCompute(ends), task("a"), task("b"), task("c", "b"), task("d"))
    assert (result.state, result.exit_code) == (State.FAILED, 7)
    assert states(store) == {"a": "passed", "b": "failed", "c": "not run", "d": "passed"}
    assert store.task_row("p-1", "c").reason == "needs b, which failed"


def test_no_more_runs_at_once_than_there_is_room_for(store: Store) -> None:
    compute = FakeCompute(always("passed"), cores=3)
    drive(store, compute, *(task(f"t{n}") for n in range(10)))
    assert compute.most_at_once == 3


def test_what_can_never_fit_is_not_run_and_the_run_is_not_green(store: Store) -> None:
    compute = FakeCompute(always("passed"))
    result, _ = drive(store, compute, task("big", cores=64), task("after", "big"), task("small"))
    assert states(store) == {"big": "not run", "after": "not run", "small": "passed"}
    assert store.task_row("p-1", "big").reason == "needs 64 cores, found 2"
    assert result.exit_code == 1


def test_a_task_is_tried_again_as_often_as_it_says(store: Store) -> None:
    outcomes = iter(["failed", "lost", "passed"])
    compute = FakeCompute(lambda job: (next(outcomes), 5))
    result, _ = drive(store, compute, task("a", most=2))
    assert result.state is State.PASSED
    assert [str(row.state) for row in store.attempts("p-1")] == ["failed", "lost", "passed"]


@pytest.mark.parametrize(("code", "attempts"), [(75, 3), (1, 1)])
def test_only_after_the_exit_codes_that_it_names_a_task_is_tried_again(
    store: Store, code: int, attempts: int
) -> None:
    restart = Restart(most=2, on_exit_codes=(75,))
    one = dataclasses.replace(task("a"), restart=restart)
    result, _ = drive(store, FakeCompute(always("failed", code)), one)
    assert (result.state, result.exit_code) == (State.FAILED, code)
    assert len(store.attempts("p-1")) == attempts


def test_the_last_try_counts(store: Store) -> None:
    result, _ = drive(store, FakeCompute(always("failed", 9)), task("a", most=1))
    assert (result.state, result.exit_code) == (State.FAILED, 9)
    assert len(store.attempts("p-1")) == 2


def test_what_a_compute_refuses_is_not_run_for_its_reason(store: Store) -> None:
    result, _ = drive(store, FakeCompute(always("refused")), task("a", most=3))
    assert states(store) == {"a": "not run"}
    assert store.task_row("p-1", "a").reason == "no room"
    assert result.exit_code == 1


def test_an_attempt_that_never_began_is_begun_again_by_the_next_client(store: Store) -> None:
    run = store.create_run(Plan(name="p", kind="k", tasks=(task("a"),)), "", now=0.0)
    folder = store.run_folder(run) / "a" / "1"
    store.begin_attempt(run, "a", marker="m1", folder=folder, now=1.0)
    compute = FakeCompute(always("passed"))
    result, _ = drive(store, compute, run=run)
    assert result.state is State.PASSED
    assert compute.submitted == ["a"]
    assert [str(row.state) for row in store.attempts(run)] == ["not run", "passed"]


def test_an_attempt_that_has_begun_is_not_begun_again(store: Store) -> None:
    run = store.create_run(Plan(name="p", kind="k", tasks=(task("a"), task("b", "a"))), "", now=0.0)
    folder = store.run_folder(run) / "a" / "1"
    store.begin_attempt(run, "a", marker="m1", folder=folder, now=1.0)
    folder.mkdir(parents=True)
    give_up(folder)  # as a runner would have taken it
    end(folder, "passed", 0)
    compute = FakeCompute(always("passed"))
    result, _ = drive(store, compute, run=run)
    assert result.state is State.PASSED
    assert compute.submitted == ["b"]


def test_an_attempt_whose_runner_is_gone_without_a_word_is_lost(store: Store) -> None:
    result, _ = drive(store, FakeCompute(always("lost")), task("a"))
    assert (result.state, result.exit_code) == (State.LOST, 1)
    assert "its runner was killed" in store.task_row("p-1", "a").reason


def test_as_many_run_at_once_as_fit_by_their_fractions_of_cores(store: Store) -> None:
    compute = FakeCompute(always("passed"), cores=3)
    tasks = [task(f"t{number}", cores=0.1) for number in range(60)]
    result, _ = drive(store, compute, *tasks)
    assert result.state is State.PASSED
    assert compute.most_at_once == 30


def test_a_task_that_needs_the_whole_machine_runs_after_those_with_fractions(store: Store) -> None:
    small = [task("a", cores=0.3), task("b", cores=0.1)]
    whole = [task("whole", "a", "b", cores=1), task("unsaid", "a", "b")]
    result, _ = drive(store, FakeCompute(always("passed"), cores=1), *small, *whole)
    assert states(store) == {"a": "passed", "b": "passed", "whole": "passed", "unsaid": "passed"}
    assert result.state is State.PASSED


def test_a_machine_with_an_odd_share_of_a_core_runs_what_says_nothing(store: Store) -> None:
    wide = dataclasses.replace(task("wide"), width=64)
    result, _ = drive(store, FakeCompute(always("passed"), cores=2.3336666), wide)
    assert result.state is State.PASSED


def test_what_never_fits_is_told_in_cores(store: Store) -> None:
    drive(store, FakeCompute(always("passed"), cores=2), task("big", cores=2.5))
    assert store.task_row("p-1", "big").reason == "needs 2.5 cores, found 2"


@pytest.mark.parametrize("first", ["soft", "other"])
def test_a_run_with_a_soft_failure_and_a_cancelled_task_is_cancelled(
    store: Store, first: str
) -> None:
    ends = by_key(soft=("failed", 7), other=("cancelled", 130))
    soft = dataclasses.replace(task("soft"), is_soft=True)
    tasks = [soft, task("other")] if first == "soft" else [task("other"), soft]
    result, _ = drive(store, FakeCompute(ends, cores=2), *tasks)
    assert states(store) == {"soft": "failed", "other": "cancelled"}
    assert (result.state, result.exit_code) == (State.CANCELLED, 130)


def test_a_soft_task_that_is_cancelled_is_not_forgiven(store: Store) -> None:
    soft = dataclasses.replace(task("soft"), is_soft=True)
    compute = FakeCompute(by_key(soft=("cancelled", 130), a=("passed", 0)), cores=2)
    result, _ = drive(store, compute, soft, task("a"))
    assert (result.state, result.exit_code) == (State.CANCELLED, 130)


def test_a_cancelled_run_starts_nothing_more(store: Store) -> None:
    def ends(job: Submission) -> tuple[str, int]:
        store.want_cancel("p-1", now=2.0)
        return "cancelled", 130

    compute = FakeCompute(ends, cores=1)
    result, _ = drive(store, compute, task("a"), task("b"), task("c", "a"))
    assert (result.state, result.exit_code) == (State.CANCELLED, 130)
    assert compute.submitted == ["a"]
    assert states(store) == {"a": "cancelled", "b": "cancelled", "c": "not run"}


def test_a_run_that_had_passed_before_it_was_cancelled_has_passed(store: Store) -> None:
    def ends(job: Submission) -> tuple[str, int]:
        store.want_cancel("p-1", now=2.0)
        return "passed", 0

    result, _ = drive(store, FakeCompute(ends), task("a"))
    assert (result.state, result.exit_code) == (State.PASSED, 0)


def test_a_listener_is_told_only_of_what_is_in_the_store(store: Store) -> None:
    run = store.create_run(Plan(name="p", kind="k", tasks=(task("a"),)), "", now=0.0)
    seen = []

    def listen(event: Event) -> None:
        if event.kind == "task over":
            with Store.open(store.folder, read_only=True) as other:
                seen.append(other.task_row(run, "a").state)

    compute = FakeCompute(always("passed"))
    computes, updates = {"local": compute}, compute.updates
    rows = list(store.task_rows(run, bodies=True))
    one = Drive(store, run, rows, computes, updates, prepare=prepared, observer=listen, secrets={})
    one.go()
    assert seen == [State.PASSED]


# Optional tasks, and failures that end a run


def test_an_optional_task_that_does_not_fit_is_left_out_and_the_run_is_green(store: Store) -> None:
    large = dataclasses.replace(task("large", cores=9), is_optional=True)
    after = task("after", "large")
    ended, events = drive(store, FakeCompute(always("passed")), task("small"), large, after)
    assert (ended.state, ended.exit_code) == (State.PASSED, 0)
    assert ended.counts[State.SKIPPED] == 2
    (run,) = store.runs(1)
    assert store.task_row(run.id, "large").reason == "needs 9 cores, found 2"
    assert [event.state for event in events if event.task == "large"] == ["skipped"]


def test_an_optional_task_is_left_out_where_there_is_a_queue_too(store: Store) -> None:
    class Queueing(FakeCompute):
        def room(self) -> Resources:
            return Resources(cores=1e9)

    large = dataclasses.replace(task("large", cores=9), is_optional=True)
    compute = Queueing(always("passed"))
    ended, _ = drive(store, compute, large, task("small"))
    assert compute.submitted == ["small"]
    assert (ended.state, ended.counts[State.SKIPPED]) == (State.PASSED, 1)


def test_an_optional_task_that_fails_has_failed(store: Store) -> None:
    optional = dataclasses.replace(task("a"), is_optional=True)
    ended, _ = drive(store, FakeCompute(always("failed", 3)), optional)
    assert (ended.state, ended.exit_code) == (State.FAILED, 3)


def fail_fast(*tasks: Task) -> list[Task]:
    return [dataclasses.replace(one, ends_run=True) for one in tasks]


def by_key(**outcomes: tuple[str, int]) -> Ends:
    return lambda job: outcomes.get(job.task.key, ("passed", 0))


def test_a_failure_may_end_the_run(store: Store) -> None:
    compute = FakeCompute(by_key(a=("failed", 7), b=("cancelled", 130)), cores=2)
    tasks = fail_fast(task("a"), task("b"), task("c"), task("d", "c"))
    ended, _ = drive(store, compute, *tasks)
    assert compute.submitted == ["a", "b"]
    assert [label.split("/")[1] for label in compute.cancelled] == ["b"]
    (run,) = store.runs(1)
    rows = {row.key: (row.state, row.reason) for row in store.task_rows(run.id)}
    why = "fail-fast: a did not pass"
    assert rows == {
        "a": (State.FAILED, "it failed"),
        "b": (State.CANCELLED, why),
        "c": (State.NOT_RUN, why),
        "d": (State.NOT_RUN, why),
    }
    # It was not cancelled: it has failed.
    assert (ended.state, ended.exit_code) == (State.FAILED, 7)


def test_a_failure_that_is_tried_again_does_not_end_the_run(store: Store) -> None:
    tries = iter([("failed", 1), ("passed", 0), ("passed", 0)])
    compute = FakeCompute(lambda job: next(tries), cores=1)
    ended, _ = drive(store, compute, *fail_fast(task("a", most=1), task("b")))
    assert ended.state is State.PASSED


def test_what_did_not_fit_does_not_end_the_run(store: Store) -> None:
    compute = FakeCompute(always("passed"))
    ended, _ = drive(store, compute, *fail_fast(task("large", cores=9), task("b")))
    assert compute.submitted == ["b"]
    assert ended.state is State.FAILED


# Single tests


def with_results(text: str, outcome: str = "passed", code: int = 0) -> Ends:
    def ends(job: Submission) -> tuple[str, int]:
        (job.attempt.folder / "results.xml").write_text(text)
        return outcome, code

    return ends


def test_single_tests_are_stored_with_their_task(store: Store) -> None:
    text = (
        "<testsuites><testsuite><testcase classname='t' name='a' time='1.5'/>"
        "<testcase classname='t' name='b'><failure message='no'>E no</failure></testcase>"
        "<testcase classname='t' name='c'><skipped message='why'/></testcase>"
        "</testsuite></testsuites>"
    )
    one = dataclasses.replace(task("py"), results="results.xml")
    drive(store, FakeCompute(with_results(text, "failed", 1)), one)
    (run,) = store.runs(1)
    assert store.task_row(run.id, "py").reason == "1 of 3 tests failed: t::b: E no"
    assert store.results(run.id) == {
        "py": [
            ResultRow(name="t::a", state=State.PASSED, seconds=1.5),
            ResultRow(name="t::b", state=State.FAILED, message="E no"),
            ResultRow(name="t::c", state=State.SKIPPED, message="why"),
        ]
    }


@pytest.mark.parametrize("text", ["", "<a>", "<testsuites/>"])
def test_a_task_of_tests_that_names_none_has_failed(store: Store, text: str) -> None:
    one = dataclasses.replace(task("py"), results="results.xml")
    ended, events = drive(store, FakeCompute(with_results(text)), one)
    assert ended.state is State.FAILED
    (over,) = [event for event in events if event.kind == "task over"]
    assert over.reason.startswith("no test results: ")


def test_a_crash_stays_a_crash_whatever_the_tests_say(store: Store) -> None:
    text = "<testsuites><testcase name='a'><failure/></testcase></testsuites>"
    one = dataclasses.replace(task("py"), results="results.xml")
    ended, _ = drive(store, FakeCompute(with_results(text, "crashed", 139)), one)
    assert ended.state is State.CRASHED


def test_what_the_plan_does_not_want_is_over_with_its_reason_and_never_started(
    store: Store,
) -> None:
    said = dataclasses.replace(task("said"), skip="too slow there", is_optional=True)
    missing = dataclasses.replace(task("missing"), skip="no GPU was found", compute="nowhere")
    compute = FakeCompute(always("passed"))
    tasks = (said, missing, task("after", "said"), task("late", "missing"), task("a"))
    result, events = drive(store, compute, *tasks)
    assert compute.submitted == ["a"]
    assert states(store) == {
        "said": "skipped",
        "missing": "not run",
        "after": "skipped",
        "late": "not run",
        "a": "passed",
    }
    assert store.task_row("p-1", "said").reason == "too slow there"
    assert store.task_row("p-1", "missing").reason == "no GPU was found"
    assert store.attempts("p-1", "said") == []
    assert (result.state, result.exit_code) == (State.FAILED, 1)
    assert {event.task: event.reason for event in events if event.state is State.SKIPPED} == {
        "said": "too slow there",
        "after": "needs said, which was not needed",
    }


def test_a_run_is_green_where_the_document_itself_leaves_something_out(store: Store) -> None:
    said = dataclasses.replace(task("said"), skip="too slow there", is_optional=True)
    result, _ = drive(store, FakeCompute(always("passed")), said, task("a"))
    assert (result.state, result.exit_code) == (State.PASSED, 0)


def left_out(key: str, reason: str) -> Task:
    return dataclasses.replace(task(key), skip=reason, is_optional=True)


def look(key: str) -> Task:
    tags = {"runtime": "r", "machine": "m", "test": key, "part": "environment"}
    return dataclasses.replace(task(key), tags=tags, is_soft=True)


@pytest.mark.parametrize("looks", [(), (look("environment"),)])
def test_a_run_in_which_nothing_ran_is_not_green_and_says_why(
    store: Store, looks: tuple[Task, ...]
) -> None:
    tasks = [left_out("a", "needs gpu"), left_out("b", "needs gpu"), left_out("c", "too slow")]
    result, events = drive(store, FakeCompute(always("passed")), *looks, *tasks)
    assert (result.state, result.exit_code) == (State.NOT_RUN, 1)
    said = "nothing ran: needs gpu (2 tasks), too slow (1 task)"
    assert store.run("p-1").reason == said
    assert (events[-1].kind, events[-1].reason) == ("run over", said)


def test_a_run_with_optional_tasks_alone_of_which_none_fits_is_not_green(store: Store) -> None:
    large = dataclasses.replace(task("large", cores=9), is_optional=True)
    result, _ = drive(store, FakeCompute(always("passed")), large)
    assert (result.state, result.exit_code) == (State.NOT_RUN, 1)
    assert store.run("p-1").reason == "nothing ran: needs 9 cores, found 2"


def test_a_run_in_which_all_has_failed_softly_has_run(store: Store) -> None:
    soft = dataclasses.replace(task("soft"), is_soft=True)
    result, _ = drive(store, FakeCompute(always("failed", 7)), soft, left_out("a", "too slow"))
    assert (result.state, result.exit_code) == (State.PASSED, 0)


def test_a_soft_failure_is_shown_but_is_not_the_runs(store: Store) -> None:
    def ends(job: Submission) -> tuple[str, int]:
        return ("passed", 0) if job.task.key == "a" else ("failed", 7)

    soft = dataclasses.replace(task("soft"), is_soft=True)
    result, _ = drive(store, FakeCompute(ends), task("a"), soft)
    assert (result.state, result.exit_code) == (State.PASSED, 0)
    assert states(store) == {"a": "passed", "soft": "failed"}
    hard, _ = drive(store, FakeCompute(ends), task("a"), soft, task("hard"))
    assert (hard.state, hard.exit_code) == (State.FAILED, 7)


def test_a_client_that_takes_over_forgives_what_the_first_has_forgiven(store: Store) -> None:
    soft = dataclasses.replace(task("soft"), is_soft=True)
    run = store.create_run(Plan(name="p", kind="k", tasks=(soft, task("a"))), "", now=0.0)
    store.task_over(run, "soft", State.FAILED, exit_code=7, now=1.0)
    result, _ = drive(store, FakeCompute(always("passed")), run=run)
    assert (result.state, result.exit_code) == (State.PASSED, 0)


def test_no_more_of_one_lane_run_at_once_than_it_is_wide(store: Store) -> None:
    compute = FakeCompute(always("passed"), cores=8)
    narrow = [dataclasses.replace(task(f"n{n}"), lane="machine", lane_width=2) for n in range(6)]
    drive(store, compute, *narrow)
    assert compute.most_at_once == 2
    compute = FakeCompute(always("passed"), cores=8)
    drive(store, compute, *narrow, *(task(f"t{n}") for n in range(3)))
    assert compute.most_at_once == 5


def in_runtime(key: str, name: str) -> Task:
    choice = RuntimeChoice(name=name, kind="uv", requirements=(name,))
    return dataclasses.replace(task(key), runtime=choice)


def drive_with(
    store: Store, prepare: Callable[[RuntimeChoice], PreparedRuntime], *tasks: Task
) -> tuple[RunEnd, FakeCompute]:
    run = store.create_run(Plan(name="p", kind="k", tasks=tasks), "", now=0.0)
    compute = FakeCompute(always("passed"))
    return _driver(store, run, compute, prepare).go(), compute


def _driver(
    store: Store,
    run: str,
    compute: FakeCompute,
    prepare: Callable[[RuntimeChoice], PreparedRuntime],
) -> Drive:
    return Drive(
        store,
        run,
        list(store.task_rows(run, bodies=True)),
        {"local": compute},
        compute.updates,
        prepare=prepare,
        observer=lambda _: None,
        secrets={},
    )


def test_tasks_run_while_the_runtime_of_others_is_made(store: Store) -> None:
    has_run = threading.Event()

    def prepare(choice: RuntimeChoice) -> PreparedRuntime:
        if choice.name == "slow":
            assert has_run.wait(30)
        return PreparedRuntime()

    class Watched(FakeCompute):
        def submit(self, job: Submission) -> None:
            if job.task.key == "plain":
                has_run.set()
            super().submit(job)

    tasks = (in_runtime("a", "slow"), in_runtime("b", "slow"), task("plain"))
    run = store.create_run(Plan(name="p", kind="k", tasks=tasks), "", now=0.0)
    compute = Watched(always("passed"))
    one = _driver(store, run, compute, prepare)
    assert one.go().state is State.PASSED
    assert compute.submitted == ["plain", "a", "b"]


def test_a_runtime_that_cannot_be_made_is_tried_once_and_others_go_on(store: Store) -> None:
    asked: list[str] = []

    def prepare(choice: RuntimeChoice) -> PreparedRuntime:
        asked.append(choice.name)
        if choice.name == "broken":
            raise ComputeFailure("no version of it is there")
        return PreparedRuntime()

    broken = [in_runtime(f"b{number}", "broken") for number in range(3)]
    result, compute = drive_with(store, prepare, *broken, in_runtime("a", "good"))
    assert asked == ["broken", "good"]
    assert compute.submitted == ["a"]
    assert states(store) == {**{f"b{n}": "not run" for n in range(3)}, "a": "passed"}
    assert {store.task_row("p-1", f"b{n}").reason for n in range(3)} == {
        "no version of it is there"
    }
    assert result.exit_code == 1


def test_a_run_that_is_cancelled_does_not_wait_for_its_runtimes(store: Store) -> None:
    is_never = threading.Event()
    driven: list[Drive] = []

    def prepare(choice: RuntimeChoice) -> PreparedRuntime:
        driven[0].is_cancel_wanted = True
        is_never.wait(60)
        return PreparedRuntime()

    tasks = (in_runtime("a", "slow"), in_runtime("b", "slow"))
    run = store.create_run(Plan(name="p", kind="k", tasks=tasks), "", now=0.0)
    one = _driver(store, run, FakeCompute(always("passed")), prepare)
    driven.append(one)
    assert one.go().state is State.CANCELLED
    is_never.set()
    assert states(store) == {"a": "cancelled", "b": "cancelled"}


def test_a_batch_system_that_gives_no_answer_does_not_delay_tasks_elsewhere(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    is_over = threading.Event()

    class SlowQueue(QueueStandIn):
        def submit(self, job: BatchJob) -> str:
            assert is_over.wait(60), "what runs elsewhere has waited for this"
            raise ComputeFailure("refused")

    monkeypatch.setattr(batch_backend, "open_system", lambda choice: SlowQueue())
    compute = FakeCompute(always("passed"))
    choice = ComputeConfig(name="slow", backend="slurm", batch=SlurmConfig())
    other = BatchBackend(choice, compute.updates)
    computes: dict[str, Backend] = {"local": compute, "slow": other}
    own = [task("a"), task("b", "a"), task("c", "b")]
    slow = dataclasses.replace(task("slow"), compute="slow", folder=str(tmp_path))
    run = store.create_run(Plan(name="p", kind="k", tasks=(slow, *own)), "", now=0.0)

    def listen(event: Event) -> None:
        if event.kind == "task over" and event.task == "c":
            is_over.set()

    updates = compute.updates
    rows = list(store.task_rows(run, bodies=True))
    one = Drive(store, run, rows, computes, updates, prepare=prepared, observer=listen, secrets={})
    one.go()
    assert states(store) == {"slow": "not run", "a": "passed", "b": "passed", "c": "passed"}
