"""The status of ranks: written by them, told by nodes, and watched for time limits."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rankwise.pytest_plugin import rank_status
from rankwise.pytest_plugin import rank_status as module
from rankwise.pytest_plugin.rank_status import (
    HangWatch,
    NodeStatus,
    OutputTail,
    Overdue,
    Phase,
    RankStatus,
    RemoteStatus,
    Setups,
    StatusFiles,
    find_overdue,
)
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
        """Return its answer; empty if that was its end."""
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
    """Return the tail of files of this process that have no name any more."""
    descriptors = {}
    for name, text in texts.items():
        number = os.memfd_create(name)
        os.write(number, text)
        descriptors[name] = number
    tail = OutputTail(os.getpid(), descriptors)
    for number in descriptors.values():
        os.close(number)
    return tail


def test_output_is_read_after_its_writers_have_closed_it() -> None:
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


# What servers on nodes say about ranks, and what the controller makes of it


class Box:
    """The file of a rank; the rank itself would take over the fault handler of this process."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "3.1.moment"

    def enter(self, case: int, phase: rank_status.Phase = "setup") -> None:
        number = rank_status._PHASES.index(phase)
        moment = rank_status._MOMENT.pack(case, number, time.monotonic())
        self._path.write_bytes(rank_status._COUNT.pack(2) + moment)

    def rest(self) -> None:
        self.enter(rank_status._IDLE)


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def refuse_to_ask(question: Mapping[str, Any]) -> list[dict[str, Any]]:
    raise AssertionError(f"no server is asked {question}")


