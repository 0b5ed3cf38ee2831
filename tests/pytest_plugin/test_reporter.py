"""The reporter of a run in which tests were lost, and the live view of a run."""

from __future__ import annotations

import io
import os
import pty
import re
import termios
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.pytest_plugin.live_view import Glance, Panel, can_show, lines_of
from rankwise.pytest_plugin.reporter import Reporter


@pytest.fixture
def session() -> Any:
    """What a reporter needs of a session."""
    config = SimpleNamespace(
        getoption=lambda _name, default=None: default,
        get_verbosity=lambda: 0,
        pluginmanager=SimpleNamespace(get_plugin=lambda _name: None),
        stash=pytest.Stash(),
    )
    return SimpleNamespace(
        config=config,
        shouldfail=False,
        shouldstop=False,
        Failed=pytest.Session.Failed,
        Interrupted=pytest.Session.Interrupted,
    )


def make_reporter(session: Any, *names: str) -> Reporter:
    hooks = ("logstart", "logreport", "logfinish")
    ihook = SimpleNamespace(**{f"pytest_runtest_{name}": lambda **_: None for name in hooks})
    tests: Any = [SimpleNamespace(nodeid=name, location=("", 0, ""), ihook=ihook) for name in names]
    return Reporter(session, lambda _header: None, tests, size=2, rank=None, policy="sequential")


def test_a_test_without_a_verdict_fails_the_run_by_name(session: Any) -> None:
    reporter = make_reporter(session, "test_a", "test_b", "test_c")
    reporter.log_ended(0, [], how="crashed", slots=[0])
    words = "2 collected tests have no verdict; please report this: test_b, test_c"
    with pytest.raises(pytest.Session.Failed, match=words):
        reporter.conclude()


def test_a_run_in_which_every_test_has_a_verdict_is_left_alone(session: Any) -> None:
    reporter = make_reporter(session, "test_a")
    reporter.log_ended(0, [], how="crashed", slots=[0])
    reporter.conclude()
    assert session.shouldfail is False


def test_tests_that_a_stop_has_kept_from_running_have_a_reason(session: Any) -> None:
    reporter = make_reporter(session, "test_a")
    reporter.take({"kind": "stopped", "fail": "", "stop": "enough"}, b"")
    with pytest.raises(pytest.Session.Interrupted, match="enough"):
        reporter.conclude()
    assert (session.shouldfail, session.shouldstop) == (False, "enough")


# The view of a pool at work: what it says, and that it leaves no trace

_CODES = re.compile(r"\x1b7|\x1b8|\x1b\[(\d*)([A-Z])|\r|\n|[^\x1b\r\n]+")


class _Screen:
    """A terminal that understands what the panel uses, and scrolls."""

    def __init__(self, rows: int = 6) -> None:
        self.lines = [""] * rows
        self.history: list[str] = []
        self.row = self.column = 0
        self._saved = (0, 0)

    def feed(self, text: str) -> None:
        for found in _CODES.finditer(text):
            self._do(found)

    def _do(self, found: re.Match[str]) -> None:
        number = int(found[1] or 1) if found[2] else 0
        match found[2] or found[0]:
            case "\x1b7":
                self._saved = (self.row, self.column)
            case "\x1b8":
                self.row, self.column = self._saved
            case "A":
                self.row = max(0, self.row - number)
            case "B":
                self.row = min(len(self.lines) - 1, self.row + number)
            case "G":
                self.column = number - 1
            case "K":
                self.lines[self.row] = ""
            case "\r":
                self.column = 0
            case "\n":
                self._new_line()
            case words:
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = (
                    line[: self.column] + words + line[self.column + len(words) :]
                )
                self.column += len(words)

    def _new_line(self) -> None:
        self.column = 0
        if self.row == len(self.lines) - 1:
            self.history.append(self.lines.pop(0))
            self.lines.append("")
        else:
            self.row += 1

    @property
    def text(self) -> str:
        return "\n".join([*self.history, *self.lines]).rstrip("\n")


class _Terminal(io.StringIO):
    """A file whose words appear on a screen."""

    def __init__(self) -> None:
        super().__init__()
        self.screen = _Screen()

    def write(self, text: str) -> int:
        self.screen.feed(text)
        return len(text)

    def isatty(self) -> bool:
        return True


_WORDS = st.text("ab .", min_size=1, max_size=5)
_STEPS = st.one_of(
    _WORDS,
    st.just("\n"),
    st.lists(_WORDS.map(lambda word: f"#{word}"), min_size=1, max_size=4),
)


@given(st.lists(_STEPS, max_size=30))
def test_what_is_written_stays_as_if_the_panel_had_never_been(
    steps: Sequence[str | list[str]],
) -> None:
    plain, shown = _Terminal(), _Terminal()
    panel = Panel(shown, lambda: plain.screen.column)
    for step in steps:
        if isinstance(step, str):
            plain.write(step)
            panel.write(step)
        else:
            panel.show(step)
            assert shown.screen.lines[shown.screen.row + 1 :][: len(step)] == step
    panel.clear()
    assert shown.screen.text == plain.screen.text
    assert shown.screen.column == plain.screen.column


def test_a_glance_in_a_few_lines() -> None:
    glance = Glance(
        width=4,
        running=[((2, 3), "test_pair", 3.0), ((0, 1), "test_other", 75.0)],
        over=10,
        total=40,
        failed=["test_bad"],
        left=130.0,
    )
    lines = lines_of(glance, 80)
    assert lines[0].split() == ["ranks", "0-1", "test_other", "1", "min", "15", "s"]
    assert lines[1].split() == ["ranks", "2-3", "test_pair", "3", "s"]
    assert lines[2] == "FAILED test_bad"
    assert lines[3].endswith("10 of 40, 1 failed, about 2 min 10 s left")
    assert lines[3].count("━") == 6


@given(
    st.integers(40, 200),
    st.lists(st.tuples(st.just((0,)), st.text(max_size=300), st.floats(0, 1e6)), max_size=9),
    st.lists(st.text(max_size=300), max_size=9),
)
def test_no_line_is_wider_than_the_window(
    columns: int, running: list[tuple[tuple[int], str, float]], failed: list[str]
) -> None:
    glance = Glance(width=4, running=running, over=3, total=3, failed=failed, left=None)
    lines = lines_of(glance, columns)
    assert len(lines) <= 9
    for line in lines:
        assert len(line) < columns
        assert line.isprintable() or not line


def test_the_live_view_is_not_shown_without_a_terminal_for_a_person() -> None:
    assert not can_show(_Terminal(), {"TERM": "xterm", "NO_COLOR": "1"})
    assert not can_show(_Terminal(), {"TERM": "xterm", "CI": "true"})
    assert not can_show(_Terminal(), {"TERM": "dumb"})
    assert not can_show(io.StringIO(), {"TERM": "xterm"})


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", True), ("latin-1", False)])
def test_a_terminal_that_cannot_write_the_bar_has_none(encoding: str, shown: bool) -> None:
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (40, 80))
    with os.fdopen(follower, "w", encoding=encoding) as file:
        assert can_show(file, {"TERM": "xterm"}) is shown
    os.close(leader)
