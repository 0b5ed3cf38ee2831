"""A conftest.py that is found while tests are collected takes part in reports as in plain pytest."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.inner import noted, run_pytest
from tests.acceptance.pools import run_pool

# What is noted is what the process does that the user sees. It is the same in both folders.
HOOKS = """
import pytest
from ledger import note
from mpi4py import MPI

FOLDER = __file__.split("/")[-2]
print("imported", FOLDER)
shown = []

def say(text):
    if shown:
        note(f"{FOLDER}: {text}")

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        shown.append(config)
    say("configure")

def pytest_runtest_logstart(nodeid, location):
    say(f"start {nodeid} {location}")

def pytest_runtest_logreport(report):
    say(f"report {report.nodeid} {report.when} {report.outcome}")

def pytest_runtest_logfinish(nodeid):
    say(f"finish {nodeid}")

def pytest_deselected(items):
    say(f"deselected {[item.nodeid for item in items]}")

def pytest_sessionfinish(session, exitstatus):
    say(f"end {int(exitstatus)} {len(session.items)} {MPI.COMM_WORLD.rank}")
    for item in session.items:
        say(f"{item.nodeid} {item.name} {item.path} {item.fspath} {item.location}")
        marks = [(m.name, m.args, m.kwargs) for m in item.iter_markers() if m.name == "case"]
        assert item.session is session and item.config is session.config
        assert len(item.own_markers) <= len(list(item.iter_markers()))
        closest = item.get_closest_marker("case")
        say(f"{marks} {closest and closest.args} {'case' in item.keywords}")
        own = [m.name for m in item.own_markers if m.name != "parallel"]
        say(f"{item.get_closest_marker('other', 5)} {own}")

def pytest_unconfigure():
    say("unconfigure")
"""
SUB = """
noted_end = pytest_sessionfinish

def pytest_report_teststatus(report):
    if report.when == "call" and report.passed:
        return "fine", "F", "FINE"

def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"sub saw {len(terminalreporter.stats['fine'])} of them")

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    noted_end(session, exitstatus)
    session.exitstatus = 7
"""
TESTS = """
import pytest
import rankwise

@pytest.mark.case("class", size=[1, 2], made_by=None)
class TestOfClass:
    @pytest.mark.case("close")
    @pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.case(0)), 2])
    def test_number(self, number):
        pass

@rankwise.mark.parallel(2)
def test_two(comm):
    pass
"""
MARKERS = {"pytest.ini": "[pytest]\nmarkers = case\n"}
SUITE = {
    **MARKERS,
    "conftest.py": "",
    "sub/conftest.py": HOOKS + SUB,
    "sub/test_sub.py": TESTS,
    "sub/deep/test_deep.py": "def test_deep(): pass\ndef test_left_out(): pass",
    "other/conftest.py": HOOKS,
    "other/test_other.py": "def test_other(): pass\ndef test_bad(): assert 0",
}
POOLS = {"pool": (), "shell": ("--scheduler=shell",), "cold": ("--no-warm-start",)}


@pytest.mark.parametrize("how", [*POOLS, "mpirun"])
def test_hooks_of_a_folders_conftest_report_as_in_plain_pytest(
    project: Project, temporary: Path, how: str
) -> None:
    # Plain pytest has one process.
    project.write({**SUITE, "sub/test_sub.py": TESTS.replace("parallel(2)", "parallel(1)")})
    arguments = ("--deselect=sub/deep/test_deep.py::test_left_out", "-rA")
    alone = run_pytest(project, *arguments, ranks=None)
    expected = Counter(noted(project))
    assert alone.exit_code == 7, str(alone)
    project.write(SUITE)
    if how == "mpirun":
        outcome = run_pytest(project, *arguments, ranks=2)
    else:
        outcome = run_pool(project, temporary, *POOLS[how], *arguments)
    assert outcome.exit_code == 7, str(outcome)
    assert Counter(noted(project)) == expected, str(outcome)
    assert "when it is imported" not in outcome.output, str(outcome)
    if how in ("pool", "shell"):
        assert outcome.output.count("imported sub") == 1, str(outcome)
    for shown in (alone, outcome):
        assert shown.output.count("sub saw 5 of them") == 1, str(shown)
        assert "1 failed, 1 deselected, 5 fine in" in shown.output, str(shown)


def test_hooks_of_a_conftest_above_are_called_for_tests_of_folders_below(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "conftest.py": HOOKS,
            "sub/test_sub.py": "def test_sub(): pass",
            **MARKERS,
        }
    )
    run_pytest(project, ranks=None)
    expected = Counter(noted(project))
    outcome = run_pool(project, temporary)
    assert Counter(noted(project)) == expected, str(outcome)


def test_a_conftest_that_only_collects_and_runs_is_not_loaded_where_tests_are_reported(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "conftest.py": "",
            "sub/conftest.py": """
            from ledger import note

            note("imported")
            print("said once")

            def pytest_runtest_setup(item):
                note(f"{item.name} has {item.function.__name__}")
            """,
            "sub/test_sub.py": "def test_sub(): pass",
        }
    )
    outcome = run_pool(project, temporary)
    assert outcome.exit_code == 0, str(outcome)
    # In the template, of which ranks are copies.
    assert noted(project) == ["imported", "test_sub has test_sub"], str(outcome)
    assert outcome.output.count("said once") == 1, str(outcome)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import os; os.environ['PMI_RANK']", "KeyError: 'PMI_RANK'"),
        ("FOUND.pop().unlink()", "IndexError: pop from empty list"),
        (
            "from mpi4py import MPI; MPI.COMM_WORLD.Dup()",
            "RuntimeError: Dup of a communicator: MPI is not started in the controller",
        ),
    ],
)
def test_a_conftest_whose_hooks_cannot_be_loaded_for_reports_ends_the_run_with_the_reason(
    project: Project, temporary: Path, line: str, said: str
) -> None:
    project.write(
        {
            "conftest.py": "",
            "sub/conftest.py": f"""
            from pathlib import Path

            FOUND = list(Path(__file__).parent.glob("there"))
            {line}

            def pytest_sessionfinish(session):
                session.exitstatus = 7
            """,
            "sub/there": "",
            "sub/test_sub.py": "def test_sub(): pass",
        }
    )
    start = ("--no-warm-start",) if "PMI" in line else ()
    outcome = run_pool(project, temporary, *start)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, str(outcome)
    where = "cannot load sub/conftest.py, which has hooks for reports (pytest_sessionfinish)"
    assert f"{where}: {said}" in outcome.errors, str(outcome)


def test_what_is_not_known_of_a_test_where_it_is_reported_is_named(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "conftest.py": """
            def pytest_sessionfinish(session):
                if not hasattr(session.config, "workerinput"):
                    assert not hasattr(session.items[0], "function")
                    session.items[0].fixturenames
            """,
            "test_a.py": "def test_a(): pass",
        }
    )
    outcome = run_pool(project, temporary)
    assert outcome.exit_code not in (0, None), str(outcome)
    assert "test_a.py::test_a has no 'fixturenames' here: " in outcome.errors, str(outcome)
