"""Suites, as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.documents.load import header_of
from rankwise.documents.suite import Header, RankLauncher, Suite
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
        ranks=4, gpus=2, timeout=60, memory=2 << 30, optional=True, launcher=RankLauncher.PYTORCH
    )


@pytest.mark.parametrize(
    "text", ["", "print()\n", "# rankwise is nice\n", "x = '# rankwise: a=1'\n"]
)
def test_a_script_need_not_say_anything(tmp_path: Path, text: str) -> None:
    script = tmp_path / "a_test.py"
    script.write_text(text)
    assert header_of(script) == Header()


def test_only_the_beginning_of_a_script_is_looked_at(tmp_path: Path) -> None:
    script = tmp_path / "a_test.py"
    script.write_text("\n" * 40 + "# rankwise: ranks=4\n")
    assert header_of(script) == Header()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("# rankwise: rank=4", "2:13: unknown field `rank`: did you mean `ranks`?"),
        ("# rankwise: ranks=four", "2:19: `ranks` must be a whole number, not 'four'"),
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
