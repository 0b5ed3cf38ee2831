"""What the program for notebooks does without a kernel."""

from __future__ import annotations

import ast
import base64
import dataclasses
import errno
import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rankwise.checks.judge import read_tests
from rankwise.notebooks import NotebookOptions, notebook_command, program_files
from rankwise.notebooks.program import artifacts, command_line
from rankwise.notebooks.program.artifacts import junit_of, page_of, pdf_of, write_artifacts
from rankwise.notebooks.program.cells import as_script, differences, inject, literal, pictures_of
from rankwise.notebooks.program.execution import NotebookRun
from rankwise.notebooks.program.kernels import choose_kernel
from rankwise.notebooks.program.notebook_results import (
    CellResult,
    Ended,
    NotebookFailure,
    NotebookOrder,
    NotebookResult,
    readable,
    write,
)
from tests.notebooks.books import Cell, notebook

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def book(*cells: Cell, **metadata: object) -> Any:
    """Return a notebook as nbformat has it."""
    nbformat: Any = pytest.importorskip("nbformat")
    return nbformat.from_dict(notebook(*cells, metadata=metadata))


def order(folder: Path) -> NotebookOrder:
    return NotebookOrder(notebook=folder / "one.ipynb", out=folder / "out")


def test_it_imports_nothing_of_ours_and_takes_what_the_planner_writes() -> None:
    trees = [ast.parse(text) for name, text in program_files().items() if name.endswith(".py")]
    assert len(trees) > 5
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            assert not [one.name for one in node.names if one.name.startswith("rankwise")]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1 or not str(node.module).startswith("rankwise")
    options = NotebookOptions(
        timeout=3, cell_timeout=1, parameters={"a": 1}, pdf=True, as_script=True, compare="all"
    )
    words = notebook_command(Path("n.ipynb"), out="out", interpreter="python", options=options)
    read = command_line._parser().parse_args(words[2:])
    (made,) = command_line._orders(read)
    assert made == NotebookOrder(
        notebook=Path("n.ipynb"),
        out=Path("out"),
        junit=Path("out/results.xml"),
        timeout=3.0,
        cell_timeout=1.0,
        parameters={"a": 1},
        html=True,
        pdf=True,
        as_script=True,
        compare="all",
    )


def test_several_notebooks_of_one_name_have_a_folder_each() -> None:
    read = command_line._parser().parse_args(["a/n.ipynb", "b/n.ipynb", "b/m.ipynb", "--out", "o"])
    folders = [str(one.out) for one in command_line._orders(read)]
    assert folders == ["o/n", "o/n-2", "o/m"]


# Which kernel


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"kernelspec": {"name": "python3"}},
        {"kernelspec": {"name": "my-env", "language": "python"}},
        {"language_info": {"name": "python", "version": "2.7.1"}},
        {"kernelspec": {"name": "conda-x"}, "language_info": {"name": "python"}},
    ],
)
def test_a_notebook_in_python_runs_with_the_python_of_the_runtime(
    tmp_path: Path, metadata: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    choice = choose_kernel(book("1", **metadata), order(tmp_path))
    assert choice.command[0] == str(python)


@pytest.mark.parametrize("name", ["rankwise", "kernelspec", "language_info", "execution"])
def test_metadata_that_are_no_table_count_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/{name}")
    text = json.dumps(notebook("1", metadata={name: "yes"}))
    (tmp_path / "one.ipynb").write_text(text)
    unused: Any = None
    run = NotebookRun(order(tmp_path), unused, is_quiet=True)
    choice = run.read()
    assert choice is not None
    assert choice.name == "/python"
    assert run.limit() == 600
    assert run._cell_limit(run.notebook.cells[0]) is None


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"kernelspec": {"name": "python2", "language": "python"}}, "Python 2"),
        ({"kernelspec": {"name": "no-such-kernel", "language": "R"}}, "'no-such-kernel'"),
        ({}, "there is no python in PATH"),
    ],
)
def test_a_kernel_that_is_missing_is_named(
    tmp_path: Path, metadata: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotebookFailure, match=reason) as raised:
        choose_kernel(book("1", **metadata), order(tmp_path))
    assert raised.value.outcome == "missing kernel"


