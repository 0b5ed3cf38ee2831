"""Verbs that look at runs: status, list, logs, explain."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankwise.plan import Plan
from rankwise.store import State, Store
from rankwise.store.store import driving
from tests.cli.conftest import FakeEngine, Said
from tests.reports.made_runs import BEGUN, begin, end, failed_run, make_run, one_task, passed_run

Rankwise = Callable[..., Said]
pytestmark = pytest.mark.usefixtures("engine")


@pytest.mark.parametrize("verb", ["status", "list", "logs", "explain", "cancel", "resume"])
def test_without_a_store_it_is_said_how_to_make_one(rankwise: Rankwise, verb: str) -> None:
    said = rankwise(verb)
    assert said.code == 2
    assert "there is no store" in said.err
    assert not Path(".rankwise").exists()


@pytest.mark.parametrize("verb", ["status", "logs", "explain", "cancel", "resume"])
def test_without_runs_it_is_said_how_to_make_one(
    rankwise: Rankwise, store: Store, verb: str
) -> None:
    said = rankwise(verb)
    assert said.code == 2
    assert (
        said.err
        == f"rankwise: {store.path}: there are no runs yet; to make one:  rankwise run FILE\n"
    )


@pytest.mark.parametrize("verb", ["status", "logs", "explain", "cancel", "resume"])
def test_a_wrong_run_is_refused_with_the_nearest(
    rankwise: Rankwise, store: Store, verb: str
) -> None:
    passed_run(store)
    said = rankwise(verb, "jbo-1")
    assert said.code == 2
    assert "Did you mean job-1?" in said.err


def test_the_newest_run_is_meant_unless_another_is_named(rankwise: Rankwise, store: Store) -> None:
    passed_run(store)
    failed_run(store)
    passed_run(store, name="other")
    assert rankwise("status").out.startswith("other-1  passed")
    assert rankwise("status", "job").out.startswith("job-2  failed")
    assert rankwise("status", "job-1").out.startswith("job-1  passed")


def test_a_store_can_be_named(
    rankwise: Rankwise, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(project / "elsewhere") as store:
        passed_run(store)
    assert rankwise("status", "--store", "elsewhere").out.startswith("job-1")
    monkeypatch.setenv("RANKWISE_STORE", "elsewhere")
    assert rankwise("status").out.startswith("job-1")


def test_status_takes_in_what_has_ended(
    rankwise: Rankwise, store: Store, engine: FakeEngine
) -> None:
    passed_run(store)
    rankwise("status")
    run = make_run(store)
    rankwise("status")
    assert engine.calls == []
    begin(store, run, logs={})
    assert rankwise("status").out.startswith("job-2  running")
    assert engine.calls == ["look job-2"]


def test_a_run_with_a_client_is_not_refreshed(
    rankwise: Rankwise, store: Store, engine: FakeEngine
) -> None:
    run = make_run(store)
    begin(store, run, logs={})
    with driving(store.run_folder(run), run):
        said = rankwise("status", "--json")
    assert json.loads(said.out)["driver"] == os.getpid()
    assert engine.calls == []


def test_status_for_programs_has_all_tasks(rankwise: Rankwise, store: Store) -> None:
    make_run(store, *(one_task(f"task-{number}") for number in range(100)))
    data = json.loads(rankwise("status", "--json").out)
    assert data["id"] == "job-1"
    assert data["driver"] is None
    assert len(data["tasks"]) == 100


def test_runs_are_listed(rankwise: Rankwise, store: Store) -> None:
    assert rankwise("list").out == "There are no runs yet; to make one:  rankwise run FILE\n"
    for _ in range(3):
        passed_run(store)
    assert [line.split()[0] for line in rankwise("list").out.splitlines()] == [
        "job-3",
        "job-2",
        "job-1",
    ]
    assert len(rankwise("list", "--limit", "2").out.splitlines()) == 2
    assert [run["id"] for run in json.loads(rankwise("list", "--json").out)] == [
        "job-3",
        "job-2",
        "job-1",
    ]
    assert rankwise("list", "--limit", "0").code == 2


def test_logs_label_each_line_with_its_process(rankwise: Rankwise, store: Store) -> None:
    passed_run(store)
    assert rankwise("logs").out == "worker 0 | zero\nworker 1 | one\n"


@pytest.mark.parametrize(
    "options", [["--rank", "1"], ["--process", "worker-1"], ["--process", "worker 1"]]
)
def test_the_log_of_one_process_is_as_it_was_written(
    rankwise: Rankwise, store: Store, options: list[str]
) -> None:
    passed_run(store)
    said = rankwise("logs", *options)
    assert (said.code, said.out) == (0, "one\n")


def test_a_process_that_is_not_there_is_refused(rankwise: Rankwise, store: Store) -> None:
    passed_run(store)
    said = rankwise("logs", "--rank", "7")
    assert said.code == 2
    assert said.err == "rankwise: job-1 has no log of rank 7; there is worker-0 and worker-1\n"
    said = rankwise("logs", "--process", "chief")
    assert "no log of chief" in said.err


@pytest.mark.parametrize("options", [["--process", "worker-1"], ["--rank", "1"]])
def test_a_process_that_wrote_nothing_is_no_error(
    rankwise: Rankwise, store: Store, options: list[str]
) -> None:
    run = make_run(store)
    begin(store, run, logs={"worker-0": "zero\n", "worker-1": ""})
    said = rankwise("logs", *options)
    assert (said.code, said.out) == (0, "")
    assert f"{options[1]} has written nothing" in said.err


def test_a_run_without_logs_says_so(rankwise: Rankwise, store: Store) -> None:
    make_run(store)
    said = rankwise("logs")
    assert (said.code, said.out, said.err) == (0, "", "job-1 has started nothing yet\n")


def test_tasks_and_attempts_can_be_chosen(rankwise: Rankwise, store: Store) -> None:
    run = make_run(store, one_task("a", ranks=1), one_task("b", ranks=1))
    begin(store, run, "a", logs={"worker-0": "a first\n"})
    end(store, run, "a", state=State.FAILED, exit_code=1, is_over=False)
    begin(store, run, "a", logs={"worker-0": "a second\n"})
    begin(store, run, "b", logs={"worker-0": "b\n"})
    assert rankwise("logs").out == "a worker 0 | a second\nb worker 0 | b\n"
    assert rankwise("logs", "--task", "b").out == "worker 0 | b\n"
    assert rankwise("logs", "--task", "a", "--attempt", "1").out == "worker 0 | a first\n"
    assert rankwise("logs", "--task", "c").code == 2
    said = rankwise("logs", "--task", "b", "--attempt", "2")
    assert said.code == 2
    assert "there is no attempt 2; the last is 1" in said.err


def test_the_logs_of_a_run_that_is_over_are_followed_to_their_end(
    rankwise: Rankwise, store: Store
) -> None:
    passed_run(store)
    assert rankwise("logs", "-f").out == "worker 0 | zero\nworker 1 | one\n"


def test_logs_are_followed_as_they_grow_until_the_run_is_over(
    rankwise: Rankwise, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(store, one_task("a", ranks=1), one_task("b", ranks=1))
    folder = begin(store, run, "a", logs={"worker-0": "one\n"})
    log = folder / "processes" / "worker-0" / "output.log"

    def go_on(seconds: float) -> None:
        """Do the next step whenever the reader waits."""
        del seconds
        next(steps, None)

    def work() -> Iterator[None]:
        log.write_text("one\ntwo\nhalf")
        yield
        end(store, run, "a", state=State.FAILED, exit_code=1, is_over=False)
        begin(store, run, "a", logs={"worker-0": "again\n"})
        yield
        end(store, run, "a")
        begin(store, run, "b", logs={"worker-0": "b\n"})
        end(store, run, "b")
        store.run_ended(run, State.PASSED, exit_code=0, now=BEGUN + 9)
        yield

    steps = work()
    monkeypatch.setattr("rankwise.cli.log_reader.time.sleep", go_on)
    assert rankwise("logs", "-f").out == (
        "a worker 0 | one\n"
        "a worker 0 | two\n"
        "a worker 0 | half\n"
        "a worker 0 | again\n"
        "b worker 0 | b\n"
    )


def test_following_ends_when_no_client_drives_the_run(
    rankwise: Rankwise, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(store)
    begin(store, run, logs={"worker-0": "half a line"})
    monkeypatch.setattr("rankwise.cli.log_reader._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("rankwise.cli.log_reader.time.sleep", lambda seconds: None)
    said = rankwise("logs", "-f")
    assert said.out == "worker 0 | half a line\n"
    assert said.err == "no client drives this run: rankwise resume job-1\n"


def test_why_it_failed_is_explained(rankwise: Rankwise, store: Store) -> None:
    failed_run(store)
    said = rankwise("explain")
    assert said.code == 0
    assert said.out.startswith(
        "job-1 failed, exit code 7\n\ntrain failed: worker 1 exited with code 7\n"
    )
    assert "  | ValueError: no\n" in said.out


def test_what_passed_needs_no_explanation(rankwise: Rankwise, store: Store) -> None:
    passed_run(store)
    assert rankwise("explain").out == "job-1 passed: there is nothing to explain.\n"


def test_what_runs_is_explained_as_far_as_it_came(rankwise: Rankwise, store: Store) -> None:
    run = make_run(store, one_task("a"), one_task("b"))
    begin(store, run, "a", logs={"worker-0": "a\n"})
    assert rankwise("explain").out == "job-1 is running; so far, nothing is wrong.\n"
    end(store, run, "a", state=State.FAILED, exit_code=1, reason="worker 0 exited with code 1")
    assert rankwise("explain").out.startswith(
        "job-1 is running; so far, this is wrong.\n\na failed: worker 0"
    )


def test_one_task_can_be_explained(rankwise: Rankwise, store: Store) -> None:
    failed_run(store)
    assert rankwise("explain", "--task", "train").out.startswith("train failed: worker 1")
    assert rankwise("explain", "--task", "eval").code == 2


def test_a_ci_obeys_nothing_that_a_log_says(
    rankwise: Rankwise, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    failed_run(store)
    for command in ("logs", "explain", "status"):
        lines = rankwise(command).out.splitlines()
        begun = lines[0]
        assert begun.startswith("::stop-commands::rankwise-"), command
        assert lines[-1] == f"::{begun.removeprefix('::stop-commands::')}::"


def test_failures_that_are_allowed_are_explained_as_such(rankwise: Rankwise, store: Store) -> None:
    run = make_run(store)
    begin(store, run, logs={"worker-0": "ValueError: no\n"})
    end(store, run, state=State.FAILED, exit_code=7, reason="worker 0 exited with code 7")
    store.run_ended(run, State.PASSED, exit_code=0, now=BEGUN + 4)
    said = rankwise("explain").out
    assert said.startswith("job-1 passed, though this failed: `soft_fail` allows it.\n")
    assert "nothing to explain" not in said
    assert "worker 0 exited with code 7" in said


@pytest.mark.parametrize(
    "words", [("list", "-n"), ("trend", "latency", "--last"), ("compare", "a", "b", "--last")]
)
def test_a_number_that_no_store_can_take_is_refused(
    rankwise: Rankwise, store: Store, words: tuple[str, ...]
) -> None:
    passed_run(store)
    said = rankwise(*words, "9" * 20)
    assert said.code == 2
    assert "is not in the range 1<=x<=1000000000" in said.err


# `rankwise store merge`


def test_the_store_of_another_site_is_merged_once(
    rankwise: Rankwise, store: Store, project: Path
) -> None:
    passed_run(store)
    other = project / "site b's"
    with Store.open(other) as there:
        plan = Plan(name="job", kind="PytorchJob", tasks=(one_task(),))
        run = there.create_run(plan, "", now=BEGUN + 1)
        there.task_over(run, "train", State.CANCELLED, now=BEGUN + 2)
        there.run_ended(run, State.CANCELLED, exit_code=130, now=BEGUN + 2)
        make_run(there, name="going-on")
    said = rankwise("store", "merge", str(other))
    assert (said.code, said.out.splitlines()) == (
        0,
        [
            "1 run merged with 0 samples",
            "0 runs known already",
            "  job-1 is job-2 here: job-1 was taken",
            "  not over there, merge again later: going-on-1",
        ],
    )
    assert rankwise("status", "job-2").out.startswith("job-2  cancelled")
    again = rankwise("store", "merge", str(other / "store.db")).out.splitlines()
    assert again[:2] == ["0 runs merged with 0 samples", "1 run known already"]


def test_what_is_no_store_is_not_merged(rankwise: Rankwise, project: Path) -> None:
    said = rankwise("store", "merge", "nowhere.db")
    assert (said.code, said.err) == (2, "rankwise: nowhere.db: there is no store to merge\n")
    assert not (project / ".rankwise").exists()
    assert rankwise("store", "split", "nowhere.db").code == 2
