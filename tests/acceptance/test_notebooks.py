"""Notebooks, run with real kernels: by the program, and as tests of pytest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rankwise.notebooks import PROGRAM, program_files
from tests.acceptance.harness import Outcome, Project
from tests.acceptance.leftovers import check_that_nothing_is_left, processes_of, wait_until_gone
from tests.lengths import IS_FULL
from tests.notebooks.books import PYTHON, Cell, write_notebook
from tests.notebooks.field import EVERY_DAY, EXPECTED, fetch

QUICK = {**PYTHON, "rankwise": {"timeout": 2}}
PLOT = """
from IPython.display import SVG, display
display(SVG('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect/></svg>'))
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
time.sleep(1000)
"""
LEAVES_PROCESSES = """
import subprocess
subprocess.Popen(["setsid", "sleep", "1000"])
subprocess.Popen(["sleep", "1000"])
"""


def run_program(
    project: Project, *words: object, temporary: Path, limit: float = 100.0, **variables: str
) -> Outcome:
    """Run the program for notebooks; the kernel is the `python` of the project's environment."""
    path = f"{project.mpi.folder / 'bin'}:{os.environ['PATH']}"
    command = [str(project.mpi.python), str(PROGRAM), *map(str, words)]
    environment = {"PATH": path, "TMPDIR": str(temporary), **variables}
    return project.run(command, limit=limit, environment=environment)


def outcome_in(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "outcome.json").read_text())
    return read


# All that may become of a notebook: the outcome, and a part of the reason.
ENDS: dict[str, tuple[str, str, tuple[Cell, ...], dict[str, Any]]] = {
    "passes": ("passed", "", ("#: text", "x = 1", "print(x + 1)"), {}),
    "raises": (
        "error",
        "cell 2: ValueError: bad",
        ("x = 1", "def f():\n    raise ValueError('bad')\nf()", "x"),
        {},
    ),
    "leaves": ("error", "cell 1: sys.exit(0)", ("import sys; sys.exit(0)", "1"), {}),
    "exits": ("error", "cell 2 ends the kernel by exit()", ("1", "exit()"), {}),
    "ends": ("kernel died", "exited with code 0, in cell 1", ("import os; os._exit(0)",), {}),
    "killed": (
        "kernel died",
        "was ended by SIGKILL",
        ("print('so far', flush=True)", "import os; os.kill(os.getpid(), 9)"),
        {},
    ),
    "asks": ("needs input", "cell 1 asks for input", ("x = [input][0]()",), {}),
    "manual": (
        "needs input",
        "mount the data first",
        ("1 / 0",),
        {**PYTHON, "rankwise": {"needs_input": "mount the data first"}},
    ),
    "hangs": (
        "timed out",
        "the notebook took longer than 2 s, in cell 1",
        ("import time\ntime.sleep(1000)", "1"),
        QUICK,
    ),
    "slow-cell": (
        "timed out",
        "cell 1 took longer than 1 s",
        (("import time; time.sleep(1000)", {"metadata": {"execution": {"timeout": 1}}}),),
        {},
    ),
    "stubborn": (
        "timed out",
        "the kernel ignored the interrupt and was killed",
        (STUBBORN,),
        QUICK,
    ),
    "floods": ("timed out", "took longer than 2 s", ("while True: print('x' * 999)",), QUICK),
    "other-language": (
        "missing kernel",
        "there is no kernel 'no-such-kernel' here",
        ("1",),
        {"kernelspec": {"name": "no-such-kernel", "language": "R", "display_name": "R"}},
    ),
    "tagged": (
        "passed",
        "",
        (
            ("1 / 0", {"tags": ["raises-exception"]}),
            ("1 / 0", {"tags": ["skip-execution"]}),
            PLOT,
        ),
        {},
    ),
    "leaves-processes": ("passed", "", (LEAVES_PROCESSES,), {}),
}


