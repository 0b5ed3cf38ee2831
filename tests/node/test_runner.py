"""The runner runs an order to its end, and what it writes about that is true."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
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

from rankwise.node import files
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


def test_the_exit_code_is_the_culprits(tmp_path: Path) -> None:
    end = Attempt(tmp_path, process("worker-0", "exit 7")).run()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("failed", 7, "worker-0")
    assert end["reason"] == "worker-0 exited with code 7"


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
        f"worker-0 exited with code {128 + number}: so do shells whose command was ended by "
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


# When things go wrong around it, the runner still tells the truth, or says that it cannot


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", '{"version": 1}', '{"version": 3, "processes": []}'),
        *('{"version": 1} {"version": 1}', "\x00\xff"),
    ],
)
def test_an_order_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "true"))
    (attempt.folder / "order.json").write_text(text, encoding="latin-1")
    assert attempt.start().wait() == 3
    assert f"cannot use {attempt.folder}/order.json" in attempt.trouble()
    assert "Traceback" not in attempt.trouble()
    assert not (attempt.folder / "claim").exists()


def test_a_folder_without_an_order_is_refused(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-I", "-S", RUNNER, "run", tmp_path], capture_output=True, check=False
    )
    assert told.returncode == 3
    assert b"No such file or directory" in told.stderr


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["run"], ["rank"], ["node"]])
def test_a_wrong_call_is_explained(arguments: list[str]) -> None:
    told = subprocess.run(
        [sys.executable, "-I", "-S", RUNNER, *arguments], capture_output=True, check=False
    )
    assert told.returncode == 2
    assert b"usage: run FOLDER" in told.stderr


def test_an_end_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "exit 7"))
    obstacle = attempt.folder / "end.json"
    (obstacle / "in the way").mkdir(parents=True)
    job = attempt.start()
    wait_until(lambda: f"cannot write {obstacle}" in attempt.trouble())
    shutil.rmtree(obstacle)
    assert attempt.wait(job)["exit_code"] == 7


def test_records_of_processes_are_tried_again_too(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "exit 7"))
    obstacle = attempt.folder / "processes" / "worker-0" / "end.json"
    (obstacle / "in the way").mkdir(parents=True)
    job = attempt.start()
    wait_until(lambda: f"cannot write {obstacle}" in attempt.trouble())
    assert not (attempt.folder / "end.json").exists()
    shutil.rmtree(obstacle)
    attempt.wait(job)
    assert attempt.end("worker-0")["exit_code"] == 7


def test_a_record_that_can_never_be_written_is_given_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "end.json" / "in the way").mkdir(parents=True)
    records = files.Records()
    records.put(f"{tmp_path}/end.json", {"a": 1})
    records.insist(0)
    assert f"gave up after 0 s: {tmp_path}/end.json" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["end.json"]


def test_a_folder_that_is_removed_is_made_again(tmp_path: Path) -> None:
    line = f"touch {tmp_path}/here; while ! [ -e {tmp_path}/go ]; do sleep 0.05; done; echo after"
    attempt = Attempt(tmp_path, process("worker-0", f"{line}; exit 7"), heartbeat=3600.0)
    job = attempt.start()
    attempt.wait_for("processes/worker-0/start.json")
    wait_until((tmp_path / "here").exists)
    # At once: the runner may write into it at any moment.
    attempt.folder.rename(tmp_path / "removed")
    shutil.rmtree(tmp_path / "removed")
    (tmp_path / "go").touch()
    end = attempt.wait(job)
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("failed", 7, "worker-0")
    assert attempt.end("worker-0")["exit_code"] == 7
    assert attempt.log("worker-0").endswith("after\n")


def test_an_error_of_our_own_is_an_outcome_too(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "true", node=5))
    end = attempt.run()
    assert (end["outcome"], end["exit_code"]) == ("failed", 3)
    assert end["reason"].startswith("the runner could not go on: ")
    assert "Traceback" in attempt.trouble()


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -3,
        1.5,
        1e300,
        "",
        'quote " and \\',
        "é\n\t\x00",
        "\udcff",
        {},
        {"a": {"b": 1}},
    ],
)
def test_json_that_is_written_can_be_read(value: object) -> None:
    assert json.loads(files.to_json({"key": value})) == {"key": value}
    assert files.parse(files.to_json({"key": value})) == {"key": value}


def test_after_an_error_of_our_own_nothing_is_left_outside_of_the_folder(tmp_path: Path) -> None:
    """A folder whose name shells would not understand has another one in /tmp meanwhile."""
    (tmp_path / "a b").mkdir()
    attempt = Attempt(tmp_path / "a b", process("worker-0", "true", node=5))
    assert attempt.run()["exit_code"] == 3
    assert [one.name for one in Path("/tmp").iterdir() if attempt.marker in one.name] == []


def test_a_folder_whose_name_is_no_text_is_as_good_as_any(tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"caf\xe9")
    place.mkdir()
    end = Attempt(place, process("worker-0", "true"), nodes=2).run()
    assert (end["outcome"], end["reason"]) == ("passed", "")
