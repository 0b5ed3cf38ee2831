"""The ends of logs: what is shown, what comes after, and how much of it is ever in memory."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from rankwise.logs import TAIL_BYTES
from rankwise.records import LOGS
from rankwise.web.logs import LogPosition, Tail, line_markup, tail_of

FIRST, OLD, LOG = LOGS


def test_a_page_has_the_end_and_a_stream_goes_on_from_there(tmp_path: Path) -> None:
    log = tmp_path / LOG
    log.write_text("one\ntwo\nthr")
    lines, position, before = tail_of(tmp_path, is_over=False)
    assert (lines, before) == (["one", "two"], 0)
    tail = Tail(tmp_path, LogPosition.read(str(position)))
    assert tail.new_lines() == []
    with log.open("a") as file:
        file.write("ee\nfour\nfi")
    assert tail.new_lines() == ["three", "four"]
    assert tail.new_lines() == []
    # Who comes back from here reads the line whole that has not ended yet.
    again = Tail(tmp_path, tail.given)
    with log.open("a") as file:
        file.write("ve")
    assert (again.new_lines(), again.lines.flush()) == ([], ["five"])
    assert tail.new_lines() == []
    assert tail.given == LogPosition(log.stat().st_ino, len("one\ntwo\nthree\nfour\n"))
    assert tail.lines.flush() == ["five"]


def test_of_a_process_that_has_ended_all_is_shown(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text("one\ntwo")
    assert tail_of(tmp_path, is_over=True)[0] == ["one", "two"]


def test_without_a_log_there_is_nothing(tmp_path: Path) -> None:
    assert tail_of(tmp_path, is_over=True) == ([], LogPosition(), 0)
    tail = Tail(tmp_path, LogPosition())
    assert tail.new_lines() == []
    (tmp_path / LOG).write_text("late\n")
    assert tail.new_lines() == ["late"]


def test_a_named_pipe_in_the_place_of_a_log_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOG)
    lines, position, before = tail_of(tmp_path, is_over=False)
    assert (lines, position.offset, before) == ([], 0, 0)
    assert Tail(tmp_path, LogPosition()).new_lines() == []


def test_a_log_that_is_moved_away_is_read_to_its_end_first(tmp_path: Path) -> None:
    log = tmp_path / LOG
    log.write_text("one\n")
    _, position, _ = tail_of(tmp_path, is_over=False)
    tail = Tail(tmp_path, position)
    with log.open("a") as file:
        file.write("two\n")
    log.rename(tmp_path / OLD)
    log.write_text("three\n")
    assert [*tail.new_lines(), *tail.new_lines()] == ["two", "three"]
    # The old one becomes the first one, and is gone from where it was.
    (tmp_path / OLD).rename(tmp_path / FIRST)
    log.rename(tmp_path / OLD)
    log.write_text("four\n")
    assert [*tail.new_lines(), *tail.new_lines()] == ["four"]


def test_a_log_that_was_emptied_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / LOG
    log.write_text("a long line\n")
    tail = Tail(tmp_path, tail_of(tmp_path, is_over=False)[1])
    log.write_text("new\n")
    assert tail.new_lines() == ["new"]


@pytest.mark.parametrize(
    "text", ["", "x", "1", "1.", ".2", "-1.2", "1.2.3", "¹.²", "9" * 50 + ".1"]
)
def test_a_position_that_is_none_is_the_beginning(text: str) -> None:
    assert LogPosition.read(text) == LogPosition()


def test_of_a_big_log_only_the_end_is_read(tmp_path: Path) -> None:
    (tmp_path / LOG).write_bytes(b"0123456789" * 5_000_000 + b"\nthe end\n")
    tracemalloc.start()
    lines, position, before = tail_of(tmp_path, is_over=True)
    tail = Tail(tmp_path, LogPosition(position.inode, 0))
    behind = tail.new_lines()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lines[-1] == behind[-1] == "the end"
    assert before == 50_000_009 - TAIL_BYTES
    assert tail.skipped == 50_000_009 - TAIL_BYTES
    assert peak < 3_000_000


def test_a_line_is_only_text_with_its_colours() -> None:
    assert (
        line_markup("<b>\x1b[31mred\x1b[0m\x1b[2J\x07\x00")
        == '&lt;b&gt;<span class="a1">red</span>'
    )
    assert len(line_markup("x" * 1_000_000)) < 5000