# Parameters


@pytest.mark.parametrize(
    "value",
    [1, -2.5, "a 'quoted'\n\"text\"", True, None, [1, "b", None], {"a": [1, {"b": False}]}],
)
def test_a_parameter_is_written_in_python(value: object) -> None:
    assert ast.literal_eval(literal(value)) == value


def test_a_parameter_that_is_no_number_is_written_too() -> None:
    assert literal([float("inf"), float("nan")]) == "[float('inf'), float('nan')]"


def test_parameters_come_after_the_cell_that_is_tagged_for_them() -> None:
    made = book("#: text", ("a = 1", {"tags": ["parameters"]}), "a")
    assert inject(made, {"a": 2, "b": "x"}) == 2
    assert made.cells[2].source == "a = 2\nb = 'x'"
    assert made.cells[2].metadata.tags == ["injected-parameters"]
    # A second time they take the place of the first ones.
    assert inject(made, {"a": 3}) is None
    assert [cell.source for cell in made.cells] == ["text", "a = 1", "a = 3", "a"]


def test_parameters_come_first_where_no_cell_is_tagged_and_not_at_all_where_there_are_none() -> (
    None
):
    made = book("a")
    assert inject(made, {}) is None
    assert inject(made, {"a": 2}) == 0
    assert [cell.source for cell in made.cells] == ["a = 2", "a"]


# Outputs


def stream(text: str, name: str = "stdout") -> dict[str, object]:
    return {"output_type": "stream", "name": name, "text": text}


def shown(text: str) -> dict[str, object]:
    return {"output_type": "execute_result", "data": {"text/plain": text}, "metadata": {}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], []),
        ([stream("a\nb\n")], [stream("a\n"), stream("b\n")]),
        ([stream("a\n")], [stream("a\n"), stream("a warning\n", "stderr")]),
        ([stream("\x1b[31mred\x1b[0m\n")], [stream("red  \n")]),
        ([shown("<object at 0x7f0011223344>")], [shown("<object at 0x7fffffffffff>")]),
        ([stream(["a\n", "b\n"])], [stream("a\nb\n")]),  # type: ignore[arg-type]
    ],
)
def test_outputs_that_a_reader_would_call_equal_are(before: list[Any], after: list[Any]) -> None:
    assert differences(before, after) == ""


def test_outputs_that_differ_are_shown_line_by_line() -> None:
    said = differences([stream("1\n2\n"), shown("x")], [stream("1\n3\n"), shown("x")])
    assert said.splitlines()[2:] == ["@@ -1,3 +1,3 @@", " 1", "-2", "+3", " x"]


def test_progress_bars_are_shown_as_a_terminal_shows_them() -> None:
    assert readable("10%\r 50%\r100%\ndone\r\n\x1b[1mbold\x1b[0m") == "100%\ndone\nbold"


@pytest.mark.parametrize("value", ["hunter2-of-the-test", "a'b\"c<d>é-of-the-test"])
def test_the_values_of_secrets_are_in_nothing_that_a_notebook_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("TOKEN", value)
    monkeypatch.setenv("RANKWISE_SECRETS", "TOKEN")
    shown = [
        value,
        json.dumps(value),
        repr(value),
        base64.b64encode(f"u:{value}".encode()).decode(),
    ]
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": "\n".join(shown)},
        {"output_type": "error", "ename": "E", "evalue": value, "traceback": [f"E: {value}"]},
        {"output_type": "display_data", "data": {"image/svg+xml": f"<svg>{value}</svg>"}},
    ]
    made = book(("show()", {"outputs": outputs}))
    junit = tmp_path / "out" / "results.xml"
    one = dataclasses.replace(order(tmp_path), junit=junit, html=True)
    one.out.mkdir()
    unused: Any = None
    run = NotebookRun(one, unused, is_quiet=True)
    run.notebook = made
    case = CellResult(cell=1, title="show()", state="failed", reason=value, details=repr(value))
    run.result.cases = [case]
    run.result.fail(NotebookFailure(Ended.ERROR, f"E: {value}", cell=1, details=value))
    write_artifacts(run)
    left = sorted(one.out.iterdir())
    assert {"one.html", "one.ipynb", "outcome.json", "results.xml"} <= {path.name for path in left}
    for path in left:
        text = path.read_text()
        assert "***" in text
        for spelled in ("of-the-test", "hunter2", shown[-1][6:-4]):
            assert spelled not in text, path


