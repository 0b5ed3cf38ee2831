"""The exit code of a run on many ranks is the one that pytest has without mpirun."""

from __future__ import annotations

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.inner import run_pytest

PASSING = {"test_it.py": "def test_it(comm): pass"}
FAILING = {
    "test_it.py": """
    import rankwise

    # On one rank when there is no mpirun.
    @rankwise.mark.parallel_from_context
    def test_it(comm):
        assert comm.rank != comm.size - 1
    """
}


@pytest.mark.parametrize(
    ("files", "arguments", "exit_code"),
    [
        pytest.param(PASSING, (), pytest.ExitCode.OK, id="all passed"),
        pytest.param(FAILING, (), pytest.ExitCode.TESTS_FAILED, id="failed on the last rank"),
        pytest.param(
            {"test_it.py": "import no_such_module"}, (), pytest.ExitCode.INTERRUPTED, id="no import"
        ),
        pytest.param(
            {"test_it.py": "import no_such_module", "test_fine.py": "def test_fine(): pass"},
            ("--continue-on-collection-errors",),
            pytest.ExitCode.TESTS_FAILED,
            id="no import, and on",
        ),
        pytest.param(
            {**PASSING, "conftest.py": "def pytest_runtest_logreport(report): 1 / 0"},
            (),
            pytest.ExitCode.INTERNAL_ERROR,
            id="internal error",
        ),
        pytest.param(PASSING, ("no_such.py",), pytest.ExitCode.USAGE_ERROR, id="no such file"),
        pytest.param(PASSING, ("--no-such",), pytest.ExitCode.USAGE_ERROR, id="no such option"),
        pytest.param(
            PASSING, ("-k", "or"), pytest.ExitCode.USAGE_ERROR, id="no such keyword expression"
        ),
        pytest.param({}, (), pytest.ExitCode.NO_TESTS_COLLECTED, id="no tests"),
        pytest.param(
            PASSING, ("-k", "nothing"), pytest.ExitCode.NO_TESTS_COLLECTED, id="none selected"
        ),
    ],
)
def test_exit_codes_are_pytests(
    project: Project, files: dict[str, str], arguments: tuple[str, ...], exit_code: int
) -> None:
    project.write(files)
    alone = run_pytest(project, *arguments, ranks=None)
    assert alone.exit_code == exit_code, alone
    outcome = run_pytest(project, *arguments, ranks=3)
    assert outcome.exit_code == exit_code, outcome


def test_the_exit_code_may_be_set_by_a_plugin(project: Project) -> None:
    project.write(
        {
            **PASSING,
            "conftest.py": """
            def pytest_sessionfinish(session):
                session.exitstatus = 42
            """,
        }
    )
    outcome = run_pytest(project, ranks=2)
    assert outcome.exit_code == 42, outcome


@pytest.mark.parametrize(
    ("arguments", "files", "said"),
    [
        (("no_such.py",), {}, "file or directory not found: no_such.py"),
        (("--no-such",), {}, "unrecognized arguments: --no-such"),
        ((), {"conftest.py": "import no_such"}, "No module named 'no_such'"),
        (("--markers",), {}, "@pytest.mark.parallel(n, "),
        (("--fixtures",), {}, "mpi_tmp_path -- "),
    ],
)
def test_what_ends_the_run_before_it_begins_is_said_once(
    project: Project, arguments: tuple[str, ...], files: dict[str, str], said: str
) -> None:
    project.write({**PASSING, **files})
    outcome = run_pytest(project, *arguments, ranks=3)
    assert (outcome.output + outcome.errors).count(said) == 1, outcome


def test_a_rank_that_refuses_to_collect_says_why(project: Project) -> None:
    project.write(
        {
            **PASSING,
            "conftest.py": """
            import pytest
            from ledger import RANK

            def pytest_collection_modifyitems():
                if RANK == 1:
                    raise pytest.UsageError("not here")
            """,
        }
    )
    outcome = run_pytest(project, ranks=3)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, outcome
    assert outcome.errors.count("[rank 1 of 3] not here") == 1, outcome