def test_only_what_takes_long_is_told_and_that_it_is_over(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_status = NodeStatus(tmp_path)
    box.enter(5)
    assert node_status.look([(3, 1)]) == []
    monkeypatch.setattr(module, "_SLOW_SECONDS", 0.0)
    ((world, rank, case, phase, age),) = node_status.look([(3, 1)])
    assert (world, rank, case, phase) == (3, 1, 5, "setup")
    assert age >= 0
    assert node_status.look([(3, 1)]) == []
    box.rest()
    assert node_status.look([(3, 1)]) == [[3, 1, None]]
    assert node_status.look([(3, 1)]) == []


def test_a_moment_keeps_its_age_on_another_machine() -> None:
    remote = RemoteStatus(refuse_to_ask)
    remote.note_status(1, [5, "call", 100.0])
    moment = remote.status_of(1).read_status()
    assert moment is not None
    assert (moment.case, moment.phase) == (5, "call")
    assert time.monotonic() - moment.since == pytest.approx(100, abs=5)
    remote.note_status(1, [None])
    assert remote.status_of(1).read_status() is None


def test_the_end_of_a_rank_brings_all_that_is_known_of_it(box: Box, tmp_path: Path) -> None:
    node_status = NodeStatus(tmp_path)
    number = os.memfd_create("out")
    os.write(number, b"last words\n")
    node_status.watch((3, 1), os.getpid(), {"stdout": number})
    os.close(number)
    box.enter(7, "teardown")
    (tmp_path / "3.1.crash").write_text("Fatal Python error: x")
    remote = RemoteStatus(refuse_to_ask)
    remote.note_end(1, node_status.final_status((3, 1)))
    known = remote.status_of(1)
    moment = known.read_status()
    assert moment is not None
    assert (moment.case, moment.phase) == (7, "teardown")
    assert known.read_crash() == "Fatal Python error: x"
    assert known.read() == {"stdout": "last words\n"}
    assert list(tmp_path.iterdir()) == []


def test_a_rank_whose_end_was_not_seen_keeps_its_last_status() -> None:
    remote = RemoteStatus(refuse_to_ask)
    remote.note_status(0, [2, "call", 1.0])
    remote.note_end(0, {"status": None})
    assert remote.status_of(0).read_status() is not None


def test_stacks_come_from_all_who_answer() -> None:
    asked: list[Mapping[str, Any]] = []

    def ask(question: Mapping[str, Any]) -> list[dict[str, Any]]:
        asked.append(question)
        return [
            {"stacks": {"0": [["a.py", 3, "f"]]}, "outputs": {"0": {"stdout": "x"}}},
            {"stacks": {"1": [["b.py", 4, "g"]]}, "outputs": {}},
        ]

    remote = RemoteStatus(ask)
    stacks = remote.stacks_of(9, [0, 1])
    assert asked == [{"kind": "stacks", "world": 9, "ranks": [0, 1]}]
    assert {rank: stack[0].function for rank, stack in stacks.items()} == {0: "f", 1: "g"}
    assert remote.status_of(0).read() == {"stdout": "x"}


# Which tests are over their limits: decided from moments, on a clock that stands still

NOW = 1000.0


def moment(case: int, seconds: float, phase: Phase = "call") -> RankStatus:
    return RankStatus(case=case, phase=phase, since=NOW - seconds)


def overdue(
    *moments: RankStatus,
    limits: tuple[float, ...] = (10.0, 10.0),
    failures: Mapping[int, float] | None = None,
) -> list[Overdue]:
    return find_overdue(moments, limits, failures or {}, grace=5.0, now=NOW)


def test_nothing_is_overdue_where_nothing_runs() -> None:
    assert overdue() == []


@pytest.mark.parametrize("phase", ["setup", "call", "teardown", "closing"])
def test_each_phase_has_the_limit_of_its_test(phase: Phase) -> None:
    assert overdue(moment(0, 9.0, phase), moment(1, 10.0, phase)) == []
    assert overdue(moment(0, 11.0, phase), moment(1, 9.0, phase)) == [
        Overdue(case=0, why="limit", phase=phase, seconds=11.0)
    ]


def test_a_limit_of_zero_is_none() -> None:
    assert overdue(moment(0, 1e6), limits=(0.0,)) == []


def test_each_test_has_its_own_limit() -> None:
    found = overdue(moment(0, 50.0), moment(1, 50.0), limits=(60.0, 40.0))
    assert [one.case for one in found] == [1]


def test_a_test_is_named_once_with_the_rank_that_has_waited_longest() -> None:
    found = overdue(moment(0, 12.0, "teardown"), moment(0, 30.0), moment(0, 20.0))
    assert found == [Overdue(case=0, why="limit", phase="call", seconds=30.0)]


def test_several_tests_may_be_overdue_at_once() -> None:
    found = overdue(moment(0, 12.0), moment(1, 30.0))
    assert {one.case for one in found} == {0, 1}


@pytest.mark.parametrize(("ago", "expected"), [(4.0, []), (5.0, []), (6.0, ["grace"])])
def test_after_a_failure_the_others_have_the_grace(ago: float, expected: list[str]) -> None:
    found = overdue(moment(0, 7.0), failures={0: NOW - ago})
    assert [one.why for one in found] == expected


def test_the_failure_of_one_test_is_nothing_to_another() -> None:
    assert overdue(moment(1, 7.0), failures={0: NOW - 9.0}) == []


def test_the_grace_counts_without_a_limit_too() -> None:
    found = overdue(moment(0, 7.0), limits=(0.0,), failures={0: NOW - 6.0})
    assert found == [Overdue(case=0, why="grace", phase="call", seconds=7.0)]


def test_the_failure_comes_before_the_limit() -> None:
    found = overdue(moment(0, 20.0), failures={0: NOW - 6.0})
    assert [one.why for one in found] == ["grace"]


def test_fixtures_of_a_wider_scope_have_their_limit_and_no_grace() -> None:
    """The test itself is over: no rank waits for those that failed in it."""
    assert overdue(moment(0, 7.0, "closing"), failures={0: NOW - 6.0}) == []
    found = overdue(moment(0, 20.0, "closing"), failures={0: NOW - 6.0})
    assert [(one.why, one.phase) for one in found] == [("limit", "closing")]


@pytest.mark.parametrize("phase", ["closing", "ending"])
def test_who_waits_for_a_rank_that_is_still_at_the_test_is_not_overdue(phase: Phase) -> None:
    assert overdue(moment(0, 9.9, "call"), moment(0, 10.1, phase)) == []
    [found] = overdue(moment(0, 10.1, "call"), moment(0, 10.2, phase))
    assert (found.case, found.why, found.phase) == (0, "limit", "call")
    assert overdue(moment(0, 1.0, phase), moment(0, 11.0, phase)) == []


def test_a_process_ends_when_all_of_its_world_do() -> None:
    assert overdue(moment(0, 11.0, "ending"), moment(1, 9.0, "closing")) == []
    assert overdue(moment(0, 11.0, "ending"), moment(1, 9.0, "call")) == []
    assert overdue(moment(0, 12.0, "ending"), moment(1, 11.0, "ending")) != []


def test_a_fixture_that_another_worker_has_is_named_with_that() -> None:
    setups = Setups()
    for worker, state in ((0, "begins"), (0, "done"), (1, "begins")):
        setups.note(worker, "key", "the fixture `server`", state)  # type: ignore[arg-type]
    hint = setups.give_up(1, "test_it.py::test_it", 600.0)
    assert hint.startswith("It sets up the fixture `server`. Another worker has it already. ")
    too_short, why = setups.hopeless["key"]
    assert too_short == 600.0
    assert "within 600 s (time limit) for test_it.py::test_it" in why


def test_a_fixture_that_has_failed_or_is_gone_with_its_worker_is_no_reason() -> None:
    setups = Setups()
    setups.note(0, "key", "the fixture `server`", "begins")
    setups.note(0, "key", "the fixture `server`", "failed")
    assert setups.give_up(0, "test_it.py::test_it", 600.0) == ""
    setups.note(1, "key", "the fixture `server`", "begins")
    setups.note(1, "key", "the fixture `server`", "done")
    setups.note(2, "key", "the fixture `server`", "begins")
    setups.forget([0, 1])
    assert "Another worker" not in setups.give_up(2, "test_it.py::test_it", 600.0)


def test_of_fixtures_that_need_each_other_the_innermost_is_given_up() -> None:
    setups = Setups()
    setups.note(0, "outer", "the fixture `outer`", "begins")
    setups.note(0, "inner", "the fixture `inner`", "begins")
    assert "`inner`" in setups.give_up(0, "test_it.py::test_it", 1.0)
    assert list(setups.hopeless) == ["inner"]


def test_the_grace_ends_for_a_test_whose_failed_ranks_repeat_it() -> None:
    watch: HangWatch[str] = HangWatch([0.0], grace=-1.0)
    running = [RankStatus(case=0, phase="call", since=time.monotonic())]
    watch.rank_failed(0, 1, "assert 0")
    assert [one.why for one in watch.find(running)] == ["grace"]
    assert watch.failures_of(0) == {1: "assert 0"}
    watch.rank_repeats(0, 1)
    assert watch.find(running) == []
    assert watch.failures_of(0) == {}


def test_one_of_two_failed_ranks_that_repeats_a_test_does_not_end_the_grace() -> None:
    watch: HangWatch[str] = HangWatch([0.0], grace=-1.0)
    running = [RankStatus(case=0, phase="call", since=time.monotonic())]
    watch.rank_failed(0, 0, "first")
    watch.rank_failed(0, 1, "second")
    watch.rank_repeats(0, 0)
    assert [one.why for one in watch.find(running)] == ["grace"]


def test_only_failures_of_tests_that_are_not_over_count() -> None:
    watch: HangWatch[str] = HangWatch([0.0, 0.0], grace=-1.0)
    watch.rank_failed(0, 0, "over")
    watch.rank_failed(1, 0, "runs")
    watch.forget_all_but({1})
    assert (watch.failures_of(0), watch.failures_of(1)) == ({}, {0: "runs"})


def test_time_that_a_debugger_held_everything_is_given_back() -> None:
    watch: HangWatch[str] = HangWatch([10.0])
    begun = time.monotonic() - 100.0
    status = RankStatus(case=0, phase="call", since=begun)
    assert [one.why for one in watch.find([status])] == ["limit"]
    watch.pause(begun)
    assert watch.find([watch.without_pauses(status)]) == []
