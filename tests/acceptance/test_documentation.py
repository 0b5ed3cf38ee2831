"""The documentation says what is true: what it shows is run, what exists is in it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import browser
import cluster
import containers
import gridengine
import pytest
import sshd
from environments import ENVIRONMENTS, Environment

from rankwise.launch import rewriting
from rankwise.pytest_plugin import plugin
from rankwise.pytest_plugin.options import MARKERS, POLICIES, SCHEDULERS
from rankwise.pytest_plugin.schedulers.base import Pace, ScheduledTest
from rankwise.pytest_plugin.schedulers.dispatcher import ScheduledSuite, make_scheduler
from rankwise.store import State
from tests.acceptance.conftest import require, require_environment
from tests.acceptance.documents import Page, Stale, blocks_of, first_difference
from tests.acceptance.harness import Outcome, Project
from tests.seeds.sentences import sentence
from tests.support.simulate import simulate

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md"))
    # The demo leaves pytest's cache behind, which has a page of its own.
    if ".pytest_cache" not in path.parts
)
_INSTALLS = re.compile(r"^pip install '\.\[(\w+)\]'", re.MULTILINE)
FIRST_STEPS = {
    page: found[1]
    for page in PAGES
    if page.startswith("docs/start-") and (found := _INSTALLS.search((ROOT / page).read_text()))
}
"""Pages that say what to install, with the extra of rankwise that they name."""
KINDS = ("Tutorial", "How-to guide", "Reference", "Explanation")


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def page_in(folder: Path, path: Path) -> Page:
    """Prepare to act a page out in a folder, with each MPI that it asks for."""
    asked = {word for block in blocks_of(path.read_text()) for word in block.words}
    names = {"mpich", *asked & ENVIRONMENTS.keys()}
    return Page(path, {name: Project(folder, require(name)) for name in sorted(names)})


def test_the_first_screen_names_both_commands_how_long_they_take_and_what_they_install() -> None:
    screen = " ".join(" ".join(read("README.md").splitlines()[:25]).split())
    for command in ("make demo", "make test"):
        assert re.search(rf"{command} +# \d+ minutes?\b", screen), command
        assert re.search(rf"`{command}` installs \d+ [MG]B into `\.venv", screen), command
    # What is installed besides is installed by the scripts that name it.
    packages = {"Slurm": cluster, "Chromium": browser, "OpenSSH": sshd, "Podman": containers}
    packages["Grid Engine"] = gridengine
    for name, script in packages.items():
        assert name in screen
        assert any(name.lower().replace(" ", "") in one for one in script.PACKAGES)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in FIRST_STEPS])
def test_what_a_page_shows_is_what_happens(page: str, tmp_path: Path) -> None:
    page_in(tmp_path, ROOT / page).act_out()


@pytest.mark.parametrize(("page", "extra"), FIRST_STEPS.items())
def test_first_steps_need_only_what_they_install(page: str, extra: str, tmp_path: Path) -> None:
    made = require_environment(f"start-{extra}")
    environment = Environment(
        name=made.name,
        folder=made.folder,
        requirements=made.requirements,
        library=made.library,
        mpiexec=made.folder / "bin" / "mpiexec",
    )
    Page(ROOT / page, {"mpich": Project(tmp_path, environment)}).act_out()


def test_there_are_first_steps_for_each_kind_of_reader() -> None:
    pages = set(re.findall(r"\]\((start-[\w-]+\.md)\)", read("docs/index.md")))
    assert {f"docs/{page}" for page in pages} == {page for page in PAGES if "/start-" in page}
    assert len(pages) == 6
    assert len(FIRST_STEPS) == 5


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


def test_every_scheduler_fixture_and_mark_is_explained() -> None:
    schedulers = [name for name in SCHEDULERS if f"`{name}`" not in read("docs/how-tests-run.md")]
    writing = read("docs/writing-tests.md")
    fixtures = [name for name in plugin.__all__ if f"`{name}`" not in writing]
    marks = [line for line in MARKERS if f"mark.{re.split('[(:]', line)[0]}" not in writing]
    assert (schedulers, fixtures, marks) == ([], [], [])


def test_every_state_and_variable_is_explained() -> None:
    page = read("docs/run-results.md")
    states = [str(state) for state in State if f"| `{state}` |" not in page]
    variables = [name for name in rewriting.NAMES if f"`{name}`" not in page]
    assert (states, variables) == ([], [])


@sentence(
    "pytest_parallel",
    ran="the schedulers, on tests of known durations",
    said="static works by steps: each test takes the first step that has enough slots.",
)
def test_the_diagrams_of_the_schedulers_are_what_the_policies_do() -> None:
    text = read("docs/how-tests-run.md")
    table = {
        row[0]: row[1:]
        for row in (line.strip("| ").split(" | ") for line in text.splitlines() if "|" in line)
    }
    names, sizes, seconds = table["test"], table["ranks"], table["seconds"]
    durations = [float(number) for number in seconds]
    cases = [
        ScheduledTest(index=index, size=int(size), seconds=durations[index])
        for index, size in enumerate(sizes)
    ]
    suite = ScheduledSuite(cases=cases, groups=[()] * len(cases))
    shown = [block.text for block in blocks_of(text) if block.language == "text"]
    drawn = []
    for scheduler in POLICIES:
        simulation = simulate(make_scheduler(scheduler, suite, 4, Pace()), durations, 4)
        rows = [["."] * round(simulation.makespan) for _ in range(4)]
        for span in simulation.spans:
            for rank in span.ranks:
                for second in range(round(span.start), round(span.end)):
                    rows[rank][second] = names[span.case]
        drawn.append("".join(f"rank {rank} | {' '.join(row)}\n" for rank, row in enumerate(rows)))
    assert shown == drawn


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
    assert "broken failed: rank 2 exited with code 1" in outcome.output, outcome
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
