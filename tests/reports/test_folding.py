"""Sections of a CI's log, and text that stays text."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.reports.terminal.console import (
    GitHubSections,
    GitLabSections,
    Sections,
    github_title,
    plain_title,
    sections_for,
)

HOSTILE = "a\n::set-output name=x::1\r\n::endgroup::%0A::error::\x1b[2Jb ##[add-mask]c"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def obeyed_by_github(log: str) -> list[str]:
    """Give the lines that GitHub's runner would obey, by its rules."""
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


def test_a_section_of_github_is_a_group_in_which_nothing_is_obeyed() -> None:
    log = io.StringIO()
    sections = GitHubSections(log, new_token=lambda: "secret")
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


def test_a_section_of_gitlab_is_collapsed_and_named_once() -> None:
    log = io.StringIO()
    times: Iterator[float] = iter([10.5, 12.0, 13.0, 14.0])
    sections = GitLabSections(log, clock=lambda: next(times), new_token=lambda: "1 f")
    for title in ("train failed", HOSTILE):
        with sections.section(title):
            log.write("text\n")
    first, second = log.getvalue().split("text\n")[:2]
    assert first == (
        "\x1b[0Ksection_start:10:rankwise_1_f_1[collapsed=true]\r\x1b[0Ktrain failed\n"
    )
    assert second.splitlines()[0] == "\x1b[0Ksection_end:12:rankwise_1_f_1"
    assert "section_start:13:rankwise_1_f_2[" in second
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