def test_pictures_are_named_after_their_cells() -> None:
    made = book("#: x", ("plot()", {"outputs": []}))
    made.cells[1].outputs = [
        {"output_type": "display_data", "data": {"image/png": PIXEL, "text/plain": "x"}},
        {"output_type": "display_data", "data": {"image/svg+xml": ["<svg ", "/>"]}},
        {"output_type": "display_data", "data": {"image/png": "!"}},
        stream("none"),
    ]
    found = list(pictures_of(made, "book"))
    assert [(index, name) for index, name, _ in found][:2] == [
        (1, "book-cell2-1.png"),
        (1, "book-cell2-2.svg"),
    ]
    # A cell that was put in does not count.
    assert next(name for _, name, _ in pictures_of(made, "book", 0)) == "book-cell1-1.png"
    assert found[0][2].startswith(b"\x89PNG")
    assert found[1][2] == b"<svg />"


# As a script


def test_a_script_has_the_cells_one_after_the_other() -> None:
    made = book("#: text", "a = 1", ("b", {"tags": ["skip-execution"]}), "display(a)")
    assert as_script(made) == (
        "from IPython.display import display\n\n# cell 2\na = 1\n\n# cell 4\ndisplay(a)\n",
        "",
    )


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("%matplotlib inline", "cell 1 has magics"),
        ("!ls", "cell 1 has magics"),
        ("x = await y", "cell 1 has magics, or is no plain Python"),
        ("get_ipython().run_line_magic('time', '')", "cell 1 asks for IPython"),
        (("1 / 0", {"tags": ["raises-exception"]}), "cell 1 is expected to fail"),
    ],
)
def test_what_cannot_be_a_script_is_none(cell: Cell, reason: str) -> None:
    text, said = as_script(book(cell))
    assert (text, said.startswith(reason)) == ("", True)


# What is left behind


def test_the_results_of_cells_are_read_back_with_source_and_traceback(tmp_path: Path) -> None:
    one = order(tmp_path)
    one.notebook.write_text(json.dumps(notebook("a = 1", "boom(\x0b\n  a)", "3")))
    result = NotebookResult(one, Ended.ERROR, "cell 2: Error: no \x1b", 2)
    result.cases = [
        CellResult(1, "a = 1", "passed", 0.5),
        CellResult(2, "boom(", "failed", 0.1, "cell 2: Error: no \x1b", "Traceback …"),
        CellResult(3, "3", "skipped", reason="not run: cell 2"),
    ]
    path = tmp_path / "results.xml"
    path.write_bytes(junit_of(result))
    rows = list(read_tests(path))
    assert [(row.name, str(row.state), row.seconds) for row in rows] == [
        ("one::cell 1: a = 1", "passed", 0.5),
        ("one::cell 2: boom(", "failed", 0.1),
        ("one::cell 3: 3", "skipped", 0.0),
    ]
    for part in ("cell 2: Error: no", "   1 | boom(", "Traceback …"):
        assert part in rows[1].message
    assert rows[2].message == "not run: cell 2"


def test_what_no_cell_has_done_is_a_case_of_its_own(tmp_path: Path) -> None:
    result = NotebookResult(order(tmp_path), Ended.MISSING_KERNEL, "there is none")
    result.cases = [CellResult(1, "a", "skipped", reason="not run")]
    suite = ElementTree.fromstring(junit_of(result))[0]
    assert suite.attrib["failures"] == "1"
    assert suite[-1].attrib["name"] == "missing kernel"


