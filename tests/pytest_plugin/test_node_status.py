"""What servers on nodes say about ranks, and what the controller makes of it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rankwise.pytest_plugin import rank_status
from rankwise.pytest_plugin import rank_status as module
from rankwise.pytest_plugin.rank_status import NodeStatus, RemoteStatus


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


def ask_nobody(question: Mapping[str, Any]) -> list[dict[str, Any]]:
    raise AssertionError(f"nobody is asked {question}")


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
    remote = RemoteStatus(ask_nobody)
    remote.note_status(1, [5, "call", 100.0])
    moment = remote.box(1).read_status()
    assert moment is not None
    assert (moment.case, moment.phase) == (5, "call")
    assert time.monotonic() - moment.since == pytest.approx(100, abs=5)
    remote.note_status(1, [None])
    assert remote.box(1).read_status() is None


def test_the_end_of_a_rank_brings_all_that_is_known_of_it(box: Box, tmp_path: Path) -> None:
    node_status = NodeStatus(tmp_path)
    number = os.memfd_create("out")
    os.write(number, b"last words\n")
    node_status.watch((3, 1), os.getpid(), {"stdout": number})
    os.close(number)
    box.enter(7, "teardown")
    (tmp_path / "3.1.crash").write_text("Fatal Python error: x")
    remote = RemoteStatus(ask_nobody)
    remote.note_end(1, node_status.final_status((3, 1)))
    known = remote.box(1)
    moment = known.read_status()
    assert moment is not None
    assert (moment.case, moment.phase) == (7, "teardown")
    assert known.read_crash() == "Fatal Python error: x"
    assert known.read() == {"stdout": "last words\n"}
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_nobody_saw_end_keeps_what_was_said_before() -> None:
    remote = RemoteStatus(ask_nobody)
    remote.note_status(0, [2, "call", 1.0])
    remote.note_end(0, {"status": None})
    assert remote.box(0).read_status() is not None


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
    assert remote.box(0).read() == {"stdout": "x"}
