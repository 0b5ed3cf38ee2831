from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rankwise.notebooks import PROGRAM, NotebookOptions, needs_input, notebook_command


def written(folder: Path, *sources: str, metadata: object = None, tags: object = ()) -> Path:
    """Write a notebook with these cells, the last of which has the tags."""
    cells = [
        {"cell_type": "code", "metadata": {}, "source": source, "outputs": []} for source in sources
    ]
    if cells and tags:
        cells[-1]["metadata"] = {"tags": tags}
    path = folder / "one.ipynb"
    content = {"cells": cells, "metadata": metadata or {}, "nbformat": 4, "nbformat_minor": 4}
    path.write_text(json.dumps(content))
    return path


def test_the_command_says_only_what_differs_from_the_default() -> None:
    command = notebook_command(
        Path("a b.ipynb"), out="here", interpreter=sys.executable, options=NotebookOptions()
    )
    assert command == (
        *(sys.executable, str(PROGRAM), "a b.ipynb", "--out", "here"),
        *("--kernel-python", "python", "--html", "--junit", "here/results.xml"),
    )


def test_every_option_is_in_the_command() -> None:
    options = NotebookOptions(
        timeout=90,
        cell_timeout=1.5,
        parameters={"alpha": 1, "names": ["a", None]},
        html=False,
        pdf=True,
        as_script=True,
        compare="all",
        reuse_kernel=True,
        kernel_python="/opt/bin/python3",
    )
    command = notebook_command(
        Path("n.ipynb"), out="out", interpreter="python", options=options, program="/tmp/p"
    )
    assert command == (
        *("python", "-B", "/tmp/p", "n.ipynb", "--out", "out"),
        *("--kernel-python", "/opt/bin/python3", "--timeout", "90", "--cell-timeout", "1.5"),
        *("--parameters", '{"alpha": 1, "names": ["a", null]}', "--compare", "all"),
        *("--pdf", "--as-script", "--reuse-kernel", "--junit", "out/results.xml"),
    )


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("name = input('who? ')", "input"),
        ("%matplotlib inline\nprint(1)\nprint(input())", "input"),
        ("import getpass\nsecret = getpass.getpass()", "getpass"),
        ("from getpass import getpass\nsecret = getpass('?')", "getpass"),
        ("with open('f') as f:\n    f.write(input())", "input"),
        ("names = [input() for _ in range(3)]", "input"),
    ],
)
def test_a_cell_that_always_asks_is_found(tmp_path: Path, source: str, asked: str) -> None:
    assert needs_input(written(tmp_path, "1 + 1", source)) == f"cell 2 calls {asked}()"


@pytest.mark.parametrize(
    "source",
    [
        "def ask():\n    return input()",
        "ask = lambda: input()",
        "if False:\n    input()",
        "try:\n    input()\nexcept Exception:\n    pass",
        "x = 1 or input()",
        "def input():\n    return 1\nx = input()",
        "model.input(3)",
        "input_size = 3",
        "# input()",
        "'input()'",
        "%%bash\nread input",
        "input( this is no Python",
        "",
    ],
)
def test_a_cell_that_may_go_without_input_is_run(tmp_path: Path, source: str) -> None:
    assert needs_input(written(tmp_path, source)) == ""


@pytest.mark.parametrize("tag", ["skip-execution", "raises-exception"])
def test_cells_that_are_not_run_or_may_fail_ask_nobody(tmp_path: Path, tag: str) -> None:
    assert needs_input(written(tmp_path, "input()", tags=[tag])) == ""
    assert needs_input(written(tmp_path, "input()", tags=["other"]))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("mount the dataset first", "mount the dataset first"),
        (True, "its metadata says so"),
        (False, ""),
        (None, ""),
        (3, ""),
    ],
)
def test_a_notebook_may_say_so_itself(tmp_path: Path, said: object, reason: str) -> None:
    path = written(tmp_path, "1", metadata={"rankwise": {"needs_input": said}})
    assert needs_input(path) == reason


@pytest.mark.parametrize("text", ["", "[]", "{", '{"cells": 3}', '{"cells": [1, {}]}', "\xff"])
def test_a_file_that_is_no_notebook_is_not_said_to_need_input(tmp_path: Path, text: str) -> None:
    path = tmp_path / "one.ipynb"
    path.write_text(text, encoding="latin-1")
    assert needs_input(path) == ""
    assert needs_input(tmp_path / "nowhere.ipynb") == ""
