"""Runs in which nothing ran: everything that is told of them says so, and none of it is green."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Said

WHY = "nothing ran: needs gpu, which here does not have (2 tasks)"
MATRIX = """\
name: none
type: Matrix
runtimes: {old: current, new: current}
machines: {here: {features: [-gpu]}}
tests: [{name: a, run: "true", needs: gpu}]
"""
SUITE = """\
name: none
type: Suite
tests: [{name: a, run: "true", requires: {cores: 99999}, optional: true}]
"""


@pytest.fixture
def matrix(project: Path) -> str:
    (project / "matrix.yaml").write_text(MATRIX)
    return "matrix.yaml"


def test_a_matrix_in_which_nothing_could_run_is_not_green(
    rankwise: Callable[..., Said], matrix: str
) -> None:
    said = rankwise("run", matrix, "--junit", "results.xml", "--markdown", "summary.md")
    assert said.code == 1
    assert "none-1 not run" in said.out
    assert WHY in said.out
    (error,) = ElementTree.parse("results.xml").getroot().iter("error")
    assert error.get("message") == WHY
    counts = ElementTree.parse("results.xml").getroot().attrib
    assert (counts["tests"], counts["errors"], counts["skipped"]) == ("3", "1", "2")
    assert WHY in Path("summary.md").read_text()
    for verb in ("explain", "status"):
        assert WHY in rankwise(verb).out.replace("\n", " ")


def test_github_is_told_that_nothing_ran(
    rankwise: Callable[..., Said], matrix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert f"::error title=none-1 not run::{WHY}\n" in rankwise("run", matrix).out


def test_a_suite_of_optional_tests_of_which_none_could_run_is_not_green(
    rankwise: Callable[..., Said], project: Path
) -> None:
    (project / "suite.yaml").write_text(SUITE)
    said = rankwise("run", "suite.yaml")
    assert said.code == 1
    assert "none-1 not run" in said.out
    assert "nothing ran: needs 99999 cores" in said.out