def test_a_page_fetches_nothing_runs_nothing_and_shows_what_happened(tmp_path: Path) -> None:
    made = book("#: # Title\n<script>alert(1)</script>\n\n![x](pixel.png)", "a < b", "plot")
    (tmp_path / "pixel.png").write_bytes(b"\x89PNG")
    made.cells[1].outputs = [
        stream("<b>\x1b[31mout</b>\n"),
        {
            "output_type": "error",
            "ename": "E",
            "evalue": "v",
            "traceback": ["\x1b[31mE\x1b[0m: <v>"],
        },
    ]
    made.cells[2].outputs = [
        {"output_type": "display_data", "data": {"image/png": PIXEL}},
        {"output_type": "display_data", "data": {"image/svg+xml": "<svg/>"}},
        {"output_type": "display_data", "data": {"text/html": "<table></table>"}},
    ]
    result = NotebookResult(order(tmp_path), Ended.ERROR, "cell 2: E: <v>", 2)
    result.cases = [
        CellResult(2, "a < b", "failed", 0.2, "cell 2: E: <v>"),
        CellResult(3, "plot", "skipped"),
    ]
    page = page_of(made, result)
    assert "default-src 'none'" in page
    assert "<script>" not in page
    assert "http" not in page.replace("http-equiv", "")
    for part in (
        "<h1>Title</h1>",
        'src="data:image/png;base64,iVBORw0',
        'src="data:image/png;base64,iVBORw==',
        "data:image/svg+xml;base64,",
        "<table></table>",
        "&lt;b&gt;out&lt;/b&gt;",
        '<pre class="error">E: &lt;v&gt;</pre>',
        'one.ipynb: <span class="failed">error</span>',
    ):
        assert part in page, part


def test_a_pdf_is_set_by_typst_where_there_is_no_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("typst")
    monkeypatch.setattr(artifacts, "find_browser", lambda: "")
    made = book('#: #include "/etc/passwd" *text*', "x = `1`")
    made.cells[1].outputs = [
        stream("#panic()\n"),
        {"output_type": "display_data", "data": {"image/png": PIXEL}},
    ]
    assert pdf_of(made, tmp_path / "none.html").startswith(b"%PDF")


@pytest.mark.parametrize("data", [{"image/png": "AAAA"}, {"image/svg+xml": "<svg"}])
def test_a_picture_that_typst_cannot_read_is_a_reason_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: dict[str, str]
) -> None:
    pytest.importorskip("typst")
    monkeypatch.setattr(artifacts, "find_browser", lambda: "")
    made = book("plot()")
    made.cells[0].outputs = [{"output_type": "display_data", "data": data}]
    with pytest.raises(NotebookFailure, match=r"typst has made no PDF: failed to \w+"):
        pdf_of(made, tmp_path / "none.html")


def test_what_cannot_be_left_for_a_fault_of_ours_does_not_look_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str:
        raise ZeroDivisionError("of the test")

    monkeypatch.setattr(artifacts, "page_of", broken)
    unused: Any = None
    one = dataclasses.replace(order(tmp_path), junit=tmp_path / "out" / "results.xml", html=True)
    one.out.mkdir()
    run = NotebookRun(one, unused, is_quiet=True)
    run.notebook = book("1")
    write_artifacts(run)
    assert run.result.outcome == "internal error"
    said = json.loads((one.out / "outcome.json").read_text())
    assert said["reason"] == "ZeroDivisionError: of the test"
    assert "failure" in (one.out / "results.xml").read_text()
    assert (one.out / "one.ipynb").exists()


def test_what_is_there_from_another_time_is_not_taken_for_ours(tmp_path: Path) -> None:
    """After a kill of the program, files of an earlier run must not look like its own."""
    one = dataclasses.replace(order(tmp_path), junit=tmp_path / "junit" / "results.xml")
    left = [one.out / "one.ipynb", one.out / "one.html", one.out / "outcome.json"]
    left += [tmp_path / "junit" / "results.xml"]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert command_line._prepare_folder(one) == ""
    assert [path for path in left if path.exists()] == []


def test_a_file_is_written_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write(path, "first")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(path, "second")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("file", "first")]
