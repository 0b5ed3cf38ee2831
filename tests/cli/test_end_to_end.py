"""The real thing: documents are run in processes of their own, and looked at afterwards."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.fixture(autouse=True)
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


def test_a_job_fails_with_the_code_of_the_culprit() -> None:
    done = rankwise("run", document("bad", FAIL="1", SLEEP="60"), "--quiet")
    assert done.returncode == 7
    assert done.stdout == ""
    assert "  | something is wrong\n" in done.stderr
    told = rankwise("explain").stdout
    assert "first to fail  worker 1" in told
    assert "  | something is wrong\n" in told
    assert "    worker 0: ended by rankwise\n" in told


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


def test_a_submitted_job_is_cancelled_from_elsewhere() -> None:
    rankwise("submit", document("long", SLEEP="600"))
    _wait_for_output("long-1")
    done = rankwise("cancel", "long-1")
    assert (done.returncode, done.stdout) == (0, "long-1 cancelled\n")
    data = json.loads(rankwise("status", "--json").stdout)
    assert (data["state"], data["exit_code"]) == ("cancelled", 130)


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
    assert b"ending 2 processes ..." in screen
    assert rankwise("status").stdout.startswith("long-1  cancelled")


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
    """Read a screen until a text is on it; None: until whoever writes it has left."""
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
