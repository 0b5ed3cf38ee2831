"""What happens when ranks do not collect the same, or cannot collect at all."""

from __future__ import annotations

import pytest

from tests.acceptance.harness import Project

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
    assert "collected different tests: rank 0 3, rank 1 4 (of 2 ranks)" in outcome.errors
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
