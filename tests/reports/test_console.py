"""What all screens share."""

from __future__ import annotations

import io
import re
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.reports.failures import FailureExplanation
from rankwise.reports.markup import as_markup
from rankwise.reports.palette import STYLES
from rankwise.reports.terminal.console import (
    GitHubSections,
    GitLabSections,
    Sections,
    github_title,
    has_colours,
    is_narrow,
    make_console,
    plain_title,
    sections_for,
    show_rows,
)
from rankwise.reports.terminal.live import TasksView
from rankwise.reports.terminal.run_end import show_explanation
from rankwise.safe_text import clean, clip_apart, cut
from rankwise.store import State
from rankwise.wording import counted, duration, ending, fold, label, listed, short_path, size


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


def test_a_reason_of_several_lines_breaks_between_words_and_quotes_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "30")
    reason = "check 1: not found in the output of rank 0:\n  | a line that is quoted as it was"
    one = FailureExplanation(task="train", state=State.FAILED, reason=reason)
    show_explanation(make_console(), one)
    assert terminal.getvalue() == (
        "train failed: check 1: not \nfound in the output of rank 0:\n"
        "  | a line that is quoted as it was\n"
    )


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
    assert clip_apart(["abc", "abx"], 5) == ["abc", "abx"]


# Sections of a CI's log, and text that stays text

HOSTILE = "a\n::set-output name=x::1\r\n::endgroup::%0A::error::\x1b[2Jb ##[add-mask]c"


def obeyed_by_github(log: str) -> list[str]:
    """Return the lines that GitHub's runner would obey, by its rules."""
    resumed, found = "", []
    for line in re.split(r"\r\n|\r|\n", log):
        is_command = line.lstrip().startswith("::") or "##[" in line
        if resumed:
            resumed = "" if line.strip() == f"::{resumed}::" else resumed
        elif line.startswith("::stop-commands::"):
            resumed = line.removeprefix("::stop-commands::")
        elif is_command:
            found.append(line)
    assert not resumed, "it listens to nothing any more"
    return found


def test_a_section_of_github_is_a_group_in_which_nothing_is_obeyed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(secrets, "token_urlsafe", lambda: "secret")
    log = io.StringIO()
    sections = GitHubSections(log)
    with sections.section("train failed: exit code 7"):
        log.write("::error::mine\n")
    assert log.getvalue() == (
        "::group::train failed: exit code 7\n"
        "::stop-commands::rankwise-secret\n"
        "::error::mine\n"
        "::rankwise-secret::\n"
        "::endgroup::\n"
    )


def test_neither_titles_nor_output_can_command_github() -> None:
    log = io.StringIO()
    sections = GitHubSections(log)
    with sections.inert():
        log.write(f"{HOSTILE}\n::stop-commands::mine\n::mine::\n")
    with sections.section(HOSTILE):
        log.write(f"{HOSTILE}\n")
    obeyed = obeyed_by_github(log.getvalue())
    assert obeyed == [f"::group::{github_title(HOSTILE)}", "::endgroup::"]
    assert "%0A" not in obeyed[0]
    assert "\x1b" not in obeyed[0]


def test_the_word_that_ends_it_is_another_each_time() -> None:
    log = io.StringIO()
    sections = GitHubSections(log)
    for _ in range(3):
        with sections.inert():
            pass
    words = re.findall(r"::stop-commands::(\S+)", log.getvalue())
    assert len(set(words)) == 3
    assert min(map(len, words)) > 30


def test_github_listens_again_after_an_error() -> None:
    log = io.StringIO()
    with pytest.raises(ValueError, match="broken"), GitHubSections(log).section("a"):
        raise ValueError("broken")
    assert obeyed_by_github(log.getvalue()) == ["::group::a", "::endgroup::"]


def test_a_section_of_gitlab_is_collapsed_and_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    times: Iterator[float] = iter([10.5, 12.0, 13.0, 14.0])
    tokens = iter(["1f", "2e"])
    monkeypatch.setattr(time, "time", lambda: next(times))
    monkeypatch.setattr(secrets, "token_hex", lambda length: next(tokens))
    log = io.StringIO()
    sections = GitLabSections(log)
    for title in ("train failed", HOSTILE):
        with sections.section(title):
            log.write("text\n")
    first, second = log.getvalue().split("text\n")[:2]
    assert first == ("\x1b[0Ksection_start:10:rankwise_1f[collapsed=true]\r\x1b[0Ktrain failed\n")
    assert second.splitlines()[0] == "\x1b[0Ksection_end:12:rankwise_1f"
    assert "section_start:13:rankwise_2e[" in second
    # Two before and after its own words, and none by the title.
    assert second.count("\x1b") == 4


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Sections),
        ({"GITHUB_ACTIONS": "true"}, GitHubSections),
        ({"GITLAB_CI": "true", "NO_COLOR": "1"}, GitLabSections),
        ({"GITHUB_ACTIONS": "", "GITLAB_CI": "false", "CI": "true"}, Sections),
    ],
)
def test_the_variables_of_a_ci_say_what_it_understands(
    environment: dict[str, str], expected: type
) -> None:
    assert type(sections_for(io.StringIO(), environment)) is expected
    assert type(sections_for(Terminal(), environment)) is Sections


