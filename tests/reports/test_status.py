"""How runs stand."""

from __future__ import annotations

import dataclasses
import io
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rankwise.plan import Plan, Process, Task
from rankwise.reports.failures import CaseResult, Repeated, RunExplanation
from rankwise.reports.status import Forecast, durations_before, status_data, status_of
from rankwise.reports.terminal.run_end import show_suite_end
from rankwise.reports.terminal.status import show_runs, show_status
from rankwise.steps.reporting import page
from rankwise.store import State, Store
from tests.reports.made_runs import BEGUN, begin, end, failed_run, make_run, one_task, passed_run
from tests.reports.test_data_formats import CASES, RUN

NOW = BEGUN + 65


def shown(store: Store, run: str, *, width: int = 1000, driver: int | None = None) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, highlight=False)
    show_status(console, status_of(store, store.run(run), driver=driver), now=NOW)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def test_times_of_a_clock_that_was_wrong_are_shown_as_they_are(store: Store) -> None:
    plan = Plan(name="odd", kind="Suite", tasks=(one_task(),))
    run = store.create_run(plan, "", now=1e20)
    store.run_started(run, now=1e20)
    assert "started 1e+20" in shown(store, run)
    stream = io.StringIO()
    show_runs(Console(file=stream, width=200), store.runs(), now=NOW)
    assert "1e+20" in stream.getvalue()


def test_a_run_that_failed_says_what_to_ask_next(store: Store) -> None:
    assert (
        shown(store, failed_run(store))
        == """\
job-1  failed after 4.0 s, exit code 7
  PytorchJob, from job.yaml, experiment mnist, started 2023-11-14 22:13

  train  failed  2.5 s  worker 1 exited with code 7

  worker 0  ended by rankwise  2.0 s  node 0  200 MiB, 1.5 s CPU
  worker 1  exit code 7        2.0 s  node 1  200 MiB, 1.5 s CPU

  why         rankwise explain job-1
  its output  rankwise logs job-1"""
    )


def test_what_runs_is_read_from_its_runners_records(store: Store) -> None:
    run = make_run(store)
    folder = begin(store, run, logs={"worker-0": "", "worker-1": ""})
    (folder / "processes" / "worker-0" / "start.json").write_text(f'{{"started": {BEGUN + 5}}}')
    text = shown(store, run, driver=4711)
    assert text.startswith("job-1  running for 1 min 05 s\n")
    assert "  worker 0  running      1 min 00 s  node 0\n" in text
    assert "  worker 1  not started" in text
    assert text.endswith(
        "  to look on  rankwise logs -f job-1\n  to end it   rankwise cancel job-1"
    )


def test_a_run_without_a_client_says_so(store: Store) -> None:
    run = make_run(store)
    begin(store, run, logs={})
    assert "  no client drives this run; to go on  rankwise resume job-1" in shown(store, run)


def test_a_run_that_was_just_submitted_is_not_called_abandoned(store: Store) -> None:
    run = make_run(store)
    status = status_of(store, store.run(run), driver=None)
    stream = io.StringIO()
    show_status(Console(file=stream, width=100), status, now=BEGUN + 2)
    assert "no client" not in stream.getvalue()


def test_a_run_that_is_to_end_says_so(store: Store) -> None:
    run = make_run(store)
    begin(store, run, logs={})
    store.want_cancel(run, now=BEGUN)
    assert "running for 1 min 05 s, to be cancelled\n" in shown(store, run)


def test_where_no_task_is_named_all_are_counted(store: Store) -> None:
    keys = [f"task-{number}" for number in range(100)]
    run = make_run(store, *(one_task(key, ranks=1) for key in keys))
    for key in keys:
        begin(store, run, key, logs={})
        end(store, run, key)
    assert "  ... 100 tasks: rankwise status job-1 --all\n" in shown(store, run)


def test_of_many_tasks_those_are_named_that_people_look_for(store: Store) -> None:
    keys = [f"task-{number}" for number in range(100)]
    run = make_run(store, *(one_task(key, ranks=1) for key in keys))
    for key in keys[:50]:
        begin(store, run, key, logs={})
        end(store, run, key)
    begin(store, run, "task-60", logs={})
    store.task_over(run, "task-70", State.NOT_RUN, reason="needs 4 GPUs, found 0", now=BEGUN)
    text = shown(store, run, driver=1)
    assert "  100 tasks: 48 queued, 1 running, 50 passed, 1 not run\n" in text
    assert "  task-60  running  1 min 04 s\n" in text
    assert "  task-70  not run              needs 4 GPUs, found 0\n" in text
    assert "task-1 " not in text
    assert "  ... and 98 more tasks: rankwise status job-1 --all\n" in text
    everything = status_of(store, store.run(run), driver=None, with_all=True)
    assert len(everything.tasks) == 100


def test_a_narrow_window_has_what_comes_last_on_lines_of_its_own(store: Store) -> None:
    text = shown(store, failed_run(store), width=40)
    assert all(len(line) <= 40 for line in text.splitlines())
    assert "  train  failed  2.5 s\n    worker 1 exited with code 7\n" in text


