"""What processes write, with the names of those who wrote it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from rankwise.logs import LogLine
from rankwise.plan import Process, Task
from rankwise.reports.terminal.live import Labels, OutputView, ending_words, label_width
from rankwise.store.rows import Event, Kind


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
    view.event(event("attempt ended", state="failed", reason="rank 3 left with exit code 7"))
    view.event(event("task started", attempt=2))
    view.event(event("attempt ended", state="passed"))
    view.event(event("task over", state="passed"))
    view.event(event("run over", state="passed"))
    view.refresh()
    view.close()
    assert stream.getvalue() == (
        "-- making an environment\n   with uv\n"
        "-- train failed: rank 3 left with exit code 7\n"
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


def test_ctrl_c_says_what_it_does() -> None:
    stream = io.StringIO()
    OutputView(stream, [task("train")]).ending(4)
    assert stream.getvalue() == (
        "-- ending 4 processes ... (Ctrl-C again leaves them to their runners)\n"
    )
    assert ending_words(1).startswith("ending 1 process ...")
    assert ending_words(0).startswith("ending the run ...")