def test_where_nothing_is_folded_nothing_is_added() -> None:
    sections = Sections()
    with sections.inert(), sections.section("a"):
        pass
    assert not sections.are_folded


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train", "train"),
        ("a\nb\r\nc", "a b c"),
        ("\x1b[31mred\x1b[0m\x07", "red"),
        ("##[error]x", "## [error]x"),
        ("x" * 200, "x" * 159 + "…"),
    ],
)
def test_a_title_is_one_plain_line(text: str, expected: str) -> None:
    assert plain_title(text) == expected


def test_what_is_written_to_a_file_has_no_words_for_a_ci(tmp_path: Path) -> None:
    with (tmp_path / "log.txt").open("w") as file:
        found = sections_for(file, {"GITHUB_ACTIONS": "true", "GITLAB_CI": "true"})
        with found.inert(), found.section("train"):
            file.write("line\n")
    assert (tmp_path / "log.txt").read_text() == "line\n"


# ansi


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m not", '<span class="a1">red</span> not'),
        ("\x1b[1;92mgood\x1b[22m\x1b[39m!", '<span class="a2 b">good</span>!'),
        ("\x1b[38;5;31mmany\x1b[0m", "many"),
        ("a\x1b[2Jb\x1b]0;title\x07c\x08d", "abcd"),
        ("<b>&\x1b[31m<i>", '&lt;b&gt;&amp;<span class="a1">&lt;i&gt;</span>'),
        ("\x1b[31", "31"),
        ("", ""),
    ],
)
def test_colours_stay_and_nothing_else_of_a_terminal_does(line: str, shown: str) -> None:
    assert as_markup(line) == shown


def test_a_line_without_end_is_cut() -> None:
    assert len(as_markup("x" * 10**6)) < 500
    assert len(cut(clean("\x1b[31m" + "x" * 10**6, keep_colours=False))) < 500


# Times, sizes, names and ends in words


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("worker-2", "worker 2"),
        ("launcher", "launcher"),
        ("parameter-server-10", "parameter-server 10"),
    ],
)
def test_a_process_is_called_by_its_role_and_number(name: str, expected: str) -> None:
    assert label(name) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        (["rank-0"], "rank 0"),
        (["rank-2", "rank-0", "rank-1"], "rank 0-2"),
        (["rank-0", "rank-1", "rank-7"], "rank 0-1, 7"),
        (["launcher", "rank-3"], "launcher and rank 3"),
        (["ps-0", "worker-0", "worker-1", "chief"], "ps 0, worker 0-1 and chief"),
    ],
)
def test_many_processes_are_named_shortly(names: list[str], expected: str) -> None:
    assert fold(names) == expected


def test_long_lists_are_cut() -> None:
    assert listed([]) == ""
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(["a", "b", "c"], most=3) == "a, b and c"
    assert listed(["a", "b", "c", "d"], most=2) == "a, b and 2 more"


def test_nouns_have_their_plurals() -> None:
    assert counted(1, "process") == "1 process"
    assert counted(4, "process") == "4 processes"
    assert counted(0, "task") == "0 tasks"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-0.1, "0 ms"),
        (0.0123, "12 ms"),
        (0.9999, "1.0 s"),
        (1.25, "1.2 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (90000, "1 d 01 h"),
    ],
)
def test_durations_are_as_exact_as_they_need_to_be(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (2048, "2 KiB"), (3 << 30, "3 GiB"), (5 << 50, "5120 TiB")],
)
def test_sizes_have_units(number: int, expected: str) -> None:
    assert size(number) == expected


def test_signals_have_names() -> None:
    assert ending(7, None) == "exit code 7"
    assert ending(None, 11) == "signal 11 (SIGSEGV)"
    assert ending(None, 63) == "signal 63"
    assert ending(None, None) == "an unknown end"


def test_paths_are_shortened_where_they_are_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_path(f"{tmp_path}/runs/job-1") == "runs/job-1"
    assert short_path("/usr/bin") == "/usr/bin"
    assert short_path("") == ""
