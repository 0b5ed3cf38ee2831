"""What happens when ranks do not collect the same, or cannot collect at all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.inner import noted, run_pytest
from tests.acceptance.pools import run_pool

# The same on every MPI, and known before MPI starts.
RANK = """
    import os

    RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
"""

GOOD = """
    import pytest


    @pytest.mark.parallel(2)
    def test_pair(comm):
        assert comm.allreduce(1) == 2


    def test_alone():
        pass
"""


def test_tests_that_only_one_rank_collects_are_named(project: Project) -> None:
    project.write(
        {
            "where.py": RANK,
            "test_differ.py": """
                import pytest
                from where import RANK


                def test_common():
                    pass


                if RANK == 1:
                    def test_only_here():
                        pass


                @pytest.mark.parametrize("number", range(2, 4) if RANK else range(1, 3))
                def test_numbered(number):
                    pass
            """,
        }
    )
    outcome = project.pytest("--scheduler=sequential", ranks=2)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, str(outcome)
    assert outcome.reports == [], str(outcome)
    assert "collected different tests: 3 on rank 0, 4 on rank 1 (of 2 ranks)" in outcome.errors
    assert "only on rank 0: test_differ.py::test_numbered[1]" in outcome.errors, str(outcome)
    assert "only on rank 1: test_differ.py::test_only_here" in outcome.errors, str(outcome)
    assert "only on rank 1: test_differ.py::test_numbered[3]" in outcome.errors, str(outcome)
    assert "numbered[2]" not in outcome.errors, str(outcome)
    assert "test_common" not in outcome.errors, str(outcome)


def test_the_same_tests_in_another_order_on_another_rank_are_no_problem(
    project: Project, scheduler: str
) -> None:
    project.write(
        {
            "where.py": RANK,
            "conftest.py": """
                from where import RANK


                def pytest_collection_modifyitems(items):
                    if RANK == 1:
                        items.reverse()
                    if RANK == 2:
                        items.sort(key=lambda item: item.name[::-1])
            """,
            "test_order.py": """
                import pytest


                @pytest.fixture(scope="module")
                def resource():
                    return []


                @pytest.mark.parallel([1, 2, 3])
                @pytest.mark.parametrize("letter", "abcde")
                def test_meets_its_own(request, comm, letter, resource):
                    assert set(comm.allgather(request.node.nodeid)) == {request.node.nodeid}
            """,
        }
    )
    outcome = project.pytest(f"--scheduler={scheduler}", "-p", "no:randomly", ranks=3)
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.counts() == {"passed": 15}, str(outcome)


def test_an_import_error_on_some_ranks_is_reported_once_with_the_ranks(project: Project) -> None:
    project.write(
        {
            "where.py": RANK,
            "test_good.py": GOOD,
            "test_import.py": """
                from where import RANK

                if RANK >= 1:
                    import no_such_module


                def test_nothing():
                    pass
            """,
        }
    )
    outcome = project.pytest(ranks=3)
    assert outcome.exit_code == pytest.ExitCode.INTERRUPTED, str(outcome)
    assert outcome.reports == [], str(outcome)
    assert "ERROR collecting test_import.py [ranks 1-2 of 3]" in outcome.output, str(outcome)
    assert "No module named 'no_such_module'" in outcome.output, str(outcome)
    assert "Interrupted: 1 error during collection" in outcome.output, str(outcome)


def test_going_on_after_an_import_error_on_one_rank_runs_what_all_ranks_have(
    project: Project,
) -> None:
    project.write(
        {
            "where.py": RANK,
            "test_good.py": GOOD,
            "test_import.py": """
                from where import RANK

                if RANK == 1:
                    import no_such_module


                def test_nothing():
                    pass
            """,
        }
    )
    outcome = project.pytest("--continue-on-collection-errors", ranks=2)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.verdicts == {"test_pair": "passed", "test_alone": "passed"}, str(outcome)
    assert "ERROR collecting test_import.py [rank 1 of 2]" in outcome.output, str(outcome)


def test_an_error_on_all_ranks_is_reported_once(project: Project) -> None:
    project.write({"test_good.py": GOOD, "test_syntax.py": "def test_broken(:\n    pass\n"})
    outcome = project.pytest(ranks=2)
    assert outcome.exit_code == pytest.ExitCode.INTERRUPTED, str(outcome)
    assert outcome.output.count("ERROR collecting test_syntax.py") == 1, str(outcome)
    assert "1 error in" in outcome.output, str(outcome)
    assert "rank 1" not in outcome.output, str(outcome)

    onward = project.pytest("--continue-on-collection-errors", ranks=2)
    assert onward.exit_code == pytest.ExitCode.TESTS_FAILED, str(onward)
    assert onward.verdicts == {"test_pair": "passed", "test_alone": "passed"}, str(onward)
    assert onward.output.count("ERROR collecting test_syntax.py") == 1, str(onward)


@pytest.mark.parametrize("where", ["RANK == 0", "RANK == 1", "True"])
def test_a_conftest_that_fails_ends_the_run_with_its_error_shown_once(
    project: Project, where: str
) -> None:
    project.write(
        {
            "where.py": RANK,
            "conftest.py": f"""
                from where import RANK

                if {where}:
                    raise RuntimeError("no licence here")
            """,
            "test_good.py": GOOD,
        }
    )
    outcome = project.pytest(ranks=2)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, str(outcome)
    assert outcome.reports == [], str(outcome)
    shown = outcome.output + outcome.errors
    assert shown.count("E   RuntimeError: no licence here") == 1, str(outcome)
    assert ("ERROR: [rank 1 of 2]" in outcome.errors) == (where == "RANK == 1"), str(outcome)


def test_a_module_that_one_rank_skips_is_named(project: Project) -> None:
    project.write(
        {
            "where.py": RANK,
            "test_good.py": GOOD,
            "test_optional.py": """
                import pytest
                from where import RANK

                pytest.importorskip("no_such_module" if RANK == 1 else "json")


                def test_nothing():
                    pass
            """,
        }
    )
    outcome = project.pytest(ranks=2)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, str(outcome)
    assert "only on rank 0: test_optional.py::test_nothing" in outcome.errors, str(outcome)


@pytest.mark.parametrize("rank", [0, 1])
def test_exit_while_one_rank_collects_ends_the_run(project: Project, rank: int) -> None:
    project.write(
        {
            "where.py": RANK,
            "conftest.py": f"""
                import pytest
                from where import RANK


                def pytest_collection_modifyitems():
                    if RANK == {rank}:
                        pytest.exit("no use without a licence", returncode=9)
            """,
            "test_good.py": GOOD,
        }
    )
    outcome = project.pytest(ranks=2)
    assert outcome.exit_code == 9, str(outcome)
    assert outcome.reports == [], str(outcome)
    assert "Exit: no use without a licence" in outcome.output, str(outcome)
    assert ("no use without a licence (rank 1)" in outcome.output) == (rank == 1), str(outcome)


def test_an_internal_error_on_another_rank_is_shown(project: Project) -> None:
    project.write(
        {
            "where.py": RANK,
            "conftest.py": """
                from where import RANK


                def pytest_collection_modifyitems():
                    if RANK == 1:
                        raise RuntimeError("a plugin of this rank is broken")
            """,
            "test_good.py": GOOD,
        }
    )
    outcome = project.pytest(ranks=2)
    assert outcome.exit_code == pytest.ExitCode.INTERNAL_ERROR, str(outcome)
    assert outcome.reports == [], str(outcome)
    assert "INTERNALERROR> RuntimeError: a plugin of this rank is broken" in outcome.errors
    assert "rank 1 ended before it had collected its tests" in outcome.output, str(outcome)


def test_no_tests_is_exit_code_5(project: Project) -> None:
    project.write({"test_good.py": GOOD})
    outcome = project.pytest("-k", "no_such_test", ranks=2)
    assert outcome.exit_code == pytest.ExitCode.NO_TESTS_COLLECTED, str(outcome)
    assert "2 deselected" in outcome.output, str(outcome)


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("no_such_file.py", "file or directory not found: no_such_file.py"),
        ("--no-such-option", "unrecognized arguments: --no-such-option"),
    ],
)
def test_a_wrong_command_line_is_said_once_and_is_exit_code_4(
    project: Project, argument: str, complaint: str
) -> None:
    outcome = project.pytest(argument, ranks=2)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, str(outcome)
    assert outcome.errors.count(complaint) == 1, str(outcome)
    assert complaint not in outcome.output, str(outcome)


def test_a_rank_that_joins_late_does_not_repeat_what_rank_0_says_of_the_command_line(
    project: Project,
) -> None:
    project.write(
        {
            "late.py": """
                import os, time
                from rankwise.pytest_plugin.connections import Address

                real = Address.connect

                def connect(self, seconds):
                    if os.environ.get("PMI_RANK") == "1":
                        time.sleep(2)
                    return real(self, seconds)

                Address.connect = connect
            """
        }
    )
    outcome = project.pytest("-p", "late", "--no-such-option", ranks=2)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, str(outcome)
    assert outcome.errors.count("unrecognized arguments: --no-such-option") == 1, str(outcome)
    assert "Traceback" not in outcome.errors, str(outcome)


@pytest.mark.parametrize("crew", ["pool", "mpirun"])
def test_ids_may_name_the_rank_that_collects(project: Project, crew: str) -> None:
    project.write(
        {
            "where.py": RANK,
            "test_ids.py": """
                import pytest
                import rankwise
                from where import RANK

                def named(number):
                    return f"{number}-Rank {RANK}"

                @rankwise.mark.parallel(2)
                @pytest.mark.parametrize("number", [1, 2], ids=named)
                def test_both(comm, number):
                    assert comm.allreduce(number) == 2 * number

                @pytest.mark.parametrize("number", [3], ids=named)
                def test_fails(number):
                    assert False
            """,
        }
    )
    if crew == "pool":
        outcome = project.pytest("--n-workers=2", "--no-warm-start", ranks=None)
    else:
        outcome = project.pytest("--scheduler=dynamic", ranks=2)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.verdicts == {
        "test_both[1-Rank 0]": "passed",
        "test_both[2-Rank 0]": "passed",
        "test_fails[3-Rank 0]": "failed",
    }


# A conftest.py that is found while tests are collected takes part in reports as in plain pytest

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
