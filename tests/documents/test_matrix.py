"""Matrices, as people write them."""

from __future__ import annotations

import pytest

from rankwise.documents.matrix import Matrix
from tests.documents.conftest import complaints_about, parsed

BASE = "type: Matrix\nruntimes: {old: current, new: {requirements: []}}\ntests: [a.sh]\n"


def matrix(text: str) -> Matrix:
    model = parsed(text)
    assert isinstance(model, Matrix)
    return model


def test_names_alone_are_enough() -> None:
    model = matrix(BASE)
    assert model.runtimes["old"].runtime == "current"
    assert list(model.machines) == ["local"]
    assert model.machines["local"].compute == "local"
    assert model.tests[0].run == "a.sh"


def test_words_and_lists_mean_the_same() -> None:
    model = matrix(
        """\
type: Matrix
runtimes:
  m: {modules: gcc python/3.12, needs: gpu, machines: here}
machines: {here: {features: "mem>=64", max_parallel: 2}}
tests:
  - {run: a.ipynb, needs: [gpu, -avx512], runtimes: m*,
     notebooks: {parameters: {n: 3, deep: [1, {x: true}], word: "3"}}}
exclude: [{when: {machine: here}, reason: no}]
"""
    )
    assert model.runtimes["m"].modules == ("gcc", "python/3.12")
    assert model.runtimes["m"].needs == ("gpu",)
    assert model.machines["here"].features == ("mem>=64",)
    assert model.tests[0].runtimes == ("m*",)
    assert model.exclude[0].when == {"machine": ("here",)}
    notebooks = model.tests[0].notebooks
    assert notebooks is not None
    assert notebooks.parameters == {"n": 3, "deep": [1, {"x": True}], "word": "3"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("runtimes: {}\ntests: [a]\n", "2:1: a matrix needs at least one runtime"),
        ("runtimes: {a: current}\n", "1:1: a matrix needs at least one test"),
        (
            "runtimes: {a: {}}\ntests: [a]\n",
            "2:15: a runtime needs one of `python`, `runtime`, `requirements`, `lock`, `image` or `modules`",
        ),
        (
            "runtimes: {a: {requirements: [x], image: y}}\ntests: [a]\n",
            "2:35: a runtime has `requirements` or `image`, not both",
        ),
        (
            'runtimes: {a: {python: "3.12"}}\ntests: [a]\n',
            "2:16: a version alone is no runtime: add `requirements`, which may be empty, or name a path",
        ),
        (
            "runtimes: {a: {python: ./venv, lock: x}}\ntests: [a]\n",
            "2:16: `python` must be a version such as 3.12 here, not `./venv`",
        ),
        (
            "runtimes: {a: {requirements: [--pre]}}\ntests: [a]\n",
            "2:31: `--pre` is an option: put it into a file, as `lock`",
        ),
        (
            "runtimes: {a: {requirements: [./here]}}\ntests: [a]\n",
            "2:31: `./here` is a path: make an environment for it, and give its `python`",
        ),
        (
            "runtimes: {a: {engine: podman, runtime: b}}\ntests: [a]\n",
            "2:16: `engine` goes with `image` only",
        ),
        (
            "runtimes: {a: current}\ntests: [{run: a, needs: [gpu!]}]\n",
            (
                "3:26: `tests[1].needs[1]` must be a word such as gpu or -avx512, or such as mem>=64, "
                "cores>=8, gpus>=2, not 'gpu!'"
            ),
        ),
        (
            "runtimes: {a: current}\ntests: [{run: a, name: environment}]\n",
            "3:18: `environment` is the name of rankwise's own task in each cell: use another name",
        ),
        (
            "runtimes: {a: {runtime: b, tests: [{run: x, name: n}]}}\ntests: [{run: a, name: n}]\n",
            "2:45: a test is called `n` already",
        ),
        (
            "runtimes: {a: current}\ntests: [{suite: s.yaml, ranks: 2}]\n",
            "3:25: `ranks` goes with the tests in the suite itself",
        ),
        (
            "runtimes: {a: current}\ntests: [{name: b}]\n",
            "3:9: a test needs one of `run`, `files`, `pytest` or `suite`",
        ),
        (
            "runtimes: {a: current}\ntests: [{notebook: a.ipynb}]\n",
            (
                "3:10: unknown field `notebook`: did you mean `run`, which takes notebooks too, or "
                "`notebooks`, for options?"
            ),
        ),
    ],
)
def test_what_does_not_go_together_is_complained_of(text: str, complaint: str) -> None:
    assert complaints_about(f"type: Matrix\n{text}") == [complaint]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            "include: [{runtime: old}]",
            (
                "4:1: unknown field `include`: did you mean `add` (a cell more) or `set` (what is "
                "different in some)?"
            ),
        ),
        (
            "exclude: [{when: {runtime: odl}, reason: no}]",
            "4:19: there is no runtime `odl`: did you mean `old`?",
        ),
        (
            "exclude: [{when: {host: a}, reason: no}]",
            "4:19: `host` is nothing that a cell has: there are runtime, machine, test",
        ),
        ("set: [{when: {}, timeout: 3}]", "4:8: `when` must ask for something"),
        ("set: [{when: {machine: far}}]", "4:15: there is no machine `far`: there are local"),
        ("add: [{runtime: x, machine: local}]", "4:8: there is no runtime `x`: there are old, new"),
        ("exclude: [{when: {runtime: old}}]", "4:11: `reason` is missing in `exclude[1]`"),
        ("folder: a\ncode: b", "4:1: tests run in `folder` or in a copy of `code`, not both"),
    ],
)
def test_no_name_is_guessed(line: str, complaint: str) -> None:
    assert complaints_about(f"{BASE}{line}\n") == [complaint]


def test_patterns_may_fit_nothing_yet() -> None:
    assert matrix(f"{BASE}exclude: [{{when: {{runtime: 'torch-*'}}, reason: no}}]\n").exclude
