"""The last screen of a run: it fits, begins with what failed first, and ends with a command."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from rankwise.plan import Plan
from rankwise.reports.terminal.console import GitHubSections, GitLabSections, Sections
from rankwise.reports.terminal.run_end import show_last
from rankwise.store import RunRow, State, Store
from tests.reports.made_runs import BEGUN, begin, end, make_run, one_task, passed_run, worker
from tests.reports.matrix_runs import Done, make_matrix
from tests.reports.measured_runs import osu_sweep
from tests.reports.test_console import obeyed_by_github

WIDTH, HEIGHT = 80, 24
LOG = "".join(
    f"line {number} of a long story that does not fit: {'x' * 90}\n" for number in range(40)
)


def screen(store: Store, run: str, *, width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """Return the lines of the window that the end of a run takes."""
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        height=height,
        force_terminal=True,
        color_system=None,
        markup=False,
        highlight=False,
    )
    show_last(store, store.run(run), console, Sections())
    found = []
    for line in stream.getvalue().splitlines():
        parts = max(1, math.ceil(cell_len(line) / width))
        found += [line[number * width : (number + 1) * width] for number in range(parts)]
    return found


def many(store: Store, kind: str, *, tasks: int = 300, red: int = 45) -> str:
    """Store a run in which the last ones of many tasks have failed, the last one first."""
    keys = [f"task-{number}" for number in range(tasks)]
    plan = Plan(
        name=kind.lower(),
        kind=kind,
        tasks=tuple(one_task(key, ranks=1) for key in keys),
        source=str(Path(f"{kind.lower()}.yaml").absolute()),
    )
    with store.together():
        run = store.create_run(plan, f"type: {kind}\n", now=BEGUN)
        store.run_started(run, now=BEGUN)
        for key in keys[:-red]:
            store.task_over(run, key, State.PASSED, exit_code=0, now=BEGUN + 1)
        for number, key in enumerate(keys[-red:]):
            begin(store, run, key, logs={"worker-0": LOG})
            reason = f"worker 0 exited with code {number + 1} {'because ' * (number % 20)}"
            if number % 3 == 0:
                reason += "\n  | and it said so\n" * 9
            end(
                store,
                run,
                key,
                state=State.FAILED,
                exit_code=number + 1,
                culprit="worker-0",
                reason=reason,
                after=100 - number,
                processes=(worker(0, number + 1),),
            )
        store.run_ended(run, State.FAILED, exit_code=45, now=BEGUN + 100)
    return run


@pytest.mark.parametrize("kind", ["PytorchJob", "Suite", "Sweep", "Pipeline"])
def test_dozens_of_failures_fit_on_a_screen(store: Store, kind: str) -> None:
    run = many(store, kind)
    for width, height in ((80, 24), (120, 50), (50, 24), (80, 18)):
        lines = screen(store, run, width=width, height=height)
        text = "\n".join(lines)
        # The prompt takes one.
        assert len(lines) <= height - 1, text
        assert re.search(r"\.\.\. and \d+ more", text)
        assert lines[-1].split() == ["more", "rankwise", "explain", run]
    # What failed first is quoted first, by what it wrote last.
    lines = screen(store, run)
    named = re.findall(r"^ *(task-\d+) +failed", "\n".join(lines), re.MULTILINE)
    assert list(dict.fromkeys(named))[:3] == ["task-299", "task-298", "task-297"]
    first = next(number for number, line in enumerate(lines) if "failed: worker 0 exited" in line)
    assert lines[first].startswith("task-299 failed: worker 0 exited with code 45")
    assert any("line 39 of" in line for line in lines)
    assert any(line.startswith(f"{run} failed") and "exit code 45" in line for line in lines)
    assert "255 passed, 45 failed" in "\n".join(lines)


def test_all_that_failed_is_named_where_there_is_room(store: Store) -> None:
    run = many(store, "Suite", tasks=20, red=3)
    text = "\n".join(screen(store, run, width=200, height=60))
    assert "more\n" not in text
    assert [name for name in ("task-17", "task-18", "task-19") if text.count(name) == 2] == [
        "task-17",
        "task-18",
        "task-19",
    ]
    assert "  again  rankwise run suite.yaml --failed\n" in text


def test_what_was_measured_fits_beside_what_failed(store: Store) -> None:
    run = osu_sweep(store)
    lines = screen(store, run)
    assert len(lines) <= HEIGHT - 1, "\n".join(lines)
    assert any(line.split()[:1] == ["latency"] for line in lines)
    assert any(line.startswith("osu-intel-4 crashed") for line in lines)
    assert lines[-1].split() == ["more", "rankwise", "explain", run]


def test_a_large_matrix_fits_with_what_is_red_in_it(store: Store) -> None:
    cells = {
        (f"runtime-{row}", f"machine-{column}", "test.py"): Done(took=0.5)
        for row in range(30)
        for column in range(20)
    }
    red = Done(state=State.FAILED, reason="exit code 1", log="wrong\n" * 30, took=0.5)
    for number in range(12):
        cells[f"runtime-{29 - number}", "machine-19", "test.py"] = red
    cells["runtime-3", "machine-5", "test.py"] = Done(state=State.NOT_RUN, reason="no GPU here")
    with store.together():
        run = make_matrix(store, cells)
    lines = screen(store, run)
    text = "\n".join(lines)
    assert len(lines) <= HEIGHT - 1, text
    # The first that are red, and none that is not.
    assert re.findall(r"^  (runtime-\d+) ", text, re.MULTILINE)[:2] == ["runtime-3", "runtime-18"]
    assert "runtime-0 " not in text
    assert "machine-19 " in text
    assert re.search(r"\.\.\. and \d+ runtimes and \d+ machines more", text)
    assert lines[-1].split() == ["more", "rankwise", "explain", run]


def test_a_run_that_passed_ends_with_a_command_too(store: Store) -> None:
    assert screen(store, passed_run(store))[-1] == "  logs  rankwise logs job-1"
    run = make_run(store, one_task("a"), one_task("b"), name="two")
    for key in ("a", "b"):
        store.task_over(run, key, State.PASSED, exit_code=0, now=BEGUN)
    store.run_ended(run, State.PASSED, exit_code=0, now=BEGUN)
    assert screen(store, run)[-1] == "  more  rankwise report two-1"


def folded(store: Store, run: RunRow, make: Callable[[io.StringIO], object]) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=1000, force_terminal=False, markup=False, highlight=False)
    sections = make(stream)
    assert isinstance(sections, GitHubSections | GitLabSections)
    show_last(store, run, console, sections)
    return stream.getvalue()


def test_on_a_ci_there_is_a_section_for_each_that_failed(store: Store) -> None:
    run = store.run(many(store, "Suite", tasks=60, red=55))
    log = folded(store, run, GitHubSections)
    obeyed = obeyed_by_github(log)
    assert len(obeyed) == 2 * 50
    assert (
        obeyed[0]
        == "::group::task-59 failed: worker 0 exited with code 55 " + "because " * 13 + "because"
    )
    assert obeyed[1] == "::endgroup::"
    # All that is known is in there: more than the summary has room for.
    assert "| line 0 of" in log
    assert "first to fail" in log
    assert log.rstrip().splitlines()[-2] == f"  more   rankwise explain {run.id}"
    log = folded(store, run, GitLabSections)
    assert log.count("section_start:") == log.count("section_end:") == 50
    assert log.rstrip().endswith(f"rankwise explain {run.id}")


def test_what_a_process_wrote_cannot_command_a_ci(store: Store) -> None:
    run = make_run(store, one_task("::endgroup::", ranks=1), one_task("b", ranks=1))
    begin(
        store,
        run,
        "::endgroup::",
        logs={"worker-0": "::error::x\n##[add-mask]y\n\x1b[0Ksection_end:1:a\r\x1b[0K\n"},
    )
    reason = "it said:\n::set-output name=a::b\n%0A::error::c"
    end(
        store,
        run,
        "::endgroup::",
        state=State.FAILED,
        exit_code=1,
        culprit="worker-0",
        reason=reason,
        processes=(worker(0, 1),),
    )
    store.task_over(run, "b", State.PASSED, exit_code=0, now=BEGUN)
    store.run_ended(run, State.FAILED, exit_code=1, now=BEGUN + 1)
    log = folded(store, store.run(run), GitHubSections)
    assert obeyed_by_github(log) == ["::group::::endgroup:: failed: it said:", "::endgroup::"]
    log = folded(store, store.run(run), GitLabSections)
    # Those around our own words, and none of theirs.
    assert log.count("\x1b") == 4
    assert log.count("\r") == 2


# The real thing: documents are run in processes of their own, and looked at afterwards

RANKWISE = [sys.executable, "-m", "rankwise.cli.main"]
LIMIT = 120.0
PROGRAM = """
import os, sys, time
rank = int(os.environ["RANK"])
print("hello from", rank, flush=True)
if os.environ.get("FAIL") and rank == 1:
    print("something is wrong", file=sys.stderr)
    sys.exit(7)
