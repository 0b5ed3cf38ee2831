"""The parts of debugging ranks that need no ranks."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankwise.pytest_plugin.connections import Channel, encode
from rankwise.pytest_plugin.failure_report import AbortedTest
from rankwise.pytest_plugin.output import filter_aborted_output, filter_output
from rankwise.pytest_plugin.rank_status import overlap
from rankwise.pytest_plugin.serialize import RankResult
from rankwise.pytest_plugin.workers.tmux import LiveOutput, log_of, open_panes
from rankwise.pytest_plugin.workers.tmux_pane import PaneWriter


def test_time_in_which_everything_was_held_does_not_count() -> None:
    pauses = [(10.0, 20.0), (30.0, 31.0)]
    assert overlap(5.0, pauses) == 11.0
    assert overlap(15.0, pauses) == 6.0
    assert overlap(25.0, pauses) == 1.0
    assert overlap(40.0, pauses) == 0.0
    assert overlap(5.0, []) == 0.0


def test_what_comes_before_the_awaited_message_is_kept_in_its_order() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(ours)
        theirs.sendall(b"".join(encode({"kind": kind}) for kind in ("a", "b", "wanted", "c")))
        assert channel.receive_only("wanted")["kind"] == "wanted"
        assert [channel.receive()[0]["kind"] for _ in range(3)] == ["a", "b", "c"]
        channel.close()


def result_of(outcome: str, words: str) -> RankResult:
    report = pytest.TestReport(
        nodeid="t",
        location=("t", 1, "t"),
        keywords={},
        outcome=outcome,  # type: ignore[arg-type]
        longrepr="why" if outcome == "failed" else None,
        when="call",
        sections=[("Captured stdout call", words)],
    )
    return RankResult(reports=[report])


@pytest.mark.parametrize(("which", "kept"), [("all", {0, 1, 2}), ("0", {0}), ("failed", {1})])
def test_output_of_the_ranks_that_are_not_wanted_is_taken_away(which: str, kept: set[int]) -> None:
    outcomes = ["passed", "failed", "passed"]
    results = {rank: result_of(outcome, "words") for rank, outcome in enumerate(outcomes)}
    filter_output(results, which)
    assert {rank for rank, one in results.items() if one.reports[0].sections} == kept
    ending = AbortedTest(
        size=3,
        phase="call",
        headline="",
        failed={1: result_of("failed", "words")},
        output={0: {"stdout": "a"}, 2: {"stdout": "b"}},
    )
    filter_aborted_output(ending, which)
    shown = {*ending.output, *(r for r, one in ending.failed.items() if one.reports[0].sections)}
    assert shown == kept


def test_without_a_culprit_the_output_of_all_ranks_is_kept() -> None:
    ending = AbortedTest(size=2, phase="call", headline="", output={0: {"stdout": "a"}, 1: {}})
    filter_aborted_output(ending, "failed")
    assert set(ending.output) == {0, 1}


def test_panes_are_a_window_within_tmux_and_a_session_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Sequence[str]] = []

    def run(line: Sequence[str]) -> str:
        lines.append(line)
        if line[1] == "split-window" and len(lines) > 3:
            raise pytest.UsageError("no space for new pane")
        return "%7"

    monkeypatch.setenv("TMUX", "somewhere")
    said = open_panes(tmp_path, 4, run)
    assert said == "the ranks are seen in: the window rankwise of tmux, the first 2 of 4"
    assert [line[1] for line in lines][:3] == ["new-window", "split-window", "select-layout"]
    assert log_of(tmp_path, 3).exists()
    monkeypatch.delenv("TMUX")
    lines.clear()
    assert open_panes(tmp_path, 1, run) == (
        f"the ranks are seen in: tmux attach -t rankwise-{os.getpid()}"
    )
    assert lines[0][1] == "new-session"


def test_a_follower_shows_everything_once_whatever_it_has_seen_before(tmp_path: Path) -> None:
    captured = os.open(tmp_path / "captured", os.O_RDWR | os.O_CREAT)
    live = LiveOutput(tmp_path, 0, {"stdout": captured})
    log = os.open(log_of(tmp_path, 0), os.O_RDONLY)
    follower = PaneWriter(log)

    def shown() -> str:
        return b"".join(follower.step()).decode()

    live._write({"test": "test_a"})
    os.write(captured, b"first ")
    assert shown() == "\n── test_a\nfirst "
    os.write(captured, b"second")
    # The phase ends: pytest empties the file, and the record has all of it.
    os.ftruncate(captured, 0)
    assert shown() == ""
    live._write({"phase": "call", "printed": {"stdout": "first second"}, "outcome": "passed"})
    assert shown() == "second── passed\n"
    live._write({"phase": "teardown", "printed": {"stdout": "missed"}, "outcome": "failed"})
    assert shown() == "missed── failed in teardown\n"
    assert not follower.is_over()
    log_of(tmp_path, 0).unlink()
    assert follower.is_over()
    for number in (log, captured):
        os.close(number)
