"""The way in: help, versions, wrong words, and how little is loaded for them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from rankwise import __version__
from rankwise.cli.main import VERBS, main
from tests.cli.conftest import Said

Rankwise = Callable[..., Said]
# Not pydantic: typer 0.29 loads it for itself.
HEAVY = {"ruamel", "rich", "sqlite3", "pytest"}


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_verb(rankwise: Rankwise, arguments: list[str]) -> None:
    said = rankwise(*arguments)
    assert said.code == 0
    for verb, summary in VERBS.items():
        assert f"  {verb.ljust(8)}  {summary}\n" in said.out


def test_help_fits_into_a_narrow_window(
    rankwise: Rankwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert all(len(line) <= 40 for line in rankwise("--help").out.splitlines())


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_told(rankwise: Rankwise, option: str) -> None:
    assert rankwise(option).out == f"rankwise {__version__}\n"


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("statuz", "rankwise: there is no command 'statuz': did you mean `status`?\n"),
        ("frobnicate", "rankwise: there is no command 'frobnicate': see rankwise --help\n"),
        ("--verbose", "rankwise: there is no option '--verbose': see rankwise --help\n"),
    ],
)
def test_wrong_words_are_refused(rankwise: Rankwise, word: str, expected: str) -> None:
    said = rankwise(word)
    assert (said.code, said.out, said.err) == (2, "", expected)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_teaches_by_example(rankwise: Rankwise, verb: str) -> None:
    said = rankwise(verb, "--help")
    assert said.code == 0
    assert VERBS[verb] + "." in " ".join(said.out.split())
    assert f"  For example:\n    {'run=$(' * (verb == 'submit')}rankwise {verb}" in said.out


def test_help_may_come_first(rankwise: Rankwise) -> None:
    assert rankwise("help", "run").out == rankwise("run", "--help").out


def test_wrong_options_are_refused_with_a_hint(rankwise: Rankwise) -> None:
    said = rankwise("status", "--jsno")
    assert said.code == 2
    assert "--json" in said.err
    assert "Traceback" not in said.err


def test_help_loads_next_to_nothing() -> None:
    assert not _loaded("--help") & (HEAVY | {"typer", "pydantic"})


def test_a_verb_loads_nothing_heavy_before_it_acts() -> None:
    for verb in VERBS:
        assert not _loaded(verb, "--help") & HEAVY


def _loaded(*arguments: str) -> set[str]:
    """Give the packages that a command has loaded, at their top."""
    code = (
        "import sys; from rankwise.cli.main import main; main(sys.argv[1:]);"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    line = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    return set(done.stderr.split())


def test_shells_can_ask_for_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_RANKWISE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "rankwise st")
    monkeypatch.setenv("COMP_CWORD", "1")
    line = [sys.executable, "-m", "rankwise.cli.main"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["status"]


def test_it_can_be_called_from_python() -> None:
    assert main(["--version"]) == 0
