"""Models of suites, matrices and checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise import plan
from rankwise.documents.load import header_of
from rankwise.documents.matrix import Matrix
from rankwise.documents.suite import Header, Suite
from rankwise.errors import InputError
from tests.documents.conftest import complaints_about, parsed


def test_one_line_is_a_test() -> None:
    suite = parsed("type: Suite\ntests:\n- dummy_distributed_test.py\n")
    assert isinstance(suite, Suite)
    assert suite.tests[0].run == "dummy_distributed_test.py"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("tests:\n- {name: a}\n", "3:3: a test needs one of `run`, `files` or `pytest`"),
        ("tests:\n- {command: a}\n", "3:4: unknown field `command`: did you mean `run`?"),
        ("tests:\n- {run: a, rank: 2}\n", "3:12: unknown field `rank`: did you mean `ranks`?"),
        ("tests:\n- {run: a, gpus: 2}\n", "3:12: unknown field `gpus`: put it into `requires`"),
        (
            "tests:\n- {run: a, requires: {gpu: 2}}\n",
            "3:23: unknown field `gpu`: did you mean `gpus`?",
        ),
        ("tests:\n- {run: a, pytest: b}\n", "3:12: a test has `run` or `pytest`, not both"),
        (
            "tests:\n- {files: '*.py', name: b}\n",
            "3:19: tests that are found are named after their files",
        ),
        (
            "tests:\n- {run: a, name: x}\n- {run: b, name: x}\n",
            "4:12: a test is called `x` already",
        ),
        ("tests: []\n", "2:1: a suite needs at least one test"),
        (
            "tests:\n- {run: a, ranks: 3, nodes: 2}\n",
            "3:22: `ranks` must be a multiple of `nodes` (2)",
        ),
        ("test:\n- a\n", "2:1: unknown field `test`: did you mean `tests`?"),
        (
            "code: a\nfolder: b\ntests: [x]\n",
            "3:1: tests run in `folder` or in a copy of `code`, not both",
        ),
        (
            "tests:\n- {run: a, optional: maybe}\n",
            "3:22: `tests[1].optional` must be `true` or `false`, not 'maybe'",
        ),
        (
            "tests:\n- {run: a, launcher: mpirun}\n",
            "3:22: `tests[1].launcher` must be `mpi` or `pytorch`, not 'mpirun'; did you mean `mpi`?",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, complaint: str) -> None:
    assert complaints_about(f"type: Suite\n{text}") == [complaint]


# Headers


def test_a_script_says_of_itself_what_it_needs(tmp_path: Path) -> None:
    script = tmp_path / "a_test.py"
    script.write_text(
        "#!/usr/bin/env python\n# rankwise: ranks=4 gpus=2 timeout=60\n"
        "#rankwise:  memory=2Gi optional=true launcher=pytorch\nprint()\n"
    )
    assert header_of(script) == Header(
        ranks=4, gpus=2, timeout=60, memory=2 << 30, optional=True, launcher="pytorch"
    )


@pytest.mark.parametrize(
    "text", ["", "print()\n", "# rankwise is nice\n", "x = '# rankwise: a=1'\n"]
)
def test_a_script_need_not_say_anything(tmp_path: Path, text: str) -> None:
    script = tmp_path / "a_test.py"
    script.write_text(text)
    assert header_of(script) == Header()


def test_a_line_that_is_cut_off_by_the_limit_is_no_header(tmp_path: Path) -> None:
    script = tmp_path / "a_test.py"
    last = "\n# rankwise: timeout=60\n"
    script.write_text("#" + "x" * (20_000 - len(last)) + last)
    assert header_of(script) == Header()


def test_only_the_beginning_of_a_script_is_looked_at(tmp_path: Path) -> None:
    script = tmp_path / "a_test.py"
    script.write_text("\n" * 40 + "# rankwise: ranks=4\n")
    assert header_of(script) == Header()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("# rankwise: rank=4", "2:13: unknown field `rank`: did you mean `ranks`?"),
        ("# rankwise: ranks=four", "2:19: `ranks` must be a whole number or `gpus`, not 'four'"),
        ("# rankwise: ranks 4", "2:13: must be `name=value`, not 'ranks'"),
        ("# rankwise: ranks=4 ranks=2", "2:21: `ranks` is there already"),
        ("# rankwise: timeout=soon", "2:21: `timeout` must be a time"),
    ],
)
def test_a_wrong_header_is_told_with_its_place(tmp_path: Path, line: str, complaint: str) -> None:
    script = tmp_path / "a_test.py"
    script.write_text(f"#!/bin/python\n{line}\n")
    with pytest.raises(InputError) as caught:
        header_of(script)
    assert str(caught.value).startswith(f"{script}:{complaint}")


# Matrices, as people write them

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


# Checks, as documents have them

SUITE = "type: Suite\ntests:\n- run: echo\n  checks:\n"


def planned(check: str) -> plan.Check:
    suite = parsed(f"{SUITE}  - {check}\n")
    assert isinstance(suite, Suite)
    (one,) = suite.tests[0].checks
    return one.planned(Path("/d"))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("all is well", plan.Check(kind="contains", what="all is well")),
        ("12", plan.Check(kind="contains", what="12")),
        ("absent: Traceback", plan.Check(kind="absent", what="Traceback")),
        (
            r"{regex: 'rank (\d+)', count: 4, on: stdout, rank: all}",
            plan.Check(kind="regex", what=r"rank (\d+)", on="stdout", rank="all", least=4, most=4),
        ),
        ("{regex: a, count: '>= 2'}", plan.Check(kind="regex", what="a", least=2)),
        ("{regex: a, count: '> 2'}", plan.Check(kind="regex", what="a", least=3)),
        ("{regex: a, count: <= 2}", plan.Check(kind="regex", what="a", least=0, most=2)),
        ("{regex: a, count: <2}", plan.Check(kind="regex", what="a", least=0, most=1)),
        ("{contains: a, count: 1..3}", plan.Check(kind="contains", what="a", least=1, most=3)),
        ("{contains: a, rank: 0}", plan.Check(kind="contains", what="a", rank="0")),
        (
            "{json: $.loss, on: metrics.json, less_than: 0.5}",
            plan.Check(
                kind="json", what="$.loss", on="metrics.json", compare="less_than", value=0.5
            ),
        ),
        (
            "{json: $.ok, equals: true}",
            plan.Check(kind="json", what="$.ok", compare="equals", value=True),
        ),
        (
            "{json: $.n, equals: '4'}",
            plan.Check(kind="json", what="$.n", compare="equals", value="4"),
        ),
        (
            "{json: $.n, approx: 4, tolerance: 0.5}",
            plan.Check(kind="json", what="$.n", compare="approx", value=4.0, tolerance=0.5),
        ),
        ("exists: model.pt", plan.Check(kind="exists", what="model.pt")),
        ("exit_code: 3", plan.Check(kind="exit_code", codes=(3,))),
        ("exit_code: [0, 3]", plan.Check(kind="exit_code", codes=(0, 3))),
        (
            "{python: checks.py:small, timeout: 1m}",
            plan.Check(kind="python", what="/d/checks.py:small", seconds=60.0),
        ),
    ],
)
def test_a_check_means_what_it_says(written: str, meant: plan.Check) -> None:
    assert planned(written) == meant


@pytest.mark.parametrize(
    ("written", "meant"), [("4", 4), ("4.0", 4.0), ("'4'", "4"), ("true", True), ("yes", "yes")]
)
def test_a_value_stays_what_it_is(written: str, meant: str | float) -> None:
    found = planned(f"{{json: $.n, equals: {written}}}").value
    assert (found, type(found)) == (meant, type(meant))


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("contain: x", "5:5: unknown field `contain`: did you mean `contains`?"),
        ("{regx: x, count: 2}", "5:6: unknown field `regx`: did you mean `regex`?"),
        ("not_contains: x", "5:5: unknown field `not_contains`: did you mean `absent`?"),
        (
            "{count: 2}",
            (
                "5:5: a check needs one of `contains`, `absent`, `regex`, `json`, `exists`, "
                "`exit_code` or `python`"
            ),
        ),
        ("{contains: x, regex: y}", "5:19: a check has `contains` or `regex`, not both"),
        (
            "{exists: x, count: 2}",
            "5:17: `count` goes with `contains` or `regex`, not with `exists`",
        ),
        (
            "{absent: x, less_than: 2}",
            "5:17: `less_than` goes with `json`, not with `absent`",
        ),
        ("{json: $.a, tolerance: 2}", "5:17: `tolerance` goes with `approx`"),
        (
            "{json: $.a, equals: 2, approx: 3}",
            "5:28: a check has `equals` or `approx`, not both",
        ),
        (
            "regex: a(",
            (
                "5:12: `tests[1].checks[1].regex` is no regular expression of Python: "
                "missing ), unterminated subpattern at position 1"
            ),
        ),
        (
            "json: loss",
            (
                "5:11: `tests[1].checks[1].json` must begin with `$`, which is the whole, "
                "as in `$.loss`"
            ),
        ),
        (
            "{contains: x, count: many}",
            (
                "5:26: `tests[1].checks[1].count` must be a number, or such as `>= 2`, `< 5` or "
                "`1..3`, not 'many'"
            ),
        ),
        (
            "{contains: x, count: 3..1}",
            "5:26: `tests[1].checks[1].count` must go up, not down: '3..1'",
        ),
        (
            "{contains: x, rank: last}",
            "5:25: `tests[1].checks[1].rank` must be the number of a rank, or `all`, not 'last'",
        ),
        (
            "exit_code: 256",
            "5:16: `tests[1].checks[1].exit_code` must be at most 255, not 256",
        ),
        (
            "python: small",
            (
                "5:13: `tests[1].checks[1].python` must be FILE.py:FUNCTION, such as "
                "`checks.py:is_small`, not 'small'"
            ),
        ),
    ],
)
def test_a_check_that_is_wrong_is_told_so(written: str, complaint: str) -> None:
    assert complaints_about(f"{SUITE}  - {written}\n") == [complaint]
