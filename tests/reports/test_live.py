"""Who looks on sees everything in order, and never holds the engine up."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rankwise.logs import LogLine
from rankwise.plan import Process, Task
from rankwise.reports.terminal.live import (
    JsonView,
    Labels,
    LiveDisplay,
    OutputView,
    QuietView,
    TasksView,
    View,
    ending_words,
    label_width,
)
from rankwise.safe_text import clean
from rankwise.store import State
from rankwise.store.rows import Event, Kind


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


def test_a_view_that_does_not_follow_gets_no_lines(tmp_path: Path) -> None:
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
    with LiveDisplay(view, running=[tmp_path]) as display:
        # As the handler of the signal does, whatever the main thread is at.
        display.observe(Event(kind="stopping", run="job-1", time=0.0))
        assert view.has_heard.wait(60)
    assert view.seen == ["ending 1"]


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


# Events for programs


def test_every_event_is_a_line_of_json_without_what_is_empty() -> None:
    stream = io.StringIO()
    view = JsonView(stream)
    view.event(Event(kind="run started", run="job-1", time=1.5))
    view.event(
        Event(
            kind="attempt ended",
            run="job-1",
            time=2.5,
            task="train",
            attempt=1,
            state=State.FAILED,
            exit_code=0,
            reason="größer\nthan",
            culprit="rank-3",
            folder=Path("/runs/job-1/train/1"),
        )
    )
    counts: dict[str, int] = {State.PASSED: 3, State.FAILED: 0}
    view.event(Event(kind="run over", run="job-1", time=3.5, state="passed", counts=counts))
    view.lines([])
    view.ending(3)
    view.refresh()
    view.close()
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [
        {"kind": "run started", "run": "job-1", "time": 1.5},
        {
            "kind": "attempt ended",
            "run": "job-1",
            "time": 2.5,
            "task": "train",
            "attempt": 1,
            "state": "failed",
            "exit_code": 0,
            "reason": "größer\nthan",
            "culprit": "rank-3",
            "folder": "/runs/job-1/train/1",
        },
        {
            "kind": "run over",
            "run": "job-1",
            "time": 3.5,
            "state": "passed",
            "counts": {"passed": 3},
        },
    ]


def test_who_wants_quiet_still_hears_what_ctrl_c_does() -> None:
    stream = io.StringIO()
    view = QuietView(stream)
    view.event(Event(kind="run started", run="job-1", time=1.5))
    view.lines([])
    assert stream.getvalue() == ""
    view.ending(2)
    view.refresh()
    view.close()
    assert stream.getvalue().startswith("rankwise: stopping 2 processes")


# What processes write, each line with the name of its process


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def task(key: str = "train", *names: str, width: int = 0) -> Task:
    processes = tuple(Process(name=name, role="worker", command="true") for name in names)
    return Task(key=key, processes=processes, width=width)


def line(text: str, process: str = "worker-0", key: str = "train") -> LogLine:
    return LogLine(process, text, Path("runs/job-1") / key / "1")


def event(kind: Kind, **details: Any) -> Event:
    return Event(kind=kind, run="job-1", time=0.0, task="train", **details)


def test_every_line_has_the_name_of_its_process() -> None:
    stream = io.StringIO()
    view = OutputView(stream, [task("train", "worker-0", "chief")])
    view.lines([line("hello"), line("", "chief"), line("a\tb", "worker-10")])
    assert stream.getvalue() == "worker 0 | hello\nchief    | \nworker 10 | a       b\n"


def test_with_several_tasks_their_names_come_first() -> None:
    stream = io.StringIO()
    view = OutputView(stream, [task("a", "worker-0"), task("long", "worker-0")])
    view.lines([line("one", key="a"), line("two", key="long")])
    assert stream.getvalue() == "a worker 0    | one\nlong worker 0 | two\n"


def test_ranks_that_a_launcher_starts_are_reckoned_with() -> None:
    assert label_width([task("train", "launcher", width=1)]) == len("launcher")
    assert label_width([task("train", "launcher", width=10_001)]) == len("rank 10000")
    assert label_width([task("x" * 100, "launcher"), task()]) == 24
    assert label_width([]) == 0


def test_every_process_has_its_own_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    view = OutputView(stream, [task("train", "worker-0", "worker-1")])
    view.lines([line("two", "worker-1"), line("one"), line("three"), line("\x1b[31mred")])
    assert stream.getvalue() == (
        "\x1b[33mworker 1 | \x1b[0mtwo\n"
        "\x1b[36mworker 0 | \x1b[0mone\n"
        "\x1b[36mworker 0 | \x1b[0mthree\n"
        "\x1b[36mworker 0 | \x1b[0m\x1b[31mred\x1b[0m\n"
    )


def test_labels_can_be_left_out() -> None:
    labels = Labels(width=8, is_coloured=False, with_tasks=False, are_shown=False)
    assert labels.line(line("as it is")) == "as it is\n"


def test_of_a_single_task_only_the_extraordinary_is_told() -> None:
    stream = io.StringIO()
    view = OutputView(stream, [task("train", "worker-0")])
    view.event(event("run started"))
    view.event(event("notice", reason="making an environment\nwith uv"))
    view.event(event("task started", attempt=1))
    view.event(event("attempt ended", state="failed", reason="rank 3 exited with code 7"))
    view.event(event("task started", attempt=2))
    view.event(event("attempt ended", state="passed"))
    view.event(event("task over", state="passed"))
    view.event(event("run over", state="passed"))
    view.refresh()
    view.close()
    assert stream.getvalue() == (
        "-- making an environment\n   with uv\n"
        "-- train failed: rank 3 exited with code 7\n"
        "-- train: attempt 2 started\n"
    )


def test_of_several_tasks_it_is_told_what_becomes_of_them() -> None:
    stream = io.StringIO()
    view = OutputView(stream, [task("train"), task("eval")])
    view.event(event("task started", attempt=1))
    view.event(event("task over", state="passed"))
    view.event(event("task over", state="not run", reason="needs 4 GPUs, found 0"))
    assert stream.getvalue() == (
        "-- train started\n-- train passed\n-- train not run: needs 4 GPUs, found 0\n"
    )


def test_on_a_terminal_a_long_reason_breaks_between_words_and_quotes_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    view = OutputView(stream, [task("train")])
    reason = "check 1: not found in the output of rank 0:\n  | a line that is quoted as it was"
    view.event(event("attempt ended", state="failed", reason=reason))
    assert stream.getvalue() == (
        "-- train failed: check 1: not\n"
        "   found in the output of rank\n"
        "   0:\n"
        "     | a line that is quoted as it was\n"
    )


def test_ctrl_c_says_what_it_does() -> None:
    stream = io.StringIO()
    OutputView(stream, [task("train")]).ending(4)
    assert stream.getvalue() == (
        "-- stopping 4 processes ... (Ctrl-C again: exit and let them run on)\n"
    )
    assert ending_words(1).startswith("stopping 1 process ...")
    assert ending_words(0).startswith("stopping the run ...")


# A run of many tasks: a line for each that is over, and a bar on terminals


def event_of_task(kind: Kind, **details: Any) -> Event:
    return Event(kind=kind, run="job-1", **details)


def test_in_a_pipe_there_is_a_line_for_each_task_and_no_bar() -> None:
    stream = io.StringIO()
    view = TasksView(Console(file=stream, width=200, force_terminal=False), total=3)
    view.event(event_of_task("task started", task="one", time=10.0))
    view.refresh()
    assert stream.getvalue() == ""
    view.event(event_of_task("attempt ended", task="one", state="passed", time=11.5))
    view.event(event_of_task("task over", task="one", state="passed", time=11.5))
    view.event(
        event_of_task("task over", task="two", state="not run", reason="needs [one]", time=12.0)
    )
    view.event(event_of_task("notice", reason="a word", time=12.0))
    view.lines([])
    view.refresh()
    view.close()
    assert stream.getvalue() == ("passed    one  1.5 s\nnot run   two  needs [one]\n-- a word\n")


def test_the_time_of_a_task_is_that_of_all_its_attempts() -> None:
    stream = io.StringIO()
    view = TasksView(Console(file=stream, width=200, force_terminal=False), total=1)
    for number in (1, 2):
        view.event(event_of_task("task started", task="one", attempt=number, time=10.0 * number))
        view.event(
            event_of_task("attempt ended", task="one", state="failed", time=10.0 * number + 5)
        )
    view.event(event_of_task("task over", task="one", state="failed", time=25.0))
    view.refresh()
    assert stream.getvalue() == "failed    one  15 s\n"


def test_a_terminal_shows_how_far_it_has_come() -> None:
    stream = io.StringIO()
    view = TasksView(Console(file=stream, width=100, force_terminal=True), total=4, over=1)
    view.event(event_of_task("task started", task="one", time=10.0))
    view.event(event_of_task("task started", task="two", time=10.0))
    view.event(event_of_task("task over", task="one", state="failed", time=11.5))
    view.refresh()
    view.close()
    shown = stream.getvalue()
    assert "2/4" in shown
    assert "1 task not passed" in shown
    assert "running: two" in shown


def test_ctrl_c_says_what_it_does_below_a_bar() -> None:
    stream = io.StringIO()
    view = TasksView(Console(file=stream, width=200, force_terminal=False), total=3)
    view.refresh()
    view.ending(2)
    assert stream.getvalue().startswith("-- stopping 2 processes ...")


def test_tests_are_announced_and_only_the_first_line_of_a_reason_is_shown() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=200, force_terminal=False)
    view = TasksView(console, total=3, are_tests=True)
    view.event(event_of_task("task started", task="one", attempt=1, time=10.0))
    view.event(event_of_task("attempt ended", task="one", attempt=1, state="failed", time=11.0))
    view.event(event_of_task("task started", task="one", attempt=2, time=11.0))
    reason = "check 1 (contains 'x'): not found in a:\n  | y"
    view.event(event_of_task("task over", task="one", state="failed", reason=reason, time=12.0))
    view.refresh()
    assert stream.getvalue() == (
        "Running: one\nRunning: one (attempt 2)\n"
        "failed    one  2.0 s  check 1 (contains 'x'): not found in a\n"
    )


def test_a_terminal_names_the_tests_that_are_running() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=True)
    view = TasksView(console, total=4, are_tests=True)
    view.event(event_of_task("task started", task="one", time=10.0))
    view.event(event_of_task("task started", task="two", time=10.0))
    view.event(event_of_task("task over", task="three", state="skipped", time=10.0))
    view.refresh()
    view.close()
    assert "running: one and two" in stream.getvalue()
    assert "not passed" not in stream.getvalue()


def test_names_that_are_too_long_leave_the_bar_alone() -> None:
    stream = io.StringIO()
    view = TasksView(Console(file=stream, width=60, force_terminal=True), total=216, over=1)
    view.event(event_of_task("task started", task="a-name-that-is-long@machine-7", time=10.0))
    view.refresh()
    view.close()
    line = clean(stream.getvalue(), keep_colours=False)
    assert f"{'━' * 20}   1/216 0:00:00 running: a-name-that-i…" in line
