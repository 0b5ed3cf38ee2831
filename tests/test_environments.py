"""How an environment of the tests is tried: by its exit code and by a line of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from environments import EVERYTHING, MARK, EnvironmentFailure, Framework, run_trial

ANSWER = f"print('{MARK} 2 Library 7.1')"


@pytest.fixture
def tried(tmp_path: Path) -> Framework:
    """An environment whose Python is this one; its trial is `program.py` there."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    program = tmp_path / "program.py"
    return Framework(
        name="fake",
        folder=tmp_path,
        requirements=(),
        library="Library 7",
        arguments=(str(program),),
    )


def give(environment: Framework, *lines: str) -> None:
    """Write the program of its trial."""
    (environment.folder / "program.py").write_text("\n".join(["import sys", *lines]))


def test_advice_before_and_after_the_answer_does_not_matter(tried: Framework) -> None:
    give(
        tried,
        "print('I0000 port.cc:153] oneDNN custom operations are on.', file=sys.stderr, flush=True)",
        "print('WARNING: messages before InitializeLog() go elsewhere')",
        ANSWER,
        "print('2 other things')",
        "print('bye', file=sys.stderr)",
    )
    assert run_trial(tried) == "Library 7.1"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([ANSWER, "sys.exit(3)"], id="another exit code"),
        pytest.param([f"print('{MARK} 2 Library 7.1', file=sys.stderr)"], id="on stderr"),
        pytest.param(["print('2 Library 7.1')"], id="without the mark"),
        pytest.param([f"print('see {MARK} 2 Library 7.1')"], id="inside a line"),
        pytest.param([f"print('{MARK} 2 Library 6.9')"], id="another library"),
        pytest.param([f"print('{MARK} 1 Library 7.1')"] * 2, id="ranks that are alone"),
        pytest.param([ANSWER, ANSWER], id="two answers"),
        pytest.param([], id="no answer"),
    ],
)
def test_the_right_words_in_the_wrong_way_are_refused(tried: Framework, lines: list[str]) -> None:
    give(tried, *lines, "print('the last word', file=sys.stderr)")
    with pytest.raises(
        EnvironmentFailure, match=r"fake: its trial with .* should have ended with 0"
    ):
        run_trial(tried)


def test_a_trial_that_fails_shows_both_streams(tried: Framework) -> None:
    give(tried, "print('on stdout')", "print('on stderr', file=sys.stderr)", "sys.exit(3)")
    with pytest.raises(EnvironmentFailure) as raised:
        run_trial(tried)
    _, _, shown = str(raised.value).partition("it ended with 3 and printed:\n")
    assert shown.split("--- stderr\n") == ["on stdout\n\n", "on stderr\n"]


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_every_trial_prints_the_mark(name: str) -> None:
    assert MARK in " ".join(map(str, EVERYTHING[name].trial()))
