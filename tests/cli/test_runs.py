"""Verbs that start, end or go on with runs, with an engine that only pretends."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rankwise.cli.main import MODULES, VERBS
from rankwise.plan import NOTIFIED, REPORTED, Plan
from rankwise.steps.releases import deploy
from rankwise.store import State, Store
from rankwise.store.store import driving
from tests.cli.conftest import FakeEngine, Said, over
from tests.reports.made_runs import begin, end, make_run, one_task, passed_run, worker
from tests.reports.test_console import obeyed_by_github

Rankwise = Callable[..., Said]


@pytest.mark.usefixtures("planned")
def test_a_run_is_stored_driven_and_shown(rankwise: Rankwise, engine: FakeEngine) -> None:
    engine.act = over()
    said = rankwise("run", "job.yaml")
    assert said.code == 0
    assert engine.calls == ["secrets of train", "drive job-1"]
    assert said.out == (
        "job-1 starts: PytorchJob, 1 task\n"
        "note: gpu-cluster is not known here\n"
        "\n"
        "job-1 passed after 2.0 s\n"
        "  logs  rankwise logs job-1\n"
    )
    assert said.err == ""


def fail(store: Store, run: str) -> int:
    begin(store, run, logs={"worker-0": "zero\n", "worker-1": "ValueError: no\n"})
    end(
        store,
        run,
        state=State.FAILED,
        exit_code=7,
        culprit="worker-1",
        reason="worker 1 exited with code 7",
        processes=(worker(0), worker(1, 7)),
    )
    store.run_ended(run, State.FAILED, exit_code=7, now=1_700_000_010.0)
    return 7


@pytest.mark.usefixtures("planned")
def test_a_failure_is_explained_and_its_code_is_ours(
    rankwise: Rankwise, engine: FakeEngine
) -> None:
    engine.act = fail
    said = rankwise("run", "job.yaml")
    assert said.code == 7
    assert said.out.endswith(
        "\n"
        "train failed: worker 1 exited with code 7\n"
        "  worker 1 wrote last:\n"
        "  | ValueError: no\n"
        "\n"
        "job-1 failed after 10 s, exit code 7\n"
        "  logs  .rankwise/runs/job-1\n"
        "  more  rankwise explain job-1\n"
    )


@pytest.mark.usefixtures("planned")
def test_quiet_prints_only_failures(rankwise: Rankwise, engine: FakeEngine) -> None:
    engine.act = over()
    said = rankwise("run", "--quiet", "job.yaml")
    assert (said.code, said.out, said.err) == (0, "", "")
    engine.act = fail
    said = rankwise("run", "-q", "job.yaml")
    assert (said.code, said.out) == (7, "")
    assert "job-2 failed" in said.err


@pytest.mark.usefixtures("planned")
def test_programs_get_events_and_nothing_else(rankwise: Rankwise, engine: FakeEngine) -> None:
    engine.act = fail
    said = rankwise("run", "--json", "job.yaml")
    assert said.code == 7
    assert [json.loads(line)["kind"] for line in said.out.splitlines()] == [
        "run started",
        "run over",
    ]
    assert said.err == ""


@pytest.mark.usefixtures("planned")
def test_a_second_ctrl_c_leaves_the_run_alone_and_says_so(
    rankwise: Rankwise, engine: FakeEngine
) -> None:
    def interrupt(store: Store, run: str) -> int:
        raise KeyboardInterrupt

    engine.act = interrupt
    said = rankwise("run", "job.yaml")
    assert said.code == 130
    assert said.err == (
        "job-1 is detached: running tasks continue, and nothing more starts.\n"
        "  to look at it  rankwise status job-1\n"
        "  to end it      rankwise cancel job-1\n"
        "  to go on       rankwise resume job-1\n"
    )


def test_of_many_tasks_there_is_a_line_each(
    rankwise: Rankwise, store: Store, engine: FakeEngine
) -> None:
    make_run(store, *(one_task(f"task-{number}") for number in range(30)))
    engine.act = over(State.NOT_RUN, 1)
    said = rankwise("resume")
    assert said.code == 1
    assert "job-1 starts: PytorchJob, 30 tasks\n" in said.out
    assert "  30 tasks: 30 not run\n" in said.out
    assert "task-0, task-1, task-2 and 27 more not run\n" in said.out


@pytest.mark.usefixtures("engine", "planned")
def test_submit_starts_a_driver_and_prints_the_id_alone(
    rankwise: Rankwise, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    started: list[tuple[list[str], dict[str, Any]]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda line, **how: started.append((line, how)))
    said = rankwise("submit", "job.yaml")
    assert (said.code, said.out) == (0, "job-1\n")
    assert said.err == "note: gpu-cluster is not known here\n"
    ((line, how),) = started
    assert line[:4] == [sys.executable, "-P", "-m", "rankwise.cli.main"]
    assert line[4:] == ["resume", "job-1", "--quiet", "--store", str(project / ".rankwise")]
    assert how["start_new_session"]
    assert (project / ".rankwise" / "runs" / "job-1" / "engine.log").exists()


def test_a_run_goes_on(rankwise: Rankwise, store: Store, engine: FakeEngine) -> None:
    make_run(store)
    engine.act = over()
    assert rankwise("resume").code == 0
    assert engine.calls == ["drive job-1"]


def test_a_run_that_another_client_drives_is_refused_before_anything_is_shown(
    rankwise: Rankwise, store: Store, engine: FakeEngine
) -> None:
    run = make_run(store)
    with driving(store.run_folder(run), run):
        said = rankwise("resume")
    assert (said.code, said.out) == (2, "")
    assert f"job-1 is already running, in process {os.getpid()}\n" in said.err
    assert engine.calls == []


def test_a_run_that_is_over_is_not_driven_again(
    rankwise: Rankwise, store: Store, engine: FakeEngine
) -> None:
    passed_run(store)
    said = rankwise("resume")
    assert said.code == 0
    assert said.out == "job-1 has already ended: passed; to run it again:  rankwise run FILE\n"
    assert rankwise("resume", "--quiet").out == ""
    assert engine.calls == []


def test_a_run_is_cancelled(rankwise: Rankwise, store: Store, engine: FakeEngine) -> None:
    make_run(store)
    engine.act = over(State.CANCELLED, 130)
    said = rankwise("cancel")
    assert (said.code, said.out) == (0, "job-1 cancelled\n")
    assert engine.calls == ["cancel job-1"]
    assert rankwise("cancel").out == "job-1 has already ended: cancelled\n"


def test_a_run_that_does_not_end_is_reported(
    rankwise: Rankwise, store: Store, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(store)
    engine.act = lambda store, run: 0
    monkeypatch.setattr("rankwise.cli.run._PATIENCE_SECONDS", 0.0)
    said = rankwise("cancel")
    assert said.code == 1
    assert "still running: rankwise status job-1" in said.out


@pytest.mark.usefixtures("planned")
def test_a_plan_is_shown_and_nothing_is_made(rankwise: Rankwise, project: Path) -> None:
    said = rankwise("plan", "job.yaml")
    assert said.code == 0
    assert said.out.startswith("job: PytorchJob, 1 task\nnote: gpu-cluster")
    assert "  worker 0-1 on node 0-1\n    python train.py\n" in said.out
    assert json.loads(rankwise("plan", "job.yaml", "--json").out)["name"] == "job"
    assert rankwise("plan", "job.yaml", "--task", "train").code == 0
    said = rankwise("plan", "job.yaml", "--task", "training")
    assert (said.code, said.err) == (
        2,
        "rankwise: job.yaml: there is no task 'training', only train\n",
    )
    assert list(project.iterdir()) == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_its_command(verb: str) -> None:
    module = importlib.import_module(f"rankwise.cli.{MODULES[verb]}")
    assert callable(getattr(module, f"{verb}_command"))


@pytest.mark.usefixtures("planned")
def test_on_github_nothing_that_is_shown_is_obeyed(
    rankwise: Rankwise, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shout(store: Store, run: str) -> int:
        print("::error::by a task")
        return fail(store, run)

    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    engine.act = shout
    said = rankwise("run", "job.yaml")
    assert "::error::by a task" in said.out
    # But for the annotation, which is ours.
    assert [line[:27] for line in obeyed_by_github(said.out)] == ["::error title=train failed:"]
    said = rankwise("run", "--json", "job.yaml")
    assert "stop-commands" not in said.out
    engine.act = over()
    assert rankwise("run", "--quiet", "job.yaml").err == ""


def test_a_result_is_sent_also_if_the_report_cannot_be_written(
    rankwise: Rankwise, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[str]] = []
    monkeypatch.setattr(
        "rankwise.cli.results.send_result", lambda store, run, names: told.append(names)
    )
    tags = {REPORTED: "when-complete", NOTIFIED: "team"}
    plan = Plan(name="job", kind="PytorchJob", tasks=(one_task(),), tags=tags)
    with Store.open(project / ".rankwise") as store:
        run = store.create_run(plan, "", now=1.0)
        fail(store, run)
        (store.run_folder(run) / "report.html").mkdir()
    said = rankwise("resume", run)
    assert "a step after it failed" in said.err
    assert told == [["team"]]
    assert rankwise("resume", run).err == ""
    assert told == [["team"]]


# Runs in which nothing ran: everything that is told of them says so, and none of it is green

WHY = "nothing ran: needs gpu, which here does not have (2 tasks)"
MATRIX = """\
name: none
type: Matrix
runtimes: {old: current, new: current}
machines: {here: {features: [-gpu]}}
tests: [{name: a, run: "true", needs: gpu}]
"""
SUITE = """\
name: none
type: Suite
tests: [{name: a, run: "true", requires: {cores: 99999}, optional: true}]
"""


@pytest.fixture
def matrix(project: Path) -> str:
    (project / "matrix.yaml").write_text(MATRIX)
    return "matrix.yaml"


def test_a_matrix_in_which_nothing_could_run_is_not_green(
    rankwise: Callable[..., Said], matrix: str
) -> None:
    said = rankwise("run", matrix, "--junit", "results.xml", "--markdown", "summary.md")
    assert said.code == 1
    assert "none-1 not run" in said.out
    assert WHY in said.out
    (error,) = ElementTree.parse("results.xml").getroot().iter("error")
    assert error.get("message") == WHY
    counts = ElementTree.parse("results.xml").getroot().attrib
    assert (counts["tests"], counts["errors"], counts["skipped"]) == ("3", "1", "2")
    assert WHY in Path("summary.md").read_text()
    for verb in ("explain", "status"):
        assert WHY in rankwise(verb).out.replace("\n", " ")


def test_results_can_be_read_from_standard_output(
    rankwise: Callable[..., Said], matrix: str
) -> None:
    said = rankwise("run", matrix, "--quiet", "--junit", "-")
    assert ElementTree.fromstring(said.out).get("tests") == "3"
    assert not Path("-").exists()


def test_github_gets_an_error_if_nothing_ran(
    rankwise: Callable[..., Said], matrix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert f"::error title=none-1 not run::{WHY}\n" in rankwise("run", matrix).out


def test_a_suite_of_optional_tests_of_which_none_could_run_is_not_green(
    rankwise: Callable[..., Said], project: Path
) -> None:
    (project / "suite.yaml").write_text(SUITE)
    said = rankwise("run", "suite.yaml")
    assert said.code == 1
    assert "none-1 not run" in said.out
    assert "nothing ran: needs 99999 cores" in said.out


# `rankwise rollback`


def test_an_earlier_release_is_put_in_use_again(rankwise: Rankwise, project: Path) -> None:
    build = project / "build"
    build.mkdir()
    for name in ("first", "second"):
        (build / "file").write_text(name)
        deploy(build, project / "releases", name, keep=3)
    listed = rankwise("rollback", "releases", "--list")
    assert [line[:8].strip() for line in listed.out.splitlines()] == ["first", "* second"]
    said = rankwise("rollback", "releases")
    assert said.code == 0
    assert [line[:8].strip() for line in said.out.splitlines()] == ["* first", "second"]
    assert (project / "releases" / "current" / "file").read_text() == "first"
    data = json.loads(rankwise("rollback", "releases", "--to", "second", "--json").out)
    assert [(one["name"], one["current"]) for one in data] == [("first", False), ("second", True)]


def test_what_cannot_be_is_said(rankwise: Rankwise, project: Path) -> None:
    said = rankwise("rollback", "nowhere")
    assert (said.code, said.err) == (2, "rankwise: nowhere: there is no such folder\n")
    (project / "empty").mkdir()
    assert "there are no releases" in rankwise("rollback", "empty").err
    assert "there are no releases" in rankwise("rollback", "empty", "--list").err
