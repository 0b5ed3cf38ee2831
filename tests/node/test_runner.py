"""The runner runs an order to its end, and what it writes about that is true."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from rankwise.node.processes import execute

RUNNER = Path(__file__).resolve().parents[2] / "src" / "rankwise" / "node" / "__main__.py"
MORE_FOR_RUNNERS = {"runner", "placeholders", "outcome", "machine"}
# Far more than anything here takes.
LIMIT_SECONDS = 200.0

_PR_CAPBSET_DROP, _CAP_SYS_ADMIN = 24, 21


def process(name: str, command: str | Sequence[str], **more: object) -> dict[str, Any]:
    """Describe one process as an order does."""
    return {"name": name, "role": "worker", "node": 0, "command": command, "rank": None, **more}


def python(code: str) -> list[str]:
    """Make a command of Python code."""
    return [sys.executable, "-I", "-c", code]


class Attempt:
    """An attempt folder, and a runner for it."""

    def __init__(self, folder: Path, *processes: Mapping[str, Any], nodes: int = 1, **more: Any):
        self.folder = folder / "attempt"
        self.folder.mkdir()
        self.marker = f"rw-{uuid.uuid4().hex[:16]}"
        self.order: dict[str, Any] = {
            "version": 2,
            "attempt": "test-1/train/1",
            "marker": self.marker,
            "folder": str(self.folder),
            "nodes": [
                {
                    "name": f"node{number}",
                    "address": f"127.0.0.{number + 1}",
                    "folder": f"{self.folder}/nodes/node{number}",
                    "cores": None,
                }
                for number in range(nodes)
            ],
            "processes": list(processes),
            "environment": {},
            "unset": [],
            "path": [],
            "files": {},
            "secrets": [],
            "timeout": None,
            "grace": 0.2,
            "log_bytes": 1_000_000,
            "heartbeat": 5.0,
            **more,
        }
        self.secrets: dict[str, str] = {}
        self.write()

    def write(self) -> None:
        """Write the order, as it is now."""
        (self.folder / "order.json").write_text(json.dumps(self.order))

    def start(
        self, prepare: Callable[[], object] | None = None, **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start a runner; `prepare` is called in it."""
        with (self.folder / "runner.log").open("wb") as trouble:
            job = subprocess.Popen(
                [sys.executable, "-I", "-S", RUNNER, "run", self.folder],
                stdin=subprocess.PIPE if self.secrets else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=trouble,
                env={**os.environ, **variables},
                preexec_fn=prepare,  # noqa: PLW1509 - pytest has no other threads here
                start_new_session=True,
            )
        if job.stdin:
            job.stdin.write(json.dumps(self.secrets).encode())
            job.stdin.close()
        return job

    def run(self, prepare: Callable[[], object] | None = None, **variables: str) -> dict[str, Any]:
        """Run it to its end."""
        return self.wait(self.start(prepare, **variables))

    def wait(self, job: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Wait for its end, after which nothing may be left."""
        try:
            code = job.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            job.terminate()
            job.wait(LIMIT_SECONDS)
            raise
        end = self.end()
        assert code == end["exit_code"] & 0xFF
        assert self.leftovers() == []
        return end

    def leftovers(self) -> list[str]:
        """Name the processes of this attempt that are still there."""
        found = []
        for one in psutil.process_iter():
            try:
                if one.environ().get("RANKWISE_ATTEMPT") == self.marker:
                    found.append(f"{one.pid} {' '.join(one.cmdline())}")
            except psutil.Error:
                continue
        return found

    def end(self, name: str = "") -> dict[str, Any]:
        """Read how the attempt, or one of its processes, ended."""
        return self._record(f"processes/{name}/end.json" if name else "end.json")

    def begin(self, name: str) -> dict[str, Any]:
        return self._record(f"processes/{name}/start.json")

    def log(self, name: str, suffix: str = "") -> str:
        return (self.folder / "processes" / name / f"output.log{suffix}").read_text()

    def trouble(self) -> str:
        """Read what the runner itself has to say."""
        return (self.folder / "runner.log").read_text()

    def wait_for(self, path: str) -> Path:
        """Wait until a file is in the attempt's folder."""
        return wait_until((self.folder / path).exists) and self.folder / path

    def _record(self, path: str) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.folder / path).read_text())
        return record