def test_every_notebook_ends_with_its_outcome_and_leaves_no_process(
    project: Project, temporary: Path
) -> None:
    """One run for all of them, two at a time."""
    folder, out = project.folder, project.folder / "out"
    books = [
        write_notebook(folder / f"{name}.ipynb", *cells, metadata=metadata or PYTHON)
        for name, (_, _, cells, metadata) in ENDS.items()
    ]
    (folder / "no-json.ipynb").write_text("{")
    books.append(folder / "no-json.ipynb")
    said = run_program(project, *books, "--out", out, "--html", temporary=temporary)
    assert said.exit_code == 1, said
    assert said.errors == ""
    found = {path.name: outcome_in(path) for path in out.iterdir()}
    assert {name: one["outcome"] for name, one in found.items()} == {
        **{name: outcome for name, (outcome, *_) in ENDS.items()},
        "no-json": "unreadable",
    }
    for name, (_, reason, _, _) in ENDS.items():
        assert reason in found[name]["reason"], (name, found[name])
        assert f"{name}.ipynb: {found[name]['outcome']}" in said.output
        assert (out / name / f"{name}.html").is_file()
        # Whatever has become of it, there is an executed notebook.
        assert json.loads((out / name / f"{name}.ipynb").read_text())["cells"]
    raised = found["raises"]
    assert [cell["state"] for cell in raised["cells"]] == ["passed", "failed", "skipped"]
    assert raised["cell"] == 2
    assert "\x1b" not in raised["details"]
    assert "raise ValueError('bad')" in raised["details"]
    cases = ElementTree.parse(out / "raises" / "results.xml").getroot().iter("testcase")
    failed = [case.find("failure") for case in cases]
    assert [fault is not None for fault in failed] == [False, True, False]
    assert failed[1] is not None
    assert "   2 |     raise ValueError('bad')" in (failed[1].text or "")
    # Where it hangs is seen in the report: it was interrupted there.
    assert "time.sleep(1000)" in found["hangs"]["details"]
    assert "so far" in (out / "killed" / "killed.ipynb").read_text()
    assert (out / "floods" / "floods.ipynb").stat().st_size < 30_000_000
    assert (out / "tagged" / "tagged-cell3-1.svg").read_text().startswith("<svg")
    check_that_nothing_is_left(project, temporary)


def test_parameters_scripts_comparisons_pdf_and_one_kernel_for_several(
    project: Project, temporary: Path
) -> None:
    folder, out = project.folder, project.folder / "out"
    stored = [{"output_type": "stream", "name": "stdout", "text": "2\n"}]
    first = write_notebook(
        folder / "first.ipynb",
        ("factor = 1", {"tags": ["parameters"]}),
        ("print(factor)", {"tags": ["check-output"], "outputs": stored}),
        "import os\nos.environ['LEFT_BEHIND'] = 'yes'\nname = 1",
    )
    second = write_notebook(
        folder / "second.ipynb",
        "import os\nassert 'name' not in globals()\nprint(os.environ['LEFT_BEHIND'])",
        "%time 1",
        ("print(factor)", {"tags": ["check-output"]}),
    )
    wishes = ("--parameters", '{"factor": 2}', "--as-script", "--pdf", "--reuse-kernel")
    said = run_program(project, first, second, "--out", out, *wishes, temporary=temporary)
    assert said.exit_code == 1, said
    one, two = outcome_in(out / "first"), outcome_in(out / "second")
    assert one["outcome"] == "passed", one
    assert [(cell["cell"], cell["title"]) for cell in one["cells"]] == [
        (1, "factor = 1"),
        (0, "factor = 2"),
        (2, "print(factor)"),
        (3, "import os"),
        (0, "as a script"),
    ]
    assert (out / "first" / "first.log").read_text() == "2\n"
    assert "# cell 2" in (out / "first" / "first.py").read_text()
    assert (out / "first" / "first.pdf").read_bytes().startswith(b"%PDF")
    # What one leaves behind, the next one finds, and it is said.
    assert '"yes\\n"' in (out / "second" / "second.ipynb").read_text()
    assert two["outcome"] == "output differs", two
    assert "+2" in two["details"].splitlines()
    assert two["notes"] == [
        "the kernel was used before: variables of other notebooks may remain",
        "not run as a script: cell 2 has magics, or is no plain Python for another reason",
    ]
    check_that_nothing_is_left(project, temporary)


