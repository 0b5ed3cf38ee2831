from __future__ import annotations

import pytest

from rankwise.launch.shell import read, skip_prefixes


def first_program(line: str) -> str | None:
    parts = read(line)
    assert parts is not None
    words = parts.commands[0].words
    place = next(skip_prefixes(words), None)
    return None if place is None else words[place].raw


@pytest.mark.parametrize(
    "line",
    [
        "prog -x",
        "A=b C='d e' prog",
        "env A=b prog",
        "env -i -u C A=b prog",
        "/usr/bin/env prog",
        "exec prog",
        "exec -a name prog",
        "time -p prog",
        "nohup nice -n 5 prog",
        "timeout -k 5 -s TERM 60 prog",
        "timeout --signal=KILL 1h prog",
        "stdbuf -oL -e L prog",
        "env -- prog",
        "A=b env C=d exec prog",
    ],
)
def test_what_stands_before_a_program_is_skipped(line: str) -> None:
    assert first_program(line) == "prog"


def test_a_program_within_a_word_is_not_found() -> None:
    assert first_program('env -S "A=b prog"') is None


def test_nothing_is_found_where_there_is_nothing() -> None:
    assert first_program("A=b") is None
    assert first_program("timeout 5") is None


def test_any_word_after_an_environment_tool_may_be_the_program() -> None:
    parts = read("uv run --with x torchrun a")
    assert parts is not None
    words = parts.commands[0].words
    assert [words[place].raw for place in skip_prefixes(words)] == [
        "uv",
        "run",
        "x",
        "torchrun",
        "a",
    ]
