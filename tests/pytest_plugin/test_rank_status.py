"""What a rank writes down about itself, and what others read of it when the rank is gone."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.pytest_plugin.rank_status import OutputTail, RankStatus, StatusFiles
from rankwise.pytest_plugin.stacks import read_crash

# Nothing here takes long; without a limit a defect would be a hang.
LIMIT = 20.0

# It takes over the interpreter's fault handler, so it has a process of its own.
RANK = """
import ctypes, os, resource, sys
from pathlib import Path
from rankwise.pytest_plugin.rank_status import StatusWriter, StatusFiles
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
box = StatusWriter(StatusFiles(Path(sys.argv[1]), "3.1"))
def crash():
    ctypes.string_at(0)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Rank:
    """A process with a black box that does one thing at a time."""

    def __init__(self, folder: Path) -> None:
        self.files = StatusFiles(folder, "3.1")
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.do("pass")

    def do(self, line: str) -> None:
        assert self.tell(line) == "done\n"

    def tell(self, line: str) -> str:
        """Give its answer; empty if that was its end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=LIMIT)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    rank = Rank(tmp_path)
    yield rank
    rank.close()


def test_a_rank_is_at_nothing_until_it_begins_a_test(rank: Rank) -> None:
    assert rank.files.read_status() is None


def test_it_can_be_read_which_test_a_rank_is_at_and_in_which_phase(rank: Rank) -> None:
    before = time.monotonic()
    rank.do("box.begin(7)")
    moment = rank.files.read_status()
    assert moment is not None
    assert (moment.case, moment.phase) == (7, "setup")
    assert before <= moment.since <= time.monotonic(), "one clock for all processes"
    for phase in ("call", "teardown", "closing"):
        rank.do(f"box.enter({phase!r})")
        later = rank.files.read_status()
        assert later is not None
        assert (later.case, later.phase) == (7, phase)
        assert later.since >= moment.since
    rank.do("box.rest()")
    assert rank.files.read_status() is None


def test_what_a_rank_was_at_can_be_read_when_it_is_gone(rank: Rank) -> None:
    rank.do("box.begin(2)")
    rank.do("box.enter('call')")
    assert rank.tell("os._exit(3)") == ""
    assert rank.process.wait(LIMIT) == 3
    moment = rank.files.read_status()
    assert moment == RankStatus(case=2, phase="call", since=moment.since if moment else 0.0)
    assert rank.files.read_crash() == ""


def test_what_the_interpreter_says_at_a_crash_can_be_read(rank: Rank) -> None:
    assert rank.tell("crash()") == ""
    assert rank.process.wait(LIMIT) < 0
    stack = read_crash(rank.files.read_crash())
    assert stack is not None
    assert "crash" in [frame.function for frame in stack]


def test_the_files_of_a_rank_can_be_removed_more_than_once(rank: Rank, tmp_path: Path) -> None:
    paths = (rank.files.moment, rank.files.stacks, rank.files.crash)
    assert all(path.exists() for path in paths)
    (tmp_path / "3.10.moment").touch()
    rank.files.remove()
    rank.files.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["3.10.moment"]


def test_of_a_rank_that_never_was_there_is_nothing_to_read(tmp_path: Path) -> None:
    files = StatusFiles(tmp_path, "0.0")
    assert files.read_status() is None
    assert files.read_crash() == ""
    files.moment.write_bytes(b"short")
    assert files.read_status() is None, "it has just been made"
    files.crash.write_bytes(b"Fatal \xff")
    assert files.read_crash() == "Fatal �"


# Output


def tail_of(**texts: bytes) -> OutputTail:
    """Give the tail of files of this process that have no name any more."""
    descriptors = {}
    for name, text in texts.items():
        number = os.memfd_create(name)
        os.write(number, text)
        descriptors[name] = number
    tail = OutputTail(os.getpid(), descriptors)
    for number in descriptors.values():
        os.close(number)
    return tail


def test_output_is_read_when_those_who_wrote_it_have_closed_it() -> None:
    tail = tail_of(stdout=b"spoken\n", stderr="gesehen: \u00fc\n".encode())
    assert tail.read() == {"stdout": "spoken\n", "stderr": "gesehen: ü\n"}
    tail.close()
    assert tail.read() == {}
    tail.close()


def test_output_with_nothing_in_it_is_left_out() -> None:
    tail = tail_of(stdout=b"", stderr=b" \n\n")
    assert tail.read() == {}
    tail.close()


def test_of_much_output_the_last_lines_are_shown_and_how_much_came_before() -> None:
    lines = [f"line {number}" for number in range(2000)]
    tail = tail_of(stdout="\n".join(lines).encode())
    first, *shown = tail.read()["stdout"].splitlines()
    tail.close()
    assert shown == lines[-len(shown) :], "whole lines"
    assert 100 < len(shown) < 1000
    before = len("\n".join(lines)) - 4096
    assert first == f"… ({before} bytes before)"


def test_one_endless_line_is_shown_from_its_middle() -> None:
    tail = tail_of(stdout=b"x" * 10_000)
    assert tail.read()["stdout"].endswith("\n" + "x" * 4096)
    tail.close()


def test_bytes_that_are_no_text_do_no_harm() -> None:
    tail = tail_of(stdout=b"\xff\xfe!\n")
    assert tail.read()["stdout"].endswith("!\n")
    tail.close()


def test_output_that_goes_on_is_read_anew() -> None:
    number = os.memfd_create("out")
    tail = OutputTail(os.getpid(), {"stdout": number})
    try:
        assert tail.read() == {}
        os.write(number, b"now\n")
        assert tail.read() == {"stdout": "now\n"}
        os.ftruncate(number, 0)
        assert tail.read() == {}
    finally:
        tail.close()
        os.close(number)


def test_what_cannot_be_opened_is_left_out() -> None:
    tail = OutputTail(os.getpid(), {"stdout": 1 << 20})
    assert tail.read() == {}
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(LIMIT)
    assert OutputTail(gone.pid, {"stdout": 1}).read() == {}


def test_a_moment_that_is_being_written_down_is_not_read(tmp_path: Path) -> None:
    """A rank may lose the processor between any two bytes of it."""
    files = StatusFiles(tmp_path, "0.0")
    files.moment.write_bytes(struct.pack("=qqqd", 2, 7, 0, 1.0))
    assert files.read_status() == RankStatus(case=7, phase="setup", since=1.0)
    # How often it was changed is odd in the middle of a change.
    files.moment.write_bytes(struct.pack("=qqqd", 3, 7, 0, 1.0))
    assert files.read_status() is None