def test_the_program_runs_from_a_folder_of_another_name(project: Project, temporary: Path) -> None:
    place = project.folder / "run notebooks"
    for name, text in program_files().items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / PROGRAM.name).rename(place / "elsewhere")
    # What a cell imports is looked up beside the notebook, never among the program's own modules.
    own = project.folder / "cells.py"
    own.write_text("answer = 42\n")
    notebook = write_notebook(project.folder / "own.ipynb", "import cells\nprint(cells.answer)")
    path = f"{project.mpi.folder / 'bin'}:{os.environ['PATH']}"
    done = project.run(
        [str(project.mpi.python), "-B", str(place / "elsewhere"), str(notebook), "--out", "out"],
        environment={"PATH": path, "TMPDIR": str(temporary)},
    )
    assert done.exit_code == 0, done.errors
    assert "42" in done.output
    assert not list(place.rglob("__pycache__"))


def started(project: Project, temporary: Path, notebook: Path) -> subprocess.Popen[str]:
    """Start the program and wait until the first cell of the notebook has run."""
    path = f"{project.mpi.folder / 'bin'}:{os.environ['PATH']}"
    process = subprocess.Popen(
        [project.mpi.python, PROGRAM, notebook, "--out", project.folder / "out"],
        env={
            **os.environ,
            "PATH": path,
            "TMPDIR": str(temporary),
            "RANKWISE_TEST_RECORD": f"{project.folder}/record",
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("--- cell 1 "):
            return process
    raise AssertionError("the notebook does not run")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_kernel_outlives_the_program(project: Project, temporary: Path, number: int) -> None:
    notebook = write_notebook(
        project.folder / "long.ipynb",
        f"{LEAVES_PROCESSES}\nprint('it runs', flush=True)",
        STUBBORN,
    )
    process = started(project, temporary, notebook)
    assert len(processes_of(project)) >= 4
    process.send_signal(number)
    code = process.wait(30)
    process.communicate()
    wait_until_gone(project)
    deadline = time.monotonic() + 10
    while list(temporary.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(temporary.iterdir()) == []
    if number == signal.SIGTERM:
        assert code == 128 + signal.SIGTERM
        found = outcome_in(project.folder / "out")
        assert found["outcome"] == "cancelled"
        assert [cell["state"] for cell in found["cells"]] == ["passed", "failed"]
        assert "it runs" in (project.folder / "out" / "long.ipynb").read_text()
    else:
        assert code == -signal.SIGKILL


def test_a_full_disk_is_no_pass_and_leaves_no_half_a_notebook(
    project: Project, temporary: Path
) -> None:
    """The disk is a small one of its own, where this process may make such."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    out = project.folder / "small"
    out.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", out], check=True)
    try:
        notebook = write_notebook(project.folder / "large.ipynb", "print('x' * 1_000_000)")
        said = run_program(project, notebook, "--out", out, temporary=temporary)
        assert said.exit_code == 1, said
        assert "large.ipynb: cannot write after" in said.output, said
        assert "No space left on device" in said.output, said
        assert sorted(path.name for path in out.iterdir()) == ["outcome.json", "results.xml"]
        assert outcome_in(out)["outcome"] == "cannot write"
    finally:
        subprocess.run(["umount", "-l", out], check=True)
    check_that_nothing_is_left(project, temporary)


def test_an_interpreter_without_what_a_kernel_needs_is_named(
    project: Project, temporary: Path
) -> None:
    write_notebook(project.folder / "one.ipynb", "1")
    bare = project.folder / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{project.mpi.python}" -S "$@"\n')
    bare.chmod(0o755)
    words = (project.folder / "one.ipynb", "--out", project.folder / "out", "--kernel-python", bare)
    said = run_program(project, *words, temporary=temporary)
    assert said.exit_code == 1, said
    assert f"one.ipynb: missing kernel after 0.00 s: {bare} has no ipykernel" in said.output, said
    check_that_nothing_is_left(project, temporary)


# Notebooks of other projects


@pytest.mark.parametrize(
    "package",
    [
        "papermill",
        *(
            pytest.param(name, marks=pytest.mark.full_length)
            for name in ("nbclient", "nbmake", "nbval")
        ),
    ],
)
def test_the_notebooks_of_others_end_as_they_should(
    project: Project, temporary: Path, package: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        found = fetch(package, tmp_path_factory.mktemp("field") / package)
    except subprocess.CalledProcessError:
        if os.environ.get("RANKWISE_REQUIRE_ALL"):
            raise
        pytest.skip(f"{package} is not here, and the package index is out of reach")
    expected = EXPECTED[package]
    assert {path.stem for path in found} == expected.keys()
    if not IS_FULL:
        found = [path for path in found if path.stem in EVERY_DAY]
    out = project.folder / "out"
    words = ("--out", out, "--cell-timeout", 6, "--html")
    said = run_program(project, *found, *words, temporary=temporary, limit=250)
    assert said.exit_code == 1, said
    for path in found:
        became = outcome_in(out / path.stem)
        outcome, reason = expected[path.stem]
        assert (became["outcome"], reason in became["reason"]) == (outcome, True), became
    check_that_nothing_is_left(project, temporary)


# Under pytest


def test_notebooks_are_tests_of_pytest(project: Project, temporary: Path) -> None:
    docs = project.folder / "docs"
    write_notebook(docs / "a_good.ipynb", "import helper", "helper.value + 1")
    (docs / "helper.py").write_text("value = 1\n")
    write_notebook(docs / "b_broken.ipynb", "x = 1", "assert x == 2")
    write_notebook(docs / "c_asks.ipynb", "name = input()")
    write_notebook(docs / "d_asks_late.ipynb", "name = [input][0]()")
    write_notebook(docs / "e_never.ipynb", "1 / 0")
    write_notebook(docs / ".ipynb_checkpoints" / "a_good.ipynb", "1 / 0")
    write_notebook(project.folder / "elsewhere.ipynb", "1 / 0")
    project.write({"test_plain.py": "def test_plain(): pass"})
    words = ("--notebooks", "docs", "-k", "not never", "-rfs", "--junitxml=results.xml")
    variables = {"TMPDIR": str(temporary)}
    said = project.pytest(*words, "-p", "no:randomly", ranks=None, environment=variables)
    assert said.exit_code == 1, said
    name = "::notebook"
    assert [
        (nodeid, outcome)
        for nodeid, when, outcome in said.reports
        if when == "call" or outcome == "skipped"
    ] == [
        (f"docs/a_good.ipynb{name}", "passed"),
        (f"docs/b_broken.ipynb{name}", "failed"),
        (f"docs/c_asks.ipynb{name}", "skipped"),
        (f"docs/d_asks_late.ipynb{name}", "skipped"),
    ]
    assert "1 failed, 1 passed, 2 skipped, 1 deselected" in said.output, said
    assert "FAILED docs/b_broken.ipynb::notebook - error: cell 2: AssertionError" in said.output
    assert "   1 | assert x == 2" in said.output
    assert "needs input: cell 1 calls input()" in said.output
    assert "needs input: cell 1 asks for input" in said.output
    executed = project.folder / ".pytest_cache/d/rankwise-notebooks/docs/b_broken/b_broken.ipynb"
    assert f"executed notebook: {executed}" in said.output
    assert executed.is_file()
    suite = ElementTree.parse(project.folder / "results.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("skipped"), suite.get("tests")) == ("1", "2", "4")
    check_that_nothing_is_left(project, temporary)


def test_pytest_stops_at_the_first_failure_and_mixes_notebooks_with_tests(
    project: Project, temporary: Path
) -> None:
    books = project.folder / "books"
    write_notebook(books / "a.ipynb", "1 / 0")
    for name in "bcdefgh":
        write_notebook(books / f"{name}.ipynb", "1")
    project.write(
        {
            "test_plain.py": "def test_plain(): pass",
            "books/test_other.py": "def test_other(): pass",
        }
    )
    words = ("test_plain.py", "--notebooks", "books", "-x", "--notebooks-output", "executed")
    variables = {"TMPDIR": str(temporary)}
    said = project.pytest(*words, "-p", "no:randomly", ranks=None, environment=variables)
    assert said.exit_code == 1, said
    assert said.verdicts == {"test_plain": "passed", "notebook": "failed"}
    # Some may have been begun ahead of their turn, but not all.
    begun = {path.name for path in (project.folder / "executed" / "books").iterdir()}
    assert "a" in begun
    assert not begun & {"f", "g", "h"}
    check_that_nothing_is_left(project, temporary)


def test_pytest_says_what_is_wrong_with_the_options(project: Project) -> None:
    said = project.pytest("--notebooks", "nowhere", ranks=None)
    assert said.exit_code == 4, said
    assert f"--notebooks: {project.folder / 'nowhere'} does not exist" in said.errors
    project.write({"conftest.py": "import sys\nsys.modules['nbclient'] = None"})
    said = project.pytest("--notebooks", ".", ranks=None)
    assert said.exit_code == 4, said
    assert "--notebooks needs nbclient: pip install 'rankwise[notebooks]'" in said.errors


@pytest.mark.parametrize(("ranks", "words"), [(None, ("--n-workers=2",)), (2, ())])
def test_the_time_limit_of_notebooks_on_ranks_is_their_own(
    project: Project, temporary: Path, ranks: int | None, words: tuple[str, ...]
) -> None:
    write_notebook(project.folder / "long.ipynb", "import time; time.sleep(3)")
    write_notebook(project.folder / "quick.ipynb", "import time; time.sleep(100)", metadata=QUICK)
    said = project.pytest(
        *("-p", "no:randomly", "--notebooks", ".", "--test-timeout=1", *words),
        ranks=ranks,
        environment={"TMPDIR": str(temporary)},
    )
    assert said.exit_code == 1, said
    outcomes = {test: outcome for test, when, outcome in said.reports if when == "call"}
    assert outcomes == {
        "long.ipynb::notebook": "passed",
        "quick.ipynb::notebook": "failed",
    }, said
    assert "timed out: the notebook took longer than 2 s" in said.output, said
    check_that_nothing_is_left(project, temporary)


def test_a_notebook_that_a_condition_skips_is_not_run_ahead_of_its_turn(
    project: Project, temporary: Path
) -> None:
    leave_a_trace = "import pathlib; pathlib.Path('ran-%s').touch()"
    write_notebook(project.folder / "a.ipynb", "1")
    for name in "bcd":
        write_notebook(project.folder / f"{name}.ipynb", leave_a_trace % name)
    project.write(
        {
            "conftest.py": """
                import pytest

                marks = {
                    "b.ipynb": pytest.mark.skipif(True, reason="not here"),
                    "c.ipynb": pytest.mark.xfail(run=False, reason="not now"),
                }

                def pytest_collection_modifyitems(items):
                    for item in items:
                        if item.path.name in marks:
                            item.add_marker(marks[item.path.name])
            """
        }
    )
    said = project.pytest(
        *("-p", "no:randomly", "--notebooks", "."),
        ranks=None,
        environment={"TMPDIR": str(temporary)},
    )
    assert said.exit_code == 0, said
    assert "2 passed, 1 skipped, 1 xfailed" in said.output, said
    assert sorted(path.name for path in project.folder.glob("ran-*")) == ["ran-d"]
