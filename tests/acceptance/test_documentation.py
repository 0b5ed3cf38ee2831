"""The documentation says what is true: what it shows is run, what exists is in it."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from environments import ENVIRONMENTS

from rankwise.cli.app import make_app
from rankwise.cli.verbs import VERBS
from rankwise.launch import words
from rankwise.site import tables
from rankwise.store import State
from rankwise.testing import plugin
from rankwise.testing.dispatch import Suite, make_policy
from rankwise.testing.mark import MARKERS
from rankwise.testing.policy import Case, Pace
from rankwise.testing.policy.simulate import simulate
from tests.acceptance.conftest import require
from tests.acceptance.documents import Page, Stale, blocks_of, first_difference
from tests.acceptance.harness import Outcome, Project

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md"))
    # The demo leaves pytest's cache behind, which has a page of its own.
    if ".pytest_cache" not in path.parts
)
KINDS = ("Tutorial", "How-to guide", "Reference", "Explanation")
SOURCE = ROOT / "src" / "rankwise"
# What the plugin uses of the rooms of jobs.
SHARED = ("mpi", "mpiexec", "cores")


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def page_in(folder: Path, path: Path) -> Page:
    """Prepare to act a page out in a folder, with each MPI that it asks for."""
    asked = {word for block in blocks_of(path.read_text()) for word in block.words}
    names = {"mpich", *asked & ENVIRONMENTS.keys()}
    return Page(path, {name: Project(folder, require(name)) for name in sorted(names)})


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_is_what_happens(page: str, tmp_path: Path) -> None:
    page_in(tmp_path, ROOT / page).act_out()


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_a_page_says_which_kind_it_is(page: str) -> None:
    assert re.search(rf"^\*({'|'.join(KINDS)})\b", read(page), re.MULTILINE)


def test_links_between_pages_lead_somewhere() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "check_links.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# The machinery itself: it must notice what is stale.

FRESH = """
```python
# test_sum.py
import rankwise

@rankwise.mark.parallel(2)
def test_sum(comm):
    assert comm.allreduce(1) == 2
```
```console
$ mpiexec -n 2 pytest -q
.                                                                        [100%]
1 passed in 0.01s
$ echo $?
0
```
"""


def test_a_page_that_shows_what_happens_is_fresh(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(FRESH)
    page_in(tmp_path, path).act_out()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("1 passed", "2 passed"),
        ("1 passed in 0.01s\n", "1 passed in 0.01s\nand more\n"),
        ("[100%]\n1 passed in 0.01s\n", "[100%]\n"),
        ("\n0\n", "\n1\n"),
        ("allreduce(1) == 2", "allreduce(1) == 3"),
        ("1 passed in 0.01s\n", "1 passed in 0.01s\n$ mpiexec -n 2 pytest -q nowhere.py\n"),
    ],
)
def test_a_stale_page_is_noticed(tmp_path: Path, right: str, wrong: str) -> None:
    path = tmp_path / "page.md"
    assert right in FRESH
    path.write_text(FRESH.replace(right, wrong))
    with pytest.raises(Stale):
        page_in(tmp_path, path).act_out()


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        (["a", "..."], "a\nb\nc"),
        (["...", "c"], "a\nb\nc"),
        (["a", "...", "c"], "a\nb\nc"),
        (["a", "...", "c"], "a\n\nc\n"),
        (["==== 1 passed in 0.02s ===="], "======= 1 passed in 12.34s ======"),
        (["...", "comm = <object at 0x7f10>"], "a\ncomm = <object at 0x7fab>"),
        (["rank 0 | a", "rank 0 | b", "rank 1 | c"], "rank 1 | c\nrank 0 | a\nrank 0 | b"),
        (["job-1 passed after 2.6 s"], "job-1 passed after 987 ms"),
        (["  rank 0  running  3 s  node 0"], "  rank 0    running  1 min 02 s  node 0"),
        (
            ["job-1  2026-01-02 03:04  9.5 MiB, 12 ms CPU"],
            "job-1  2031-05-06 07:08  23 KiB, 1 s CPU",
        ),
    ],
)
def test_what_may_differ_does_not_make_a_page_stale(shown: list[str], printed: str) -> None:
    assert first_difference(shown, printed) is None


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        (["b", "..."], "a\nb\nc"),
        (["...", "b"], "a\nb\nc"),
        (["a", "c"], "a\nb\nc"),
        (["...", "c", "...", "a", "..."], "a\nb\nc"),
        (["a", "a"], "a"),
        (["==== 1 passed in 0.02s ===="], "==== 2 passed in 0.02s ===="),
        (["rank 0 | a", "rank 0 | b"], "rank 0 | b\nrank 0 | a"),
        (["rank 0 | a", "rank 1 | b"], "rank 0 | b\nrank 1 | a"),
        (["rank 0 | a", "over", "rank 1 | b"], "rank 1 | b\nover\nrank 0 | a"),
        (["the time limit of 1 s was reached"], "the time limit of 2 s was reached"),
        (["job-1 passed after 2 s"], "job-1 failed after 2 s"),
    ],
)
def test_what_must_not_differ_makes_a_page_stale(shown: list[str], printed: str) -> None:
    assert first_difference(shown, printed) is not None


# What exists is documented.


def test_every_option_is_in_the_reference() -> None:
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    options = [
        name for group in parser._groups for option in group.options for name in option.names()
    ]
    assert options
    missing = [name for name in options if f"`{name}" not in read("docs/running-tests.md")]
    assert not missing


def test_every_scheduler_fixture_and_mark_is_explained() -> None:
    schedulers = [
        name for name in plugin.SCHEDULERS if f"`{name}`" not in read("docs/schedulers.md")
    ]
    writing = read("docs/writing-tests.md")
    fixtures = [name for name in plugin.__all__ if f"`{name}`" not in writing]
    marks = [line for line in MARKERS if f"mark.{re.split('[(:]', line)[0]}" not in writing]
    assert (schedulers, fixtures, marks) == ([], [], [])


def test_every_verb_has_a_section_with_its_options() -> None:
    page = read("docs/command-line.md")
    sections = {part.partition("\n")[0]: part for part in page.split("\n## ")}
    # Where the class of commands is, changes from one typer to the next.
    application: Any = typer.main.get_command(make_app(VERBS))
    assert VERBS.keys() <= sections.keys()
    missing = [
        f"{verb} {name}"
        for verb, command in application.commands.items()
        for parameter in command.params
        for name in parameter.opts
        if f"`{name}" not in (sections[verb] if name.startswith("--") else page)
        and name.startswith("-")
    ]
    assert missing == []


def test_every_state_variable_and_key_of_a_site_file_is_explained() -> None:
    outcomes, site = read("docs/job-outcomes.md"), read("docs/rankwise-toml.md")
    states = [str(state) for state in State if f"| `{state}` |" not in outcomes]
    variables = [name for name in words.NAMES if f"`{name}`" not in outcomes]
    keys = [key for key in tables._COMPUTE_KEYS + tables._RUNTIME_KEYS if f"`{key}`" not in site]
    assert (states, variables, keys) == ([], [], [])


def test_the_diagrams_of_the_schedulers_are_what_the_policies_do() -> None:
    text = read("docs/schedulers.md")
    table = {
        row[0]: row[1:]
        for row in (line.strip("| ").split(" | ") for line in text.splitlines() if "|" in line)
    }
    names, sizes, seconds = table["test"], table["ranks"], table["seconds"]
    durations = [float(number) for number in seconds]
    cases = [
        Case(index=index, size=int(size), seconds=durations[index])
        for index, size in enumerate(sizes)
    ]
    suite = Suite(cases=cases, groups=[()] * len(cases))
    shown = [block.text for block in blocks_of(text) if block.language == "text"]
    drawn = []
    for scheduler in plugin.POLICIES:
        simulation = simulate(make_policy(scheduler, suite, 4, Pace()), durations, 4)
        rows = [["."] * round(simulation.makespan) for _ in range(4)]
        for span in simulation.spans:
            for rank in span.ranks:
                for second in range(round(span.start), round(span.end)):
                    rows[rank][second] = names[span.case]
        drawn.append("".join(f"rank {rank} | {' '.join(row)}\n" for rank, row in enumerate(rows)))
    assert shown == drawn


def test_the_architecture_names_every_module_and_no_other() -> None:
    modules = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if path.name != "__init__.py"
    }
    text = read("docs/architecture.md")
    named = {
        folder.removeprefix("./") + name
        for folder, names in re.findall(r"^\| `([\w./]+/)` \|([^|]*)\|", text, re.MULTILINE)
        for name in re.findall(r"`(\w+\.py)`", names)
    }
    assert named == modules


def test_the_architecture_lists_every_message() -> None:
    source = "".join(path.read_text() for path in (SOURCE / "testing").rglob("*.py"))
    sent = set(re.findall(r"\"(?:kind|what)\": \"([\w ]+)\"", source)) - {"share"}
    text = read("docs/architecture.md")
    table = text[text.index("| message |") :].split("\n\n")[0]
    first_cells = re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)
    assert set(re.findall(r"`([\w ]+)`", "".join(first_cells))) == sent


def rows_of(heading: str) -> dict[str, int]:
    """Read a table of the architecture that says who is above whom."""
    text = read("docs/architecture.md")
    table = text[text.index(heading) :].split("\n\n")[0]
    return {
        name: number
        for number, line in enumerate(table.splitlines())
        for name in re.findall(r"`(\w+)`", line)
    }


def test_rooms_import_in_the_direction_that_the_architecture_says() -> None:
    row_of = rows_of("| row | rooms |")
    files = [path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.stem[0] != "_"]
    assert {room_of(path) for path in files} == row_of.keys()
    wrong = [
        f"{path.relative_to(SOURCE)} imports {room}"
        for path in files
        for room in rooms_in(path) - {room_of(path)}
        if row_of[room] <= row_of[room_of(path)]
    ]
    assert wrong == []


def test_the_runner_imports_nothing_of_ours() -> None:
    assert imports_of(SOURCE / "runner.py") == set()


def room_of(path: Path) -> str:
    """Name the room that a module is in: a folder, or itself."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def rooms_in(path: Path) -> set[str]:
    """Name the rooms from which a module imports."""
    imported = [name.split(".") for name in imports_of(path)]
    names = {name[1] for name in imported if len(name) > 1}
    # From the package itself come its version and the like, which are in no room.
    return {name for name in names if (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").exists()}


def test_modules_of_the_plugin_import_in_the_direction_that_the_architecture_says() -> None:
    row_of = rows_of("| row | modules |")
    shared = [SOURCE / "errors.py", *(SOURCE / "launch" / f"{name}.py" for name in SHARED)]
    files = [
        path
        for path in (*shared, *(SOURCE / "testing").rglob("*.py"))
        if path.name != "__init__.py"
    ]
    assert {path.stem for path in files} | {"policy"} == row_of.keys()
    upwards = [
        f"{path.relative_to(SOURCE)} imports {imported}"
        for path in files
        for imported in {part for name in imports_of(path) for part in name.split(".")[-2:]}
        if row_of.get(imported, sys.maxsize) <= row_of[path.stem]
    ]
    assert upwards == []


def imports_of(path: Path) -> set[str]:
    """Name what a module imports of ours when it runs, not only for type checkers."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        waiting.extend(ast.iter_child_nodes(node))
    return {name for name in found if name.split(".")[0] == "rankwise"}


# The demo


def run_demo(project: Project, demo: Path) -> Outcome:
    path = f"{project.mpi.folder / 'bin'}:/usr/bin:/bin"
    return project.run(
        [str(project.mpi.python), str(demo)], environment={"PATH": path}, limit=120.0
    )


def test_the_demo_shows_a_failing_rank_and_where_to_look_next(project: Project) -> None:
    outcome = run_demo(project, ROOT / "examples" / "demo" / "demo.py")
    assert outcome.exit_code == 0, outcome
    assert "$ mpiexec -n 4 pytest --scheduler=dynamic" in outcome.output, outcome
    assert "- rank 2 of 4 -" in outcome.output, outcome
    assert "1 failed, 6 passed" in outcome.output, outcome
    assert "pi is about 3.141592654, say 4 ranks on" in outcome.output, outcome
    assert "broken failed: rank 2 left with exit code 1" in outcome.output, outcome
    mentioned = re.findall(r"^  ((?:docs|examples)/\S+)", outcome.output, re.MULTILINE)
    assert mentioned, outcome
    assert [name for name in mentioned if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    ("file", "right", "wrong", "explanation"),
    [
        ("tests/test_mean.py", "mean += 1", "mean += 0", "exit code 1"),
        (
            "tests/test_sum.py",
            "499_500",
            "499_501",
            "test_distributed_sum: expected passed, came out failed",
        ),
        (
            "tests/test_mean.py",
            "comm.rank == 2",
            "comm.rank == 3",
            "expected failed on rank 2 of 4, came out failed on rank 3",
        ),
        (
            "jobs/pi.py",
            "comm.rank == 2",
            "comm.rank == 1",
            "rank-2 is to blame for the broken job, not rank-1",
        ),
    ],
)
def test_the_demo_fails_when_something_comes_out_otherwise(
    project: Project, file: str, right: str, wrong: str, explanation: str
) -> None:
    demo = project.folder / "demo"
    left_behind = shutil.ignore_patterns(".rankwise", ".pytest_cache", "__pycache__")
    shutil.copytree(ROOT / "examples" / "demo", demo, ignore=left_behind)
    test = demo / file
    assert right in test.read_text()
    test.write_text(test.read_text().replace(right, wrong))
    outcome = run_demo(project, demo / "demo.py")
    assert outcome.exit_code == 1, outcome
    assert explanation in outcome.errors, outcome


def test_the_demo_says_what_to_do_without_an_mpi_on_the_path(project: Project) -> None:
    outcome = project.run(
        [str(project.mpi.python), str(ROOT / "examples" / "demo" / "demo.py")],
        environment={"PATH": "/nowhere"},
    )
    assert outcome.exit_code == 1, outcome
    assert "make demo" in outcome.errors, outcome