def test_programs_get_all_of_it(store: Store) -> None:
    run = failed_run(store)
    data = json.loads(json.dumps(status_data(status_of(store, store.run(run), driver=None))))
    assert data["id"] == "job-1"
    assert data["state"] == "failed"
    assert data["counts"] == {"failed": 1}
    assert data["tasks"][0]["reason"] == "worker 1 exited with code 7"
    assert data["processes"][1]["exit_code"] == 7
    assert json.loads(json.dumps(asdict(store.run(run))))["exit_code"] == 7


def test_runs_are_listed_with_the_newest_first(store: Store) -> None:
    passed_run(store)
    failed_run(store)
    stream = io.StringIO()
    show_runs(Console(file=stream, width=200), store.runs(), now=NOW)
    assert [line.rstrip() for line in stream.getvalue().splitlines()] == [
        "job-2  failed  4.0 s  2023-11-14 22:13  job.yaml",
        "job-1  passed  4.0 s  2023-11-14 22:13  job.yaml",
    ]
    show_runs(Console(file=stream, width=200), [], now=NOW)


def test_a_page_about_a_pipeline_shows_what_programs_say_as_text(store: Store) -> None:
    task = Task(key="a", processes=(Process(name="a", role="a", command="true"),))
    run = store.create_run(Plan(name="p", kind="Pipeline", tasks=(task,)), "", now=1.0)
    reason = "<img src=x> [click](http://evil) | `code` *bold*\nmore"
    store.task_over(run, "a", State.FAILED, reason=reason, exit_code=1, now=2.0)
    text = page(store, run)
    assert "<img" not in text.replace("\\<img", "")
    assert "\\[click\\]" in text
    [row] = [line for line in text.splitlines() if line.startswith("| a |")]
    assert row.replace("\\|", "").count("|") == 5


# forecast


def test_nothing_is_known_at_first() -> None:
    forecast = Forecast(waiting=3)
    assert forecast.seconds_left(1.0) is None
    forecast.started("a", 1.0)
    assert forecast.seconds_left(2.0) is None


def test_what_is_left_is_like_what_was() -> None:
    forecast = Forecast(waiting=4)
    forecast.started("a", 0.0)
    forecast.over("a", 10.0)
    forecast.started("b", 10.0)
    # Half of b, and two more, one at a time.
    assert forecast.seconds_left(15.0) == pytest.approx(25.0)


def test_the_run_before_counts_for_those_that_are_known() -> None:
    forecast = Forecast(waiting=2, known={"a": 60.0, "b": 20.0})
    forecast.started("a", 0.0)
    forecast.started("b", 0.0)
    # Two at a time: no sooner than the longest.
    assert forecast.seconds_left(10.0) == pytest.approx(50.0)


@given(st.lists(st.floats(0.001, 1e4), min_size=1, max_size=20), st.floats(0, 1e4))
def test_it_is_never_less_than_nothing(durations: list[float], more: float) -> None:
    forecast = Forecast(waiting=len(durations) + 1)
    now = 0.0
    for number, seconds in enumerate(durations):
        forecast.started(str(number), now)
        now += seconds
        forecast.over(str(number), now)
        left = forecast.seconds_left(now)
        assert left is not None
        assert left >= 0
    forecast.started("last", now)
    left = forecast.seconds_left(now + more)
    assert left is not None
    assert left >= 0


def test_durations_are_those_of_the_run_before(store: Store) -> None:
    first, second = passed_run(store), make_run(store)
    known = durations_before(store, store.run(second))
    passed = list(store.tasks_in(first, (State.PASSED,)))
    assert passed
    assert known == {row.key: (row.ended or 0) - (row.started or 0) for row in passed}
    assert durations_before(store, store.run(first)) == {}


# The last words on a suite


def suite_shown(cases: list[CaseResult], repeated: list[Repeated] | None = None) -> str:
    stream = io.StringIO()
    show_suite_end(
        Console(file=stream, width=120, force_terminal=False, highlight=False),
        RUN,
        cases=cases,
        repeated=repeated or [],
        explained=RunExplanation(first=(), others=()),
        folder=Path("logs"),
    )
    return stream.getvalue()


def test_a_table_and_counts_and_what_was_missing() -> None:
    text = suite_shown(CASES)
    rows = [line.split() for line in text.splitlines()]
    assert ["good", "passed", "1.2", "s"] in rows
    assert ["extra", "skipped", "needs", "2", "GPUs,", "found", "0"] in rows
    assert "6 tests: 2 passed, 1 failed, 1 timed out, 1 not run, 1 skipped" in text
    assert "1 test did not run, which the suite requires: needs 2 GPUs, found 0" in text
    assert "  | y" not in text


def test_of_many_tests_only_those_are_named_that_are_not_green() -> None:
    many = [
        CaseResult(task=f"t{number}", name=f"t{number}", state=State.PASSED) for number in range(50)
    ]
    text = suite_shown([*many, CASES[1]])
    assert "t17" not in text
    assert "bad" in text
    assert "51 tests: 50 passed, 1 failed" in text


def test_flaky_tests_are_named() -> None:
    text = suite_shown(
        [], [Repeated(name="a", passed=3, times=5), Repeated(name="b", passed=5, times=5)]
    )
    assert "a is flaky: it passed 3 of 5 times" in text
    assert "b is" not in text


def test_names_cannot_disturb_the_terminal() -> None:
    case = dataclasses.replace(CASES[0], name="\x1b[2J[bold]a\x07")
    assert "[bold]a" in suite_shown([case])
    assert "\x1b" not in suite_shown([case])
