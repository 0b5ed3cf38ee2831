"""What all screens share."""

from __future__ import annotations

import io
import sys

import pytest

from rankwise.reports.failures import FailureExplanation
from rankwise.reports.palette import STYLES
from rankwise.reports.terminal.console import has_colours, is_narrow, make_console, show_rows
from rankwise.reports.terminal.live import TasksView
from rankwise.reports.terminal.run_end import show_explanation
from rankwise.safe_text import clean, clip_apart
from rankwise.store import State


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "with_colours", "without"),
    [
        ("plain text, größer", "plain text, größer", "plain text, größer"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m\x1b[0m", "red"),
        ("\x1b[2K\x1b[1Aup", "up", "up"),
        ("\x1b]0;title\x07text", "text", "text"),
        ("\x1b]0;no end", "", ""),
        ("\x1bcreset", "reset", "reset"),
        ("bell\x07 and\x00 null", "bell and null", "bell and null"),
        ("\x1b[31m\x1b[5Dred", "\x1b[31mred\x1b[0m", "red"),
        ("\x9b31mcsi", "31mcsi", "31mcsi"),
        ("tab\tstays", "tab\tstays", "tab\tstays"),
        ("\x1b", "", ""),
    ],
)
def test_lines_can_only_show_text(text: str, with_colours: str, without: str) -> None:
    assert clean(text, keep_colours=True) == with_colours
    assert clean(text, keep_colours=False) == without


def test_every_state_has_a_style() -> None:
    assert set(State) <= STYLES.keys()


def test_colours_are_for_terminals_whose_owners_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert has_colours(Terminal())
    assert not has_colours(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colours(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not has_colours(Terminal())


def test_nothing_is_wrapped_or_coloured_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    make_console().print("word " * 100, style="red")
    assert capsys.readouterr().out == "word " * 100 + "\n"


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_who_wants_no_colours_gets_no_escape_codes_at_all(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    make_console().print("text", style="bold red")
    assert "\x1b[" in terminal.getvalue()
    terminal.truncate(0)
    monkeypatch.setenv(variable, value)
    console = make_console()
    console.print("text", style="bold red")
    view = TasksView(console, total=2)
    view.refresh()
    view.close()
    assert "\x1b" not in terminal.getvalue()


def test_what_people_write_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    make_console(to_stderr=True).print("[red]array[0] :smile:")
    assert capsys.readouterr().err == "[red]array[0] :smile:\n"


def test_nothing_that_is_shown_reaches_the_terminal_as_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    reason = "no \x1b[2Jspace \x1b]0;title\x1b\\left\x9b1A"
    console = make_console()
    console.print(reason)
    show_rows(console, [[(reason, "bold"), ("\x1b", "red"), ("[2J", "dim")]])
    one = FailureExplanation(task="train", state=State.FAILED, reason=reason)
    show_explanation(console, one)
    assert not set("\x1b\x9b") & set(terminal.getvalue())
    assert "train failed: no space left1A" in terminal.getvalue()


@pytest.mark.parametrize(("columns", "expected"), [("40", True), ("80", False)])
def test_a_window_of_40_columns_is_narrow(
    columns: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert is_narrow(make_console()) is expected


LONG = [
    [(f"latency-of-a-collective-{name}", "bold"), ("passed", ""), ("x " * 60, "")] for name in "ab"
]


@pytest.mark.parametrize("is_cut", [True, False])
def test_no_table_is_wider_than_80_columns_and_names_stay_different(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_cut: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show_rows(make_console(), LONG, is_cut=is_cut)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    heads = [line for line in lines if "passed" in line]
    assert len(set(heads)) == 2
    assert all(line.startswith("    x ") for line in lines if "passed" not in line)


def test_names_that_are_cut_stay_different_wherever_they_differ() -> None:
    assert clip_apart(["abcdefgh", "xbcdefgh"], 5) == ["abcd…", "xbcd…"]
    assert clip_apart(["abcdefgh", "abcdefgx"], 5) == ["ab…gh", "ab…gx"]
    same, other = "a" * 20, "b" * 20
    assert clip_apart([f"{same}1{other}", f"{same}2{other}"], 5) == ["…1…bb", "…2…bb"]
    assert clip_apart(["abc", "abd"], 5) == ["abc", "abd"]