time.sleep(float(os.environ.get("SLEEP", 0)))
"""
DOCUMENT = """
name: {name}
type: PytorchJob
worker:
  spec:
    command: python train.py
    code: {{path: ./src}}
environment_variables: {variables}
process_count_per_instance: 1
compute: {{target: local, instance_count: 2}}
"""


@pytest.fixture
def source(project: Path) -> Iterator[None]:
    (project / "src").mkdir()
    (project / "src" / "train.py").write_text(PROGRAM)
    yield
    # A test that fails leaves nothing behind either.
    for run in json.loads(rankwise("list", "--json").stdout or "[]"):
        if run["ended"] is None:
            rankwise("cancel", run["id"])


def document(name: str, **variables: str) -> str:
    Path(f"{name}.yaml").write_text(
        DOCUMENT.format(name=name, variables=json.dumps({"A": "1", **variables}))
    )
    return f"{name}.yaml"


def rankwise(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RANKWISE, *arguments], capture_output=True, text=True, check=False, timeout=LIMIT
    )


@pytest.mark.usefixtures("source")
def test_a_job_passes_and_is_remembered() -> None:
    done = rankwise("run", document("good"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "worker 0 | hello from 0\n" in done.stdout
    assert "worker 1 | hello from 1\n" in done.stdout
    assert "good-1 passed after" in done.stdout
    assert rankwise("status").stdout.startswith("good-1  passed")
    assert rankwise("logs", "--rank", "1").stdout == "hello from 1\n"
    assert rankwise("explain").stdout == "good-1 passed: there is nothing to explain.\n"


@pytest.mark.usefixtures("source")
def test_a_job_fails_with_the_code_of_the_culprit() -> None:
    done = rankwise("run", document("bad", FAIL="1", SLEEP="60"), "--quiet")
    assert done.returncode == 7
    assert done.stdout == ""
    assert "  | something is wrong\n" in done.stderr
    told = rankwise("explain").stdout
    assert "first to fail  worker 1" in told
    assert "  | something is wrong\n" in told
    assert "    worker 0: ended by rankwise\n" in told


@pytest.mark.usefixtures("source")
def test_events_tell_the_whole_story() -> None:
    done = rankwise("run", "--json", document("good"))
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["kind"] for event in events] == [
        "run started",
        "task started",
        "attempt ended",
        "task over",
        "run over",
    ]
    assert events[-1]["counts"] == {"passed": 1}


@pytest.mark.usefixtures("source")
def test_a_submitted_job_is_followed_from_elsewhere() -> None:
    done = rankwise("submit", document("good", SLEEP="0.5"))
    assert done.stdout == "good-1\n"
    told = rankwise("logs", "-f", "good-1")
    assert told.returncode == 0
    assert sorted(told.stdout.splitlines()) == [
        "worker 0 | hello from 0",
        "worker 1 | hello from 1",
    ]
    assert json.loads(rankwise("status", "--json").stdout)["state"] == "passed"


@pytest.mark.usefixtures("source")
def test_a_submitted_job_is_cancelled_from_elsewhere() -> None:
    rankwise("submit", document("long", SLEEP="600"))
    _wait_for_output("long-1")
    done = rankwise("cancel", "long-1")
    assert (done.returncode, done.stdout) == (0, "long-1 cancelled\n")
    data = json.loads(rankwise("status", "--json").stdout)
    assert (data["state"], data["exit_code"]) == ("cancelled", 130)


@pytest.mark.usefixtures("source")
def test_ctrl_c_ends_everything_in_good_order() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(RANKWISE[0], [*RANKWISE, "run", document("long", SLEEP="600")])
    screen = _read_until(terminal, b"hello from 1")
    os.write(terminal, b"\x03")
    screen += _read_until(terminal, None)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130, screen
    assert b"stopping 2 processes ..." in screen
    assert rankwise("status").stdout.startswith("long-1  cancelled")


@pytest.mark.usefixtures("source")
def test_a_reader_that_leaves_does_not_end_the_run() -> None:
    with subprocess.Popen(
        [*RANKWISE, "run", document("good", SLEEP="0.5")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(LIMIT) == 0
    assert rankwise("status").stdout.startswith("good-1  passed")


def _wait_for_output(run: str) -> None:
    deadline = time.monotonic() + LIMIT
    while "hello from 1" not in rankwise("logs", run).stdout:
        assert time.monotonic() < deadline


def _read_until(terminal: int, text: bytes | None) -> bytes:
    """Read a screen until a text is on it; None: until its writer has exited."""
    screen = b""
    deadline = time.monotonic() + LIMIT
    while text is None or text not in screen:
        assert time.monotonic() < deadline, screen
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                some = os.read(terminal, 65536)
            except OSError:
                break
            screen += some
            if not some:
                break
    return screen