def wait_until(is_so: Callable[[], object]) -> Any:
    """Wait until something is true; give it."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (found := is_so()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
    return found


def without_privileges() -> None:
    """Take from this process, and what it executes, the right to have host names of its own."""
    ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN, 0, 0, 0)


def test_a_process_that_succeeds_passes(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "echo out; echo err >&2", rank=0))
    before = time.time()
    end = attempt.run()
    assert (end["outcome"], end["exit_code"], end["signal"]) == ("passed", 0, None)
    assert (end["culprit"], end["reason"]) == (None, "")
    assert before <= end["started"] <= end["ended"] <= time.time()
    assert attempt.log("worker-0") == "out\nerr\n"


def test_start_and_end_of_a_process_are_recorded(tmp_path: Path) -> None:
    busy = "import time, sys; x = b'x' * 50_000_000\nwhile time.process_time() < 0.1: pass"
    attempt = Attempt(tmp_path, process("worker-0", python(busy), role="worker", rank=3))
    attempt.run()
    begin, end = attempt.begin("worker-0"), attempt.end("worker-0")
    about = {"name": "worker-0", "role": "worker", "node": 0, "rank": 3}
    assert begin == {**about, "pid": begin["pid"], "started": end["started"]}
    assert begin["pid"] > 0
    assert end["started"] < end["ended"]
    assert (end["exit_code"], end["signal"], end["by_us"], end["log_lost"]) == (0, None, False, 0)
    assert end["peak_memory"] > 50_000_000
    assert end["cpu_seconds"] >= 0.1
    assert (attempt.folder / "processes" / "worker-0" / "heartbeat").exists()


def test_the_exit_code_is_the_culprits(tmp_path: Path) -> None:
    end = Attempt(tmp_path, process("worker-0", "exit 7")).run()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("failed", 7, "worker-0")
    assert end["reason"] == "worker-0 left with exit code 7"


def test_a_signal_is_a_crash(tmp_path: Path) -> None:
    end = Attempt(
        tmp_path, process("worker-0", python("import os; os.kill(os.getpid(), 11)"))
    ).run()
    assert (end["outcome"], end["exit_code"], end["signal"]) == ("crashed", 139, 11)
    assert end["reason"] == "worker-0 was ended by signal 11 (SIGSEGV)"


@pytest.mark.parametrize("number", [6, 9, 11, 15])
@pytest.mark.parametrize("line", ["sh -c 'kill -{number} $$'; exit $?", "exit {code}"])
def test_a_code_that_a_shell_gives_is_not_called_a_signal(
    tmp_path: Path, number: int, line: str
) -> None:
    line = line.format(number=number, code=128 + number)
    attempt = Attempt(tmp_path, process("worker-0", line))
    end = attempt.run()
    expected = ("failed", 128 + number, None)
    assert (end["outcome"], end["exit_code"], end["signal"]) == expected
    name = signal.Signals(number).name
    assert end["reason"] == (
        f"worker-0 left with exit code {128 + number}: so do shells whose command was ended by "
        f"signal {number} ({name})"
    )
    record = attempt.end("worker-0")
    assert (record["exit_code"], record["signal"]) == (128 + number, None)


def test_exit_codes_above_128_of_a_program_are_its_own(tmp_path: Path) -> None:
    end = Attempt(tmp_path, process("worker-0", ["/bin/sh", "-c", "exit 139"])).run()
    assert (end["outcome"], end["exit_code"], end["signal"]) == ("failed", 139, None)


@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [
        (["nonesuch"], 127, "cannot start 'nonesuch': No such file or directory"),
        (["/etc/passwd"], 126, "cannot start '/etc/passwd': [Errno 13] Permission denied"),
        (["/nonesuch/x", "y"], 127, "cannot start '/nonesuch/x': No such file or directory"),
        (["true", "\0"], 126, "cannot start 'true': embedded null byte"),
    ],
)
def test_a_command_that_cannot_be_started_says_why(
    tmp_path: Path, command: list[str], code: int, reason: str
) -> None:
    attempt = Attempt(tmp_path, process("worker-0", command))
    end = attempt.run()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("failed", code, "worker-0")
    assert reason in end["reason"]
    assert reason in attempt.log("worker-0")
    assert reason in attempt.end("worker-0")["reason"]


def test_a_folder_on_path_that_may_not_be_searched_has_no_such_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may search all of them, so the kernel's answer to others is given by a stand-in."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "execve", refuse)
    with pytest.raises(FileNotFoundError):
        execute(["nonesuch"], {"PATH": str(tmp_path)})
    (tmp_path / "closed").touch()
    with pytest.raises(PermissionError):
        execute(["closed"], {"PATH": str(tmp_path)})


def test_a_folder_that_cannot_be_entered_says_why(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "true"))
    (attempt.folder / "nodes").mkdir()
    (attempt.folder / "nodes" / "node0").write_text("a file")
    end = attempt.run()
    assert (end["outcome"], end["exit_code"]) == ("failed", 3)
    assert str(attempt.folder / "nodes" / "node0") in end["reason"]


def test_processes_are_sessions_without_input(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getsid(0) == os.getpid() == os.getpgid(0), sys.stdin.read())"
    attempt = Attempt(tmp_path, process("worker-0", python(code)))
    attempt.run()
    assert attempt.log("worker-0") == "True \n"


def test_signals_mean_to_processes_what_they_do_elsewhere(tmp_path: Path) -> None:
    code = (
        "import signal; print([signal.getsignal(one).name for one in "
        "(signal.SIGHUP, signal.SIGTERM, signal.SIGXFSZ, signal.SIGCHLD)])"
    )
    lines = f"yes | head -n 1; {sys.executable} -S -c '{code}'; grep SigBlk /proc/self/status"
    attempt = Attempt(tmp_path, process("worker-0", lines))
    attempt.run()
    # Python itself ignores SIGXFSZ. `yes` would complain if SIGPIPE were ignored.
    assert attempt.log("worker-0").splitlines() == [
        *("y", "['SIG_DFL', 'SIG_DFL', 'SIG_IGN', 'SIG_DFL']", "SigBlk:\t0000000000000000")
    ]


def test_no_descriptor_of_the_runner_is_inherited(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "exec ls /proc/self/fd"))
    attempt.run()
    # The last one is the folder that is listed.
    assert attempt.log("worker-0").split() == ["0", "1", "2", "3"]


def test_many_processes_run_at_once(tmp_path: Path) -> None:
    meet = "touch ../$RANK; while [ $(ls .. | grep -c '^[0-9]') -lt 20 ]; do sleep 0.05; done"
    workers = [
        process(f"worker-{rank}", meet, rank=rank, environment={"RANK": str(rank)})
        for rank in range(20)
    ]
    assert Attempt(tmp_path, *workers).run()["outcome"] == "passed"


def test_the_runner_ignores_a_hangup(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "until [ -e go ]; do sleep 0.05; done"))
    job = attempt.start()
    attempt.wait_for("processes/worker-0/start.json")
    job.send_signal(signal.SIGHUP)
    (attempt.folder / "nodes" / "node0" / "go").touch()
    assert attempt.wait(job)["outcome"] == "passed"


@pytest.mark.parametrize("verb", ["run", "rank"])
def test_little_is_loaded_to_start(tmp_path: Path, verb: str) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "true"))
    rest = [str(attempt.folder)] if verb == "run" else ["true"]
    told = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", RUNNER, verb, *rest],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "RANKWISE_FOLDER": str(attempt.folder), "PMI_RANK": "0"},
        text=True,
        check=True,
    ).stderr
    loaded = {line.rpartition("|")[2].strip() for line in told.splitlines()}
    slow = {
        "json",
        "re",
        "enum",
        "signal",
        "typing",
        "pathlib",
        "subprocess",
        "socket",
        "dataclasses",
    }
    assert "ctypes" in loaded
    assert loaded & {*slow, "contextlib", "logging", "tempfile", "traceback"} == set()
    own = {name.partition(".")[2] for name in loaded if name.startswith("rankwise_node.")}
    for_ranks = {"start", "files", "order", "processes", "output", "rank"}
    assert own == (for_ranks if verb == "rank" else {*for_ranks, *MORE_FOR_RUNNERS})
