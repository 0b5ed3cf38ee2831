"""Who looks on sees everything in order, and never holds the engine up."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankwise.logs import LogLine
from rankwise.reports.terminal.live import LiveDisplay, View
from rankwise.store.rows import Event


class Recorder(View):
    """A view that keeps what it is shown."""

    def __init__(self, *, follows: bool = True, fault: Exception | None = None) -> None:
        self.follows = follows
        self.seen: list[str] = []
        self.is_closed = False
        self.has_heard = threading.Event()
        self._fault = fault

    def event(self, event: Event) -> None:
        if self._fault is not None:
            raise self._fault
        self.seen.append(event.kind)

    def lines(self, lines: Sequence[LogLine]) -> None:
        self.seen += [f"{line.process}: {line.text}" for line in lines]

    def ending(self, processes: int) -> None:
        self.seen.append(f"ending {processes}")
        self.has_heard.set()

    def refresh(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


def write(folder: Path, text: str, name: str = "worker-0") -> None:
    place = folder / "processes" / name
    place.mkdir(parents=True, exist_ok=True)
    with (place / "output.log").open("a") as log:
        log.write(text)


def started(folder: Path) -> Event:
    return Event(kind="task started", run="job-1", time=0.0, task="t", attempt=1, folder=folder)


def ended(folder: Path) -> Event:
    return Event(kind="attempt ended", run="job-1", time=0.0, task="t", attempt=1, folder=folder)


def test_what_a_process_wrote_is_shown_before_its_end(tmp_path: Path) -> None:
    view = Recorder()
    with LiveDisplay(view) as display:
        display.observe(started(tmp_path))
        write(tmp_path, "one\ntwo")
        display.observe(ended(tmp_path))
    assert view.seen == ["task started", "worker-0: one", "worker-0: two", "attempt ended"]
    assert view.is_closed


def test_lines_are_left_out_where_nobody_wants_them(tmp_path: Path) -> None:
    view = Recorder(follows=False)
    write(tmp_path, "one\n")
    with LiveDisplay(view, running=[tmp_path]) as display:
        display.observe(started(tmp_path))
        display.observe(ended(tmp_path))
    assert view.seen == ["task started", "attempt ended"]


def test_of_what_ran_before_only_the_new_lines_are_shown(tmp_path: Path) -> None:
    view = Recorder()
    write(tmp_path, "old\n")
    with LiveDisplay(view, running=[tmp_path]) as display:
        write(tmp_path, "new\n")
        display.observe(ended(tmp_path))
    assert view.seen == ["worker-0: new", "attempt ended"]


def test_what_still_runs_when_we_leave_is_shown_as_far_as_it_came(tmp_path: Path) -> None:
    view = Recorder()
    write(tmp_path, "one\nhalf")
    with LiveDisplay(view) as display:
        display.observe(started(tmp_path))
    assert view.seen == ["task started", "worker-0: one", "worker-0: half"]


def test_ctrl_c_is_heard_and_processes_are_counted(tmp_path: Path) -> None:
    view = Recorder()
    for name, record in {"worker-0": "start.json", "worker-1": "start.json"}.items():
        write(tmp_path, "", name)
        (tmp_path / "processes" / name / record).write_text('{"started": 1.0}')
    (tmp_path / "processes" / "worker-1" / "end.json").write_text('{"ended": 2.0}')
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        with LiveDisplay(view, running=[tmp_path]):
            os.kill(os.getpid(), signal.SIGINT)
            assert view.has_heard.wait(60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert view.seen == ["ending 1"]
    assert signal.set_wakeup_fd(-1) == -1


def test_a_reader_that_is_gone_does_not_end_the_run(tmp_path: Path) -> None:
    view = Recorder(fault=BrokenPipeError())
    with LiveDisplay(view) as display:
        display.observe(started(tmp_path))
        display.observe(ended(tmp_path))
    assert view.is_closed


def test_our_own_fault_is_raised_when_the_run_is_over(tmp_path: Path) -> None:
    display = LiveDisplay(Recorder(fault=KeyError("what")))
    with pytest.raises(KeyError, match="what"), display:
        display.observe(started(tmp_path))


def test_the_fault_of_the_run_goes_before_ours(tmp_path: Path) -> None:
    def run() -> None:
        with LiveDisplay(Recorder(fault=KeyError("what"))) as display:
            display.observe(started(tmp_path))
            raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        run()
