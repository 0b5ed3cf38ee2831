"""What becomes of a test whose ranks skip, fail as expected, exit or are interrupted."""

from __future__ import annotations

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.inner import noted, run_pytest

SKIPS = """
    import pytest, rankwise
    from ledger import note

    @rankwise.mark.parallel(2)
    def test_skip_on_one(comm):
        if comm.rank == 1:
            pytest.skip("rank one has no licence")

    @rankwise.mark.parallel(2)
    def test_skip_on_all(comm):
        pytest.skip("no rank has a licence")

    @rankwise.mark.parallel(2)
    def test_importorskip_on_one(comm):
        if comm.rank == 0:
            pytest.importorskip("no_such_module")

    @rankwise.mark.parallel(2)
    def test_importorskip_on_all(comm):
        pytest.importorskip("no_such_module")

    @rankwise.mark.parallel(2)
    def test_skip_and_failure(comm):
        if comm.rank == 0:
            pytest.skip("hides nothing")
        assert False, "seen although rank 0 skips"

    @pytest.mark.skip(reason="by mark")
    @rankwise.mark.parallel(2)
    def test_skip_mark(comm):
        note("ran")

    @pytest.mark.skipif("True", reason="by condition")
    @rankwise.mark.parallel(2)
    def test_skipif_mark(comm):
        note("ran")

    @pytest.fixture
    def skips_on_one(comm):
        if comm.rank == 1:
            pytest.skip("in a fixture")

    @rankwise.mark.parallel(2)
    def test_skip_in_setup(comm, skips_on_one):
        note("ran")
        comm.Barrier()

    @rankwise.mark.parallel(5)
    def test_too_large(comm):
        note("ran")
"""


def test_a_skip_on_any_rank_skips_unless_another_rank_fails(
    project: Project, scheduler: str
) -> None:
    project.write({"test_skips.py": SKIPS})
    outcome = run_pytest(project, f"--scheduler={scheduler}", "-rs", ranks=2)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    verdicts = outcome.verdicts
    assert verdicts.pop("test_skip_and_failure") == "failed", outcome
    assert set(verdicts.values()) == {"skipped"}, outcome
    assert len(verdicts) == 8, outcome
    assert noted(project) == []
    for reason in (
        "rank one has no licence (rank 1 of 2)\n",
        "no rank has a licence\n",
        "could not import 'no_such_module': No module named 'no_such_module' (rank 0 of 2)\n",
        "could not import 'no_such_module': No module named 'no_such_module'\n",
        "by mark\n",
        "by condition\n",
        "in a fixture (rank 1 of 2)\n",
        "needs 5 ranks, has 2 ranks",
    ):
        assert outcome.output.count(f": {reason}") == 1, (reason, outcome)


EXPECTED_FAILURES = """
    import pytest, rankwise
    from ledger import note

    def failing_on(*ranks):
        def test(comm):
            assert comm.rank not in ranks
        return rankwise.mark.parallel(3)(test)

    test_one_fails = pytest.mark.xfail(reason="because")(failing_on(1))
    test_all_fail = pytest.mark.xfail(failing_on(0, 1, 2))
    test_none_fails = pytest.mark.xfail(failing_on())
    test_strict_one_fails = pytest.mark.xfail(strict=True)(failing_on(2))
    test_strict_all_fail = pytest.mark.xfail(strict=True)(failing_on(0, 1, 2))
    test_strict_none_fails = pytest.mark.xfail(strict=True)(failing_on())
    test_right_error = pytest.mark.xfail(raises=AssertionError)(failing_on(0))
    test_wrong_error = pytest.mark.xfail(raises=KeyError)(failing_on(0))

    @pytest.mark.xfail(run=False)
    @rankwise.mark.parallel(2)
    def test_not_run(comm):
        note("ran")

    @rankwise.mark.parallel(2)
    def test_imperative_on_one(comm):
        if comm.rank == 1:
            pytest.xfail("known on rank one")

    @rankwise.mark.parallel(2)
    def test_imperative_on_all(comm):
        pytest.xfail("known")

    @pytest.mark.xfail(raises=KeyError)
    @rankwise.mark.parallel(2)
    def test_expected_and_not(comm):
        raise KeyError if comm.rank == 0 else ValueError("not expected")

    @pytest.mark.xfail(strict=True)
    def test_single_strict():
        pass

    @pytest.mark.xfail
    def test_single():
        assert False
"""


def test_expected_failures_may_come_from_some_or_all_ranks(
    project: Project, scheduler: str
) -> None:
    project.write({"test_expected.py": EXPECTED_FAILURES})
    outcome = run_pytest(project, f"--scheduler={scheduler}", "-rx", ranks=3)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    assert outcome.verdicts == {
        "test_one_fails": "xfailed",
        "test_all_fail": "xfailed",
        "test_none_fails": "xpassed",
        "test_strict_one_fails": "xfailed",
        "test_strict_all_fail": "xfailed",
        "test_strict_none_fails": "failed",
        "test_right_error": "xfailed",
        "test_wrong_error": "failed",
        "test_not_run": "xfailed",
        "test_imperative_on_one": "xfailed",
        "test_imperative_on_all": "xfailed",
        "test_expected_and_not": "failed",
        "test_single_strict": "failed",
        "test_single": "xfailed",
    }, outcome
    assert noted(project) == []
    assert "test_one_fails - because (rank 1 of 3)\n" in outcome.output, outcome
    assert "known on rank one (rank 1 of 2)\n" in outcome.output, outcome
    assert outcome.output.count("[XPASS(strict)]") == 2, outcome


def test_a_suite_of_expected_failures_is_fine(project: Project, scheduler: str) -> None:
    project.write(
        {
            "test_expected.py": """
            import pytest, rankwise

            @pytest.mark.xfail(strict=True)
            @rankwise.mark.parallel(2)
            def test_pair(comm):
                assert comm.rank == 0
            """
        }
    )
    outcome = run_pytest(project, f"--scheduler={scheduler}", "-x", ranks=2)
    assert outcome.exit_code == pytest.ExitCode.OK, outcome


def test_sys_exit_fails_the_test_and_not_the_run(project: Project, scheduler: str) -> None:
    project.write(
        {
            "test_exits.py": """
            import sys
            import rankwise

            def test_single():
                sys.exit(0)

            @rankwise.mark.parallel(2)
            def test_one_of_two(comm):
                if comm.rank == 1:
                    sys.exit(7)

            @rankwise.mark.parallel(2)
            def test_both(comm):
                sys.exit("enough")

            @rankwise.mark.parallel(2)
            def test_after(comm):
                comm.Barrier()
            """
        }
    )
    outcome = run_pytest(project, f"--scheduler={scheduler}", ranks=2)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    assert outcome.verdicts == {
        "test_single": "failed",
        "test_one_of_two": "failed",
        "test_both": "failed",
        "test_after": "passed",
    }, outcome
    assert "test_one_of_two - [rank 1 of 2] SystemExit: 7" in outcome.output, outcome
    assert "test_both - [all 2 ranks] SystemExit: enough" in outcome.output, outcome


@pytest.mark.parametrize(
    ("raised", "where", "exit_code", "shown"),
    [
        ("raise KeyboardInterrupt", "single", 2, "KeyboardInterrupt"),
        ("raise KeyboardInterrupt", "rank 2", 2, "KeyboardInterrupt"),
        ("raise KeyboardInterrupt", "all", 2, "KeyboardInterrupt"),
        ("pytest.exit('enough', 9)", "rank 0", 9, "Exit: enough"),
        ("pytest.exit('enough', 9)", "rank 2", 9, "Exit: enough (rank 2)"),
    ],
)
def test_an_interrupt_in_a_test_ends_the_run_with_pytests_exit_code(
    project: Project, scheduler: str, *, raised: str, where: str, exit_code: int, shown: str
) -> None:
    size = 1 if where == "single" else 3
    on = {"single": "True", "all": "True"}.get(where, f"comm.rank == {where[-1]}")
    project.write(
        {
            "test_interrupts.py": f"""
            import pytest, rankwise

            @rankwise.mark.parallel({size})
            def test_interrupt(comm):
                if {on}:
                    {raised}

            @pytest.mark.parametrize("number", range(600))
            def test_after(number):
                pass
            """
        }
    )
    outcome = run_pytest(project, f"--scheduler={scheduler}", ranks=3)
    assert outcome.exit_code == exit_code, outcome
    assert shown in outcome.output, outcome
    assert "test_interrupt" not in outcome.verdicts, outcome
    assert len(outcome.verdicts) < 400, outcome
    assert "did not end" not in outcome.output, outcome


def test_after_an_interrupt_on_all_ranks_the_end_of_the_session_may_take_its_time(
    project: Project,
) -> None:
    project.write(
        {
            "conftest.py": """
            import time

            def pytest_sessionfinish(session):
                time.sleep(5)
            """,
            "test_interrupts.py": """
            import time, rankwise

            @rankwise.mark.parallel(3)
            def test_interrupt(comm):
                comm.Barrier()
                time.sleep(0.5 * comm.rank)  # So that rank 0 has left when the others are heard.
                raise KeyboardInterrupt
            """,
        }
    )
    outcome = run_pytest(project, "--scheduler=sequential", "--rank-grace=1", ranks=3)
    assert outcome.exit_code == pytest.ExitCode.INTERRUPTED, outcome
    assert "has ended the run" not in outcome.errors, outcome


# The exit code of a run on many ranks is the one that pytest has without mpirun

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


# Tests that are not plain functions: methods of unittest, doctests, coroutines


@pytest.mark.usefixtures("installed_plugins")
def test_unittest_doctest_and_asyncio_bodies_run_once_on_each_of_their_ranks(
    project: Project, scheduler: str
) -> None:
    project.write(
        {
            "pytest.ini": """
                [pytest]
                addopts = --doctest-modules
                asyncio_default_fixture_loop_scope = function
            """,
            "log.py": '''
                import os
                from pathlib import Path


                def log(name):
                    """Note that a body has run; one short line is written whole.

                    >>> log("doctest")
                    """
                    rank = os.environ["PMI_RANK"]
                    with (Path(__file__).parent / "bodies.txt").open("a") as file:
                        file.write(f"{name} {rank}\\n")
            ''',
            "test_unittest.py": """
                import unittest

                import pytest
                from log import log


                class TestMethods(unittest.TestCase):
                    @classmethod
                    def setUpClass(cls):
                        cls.numbers = [1, 2]

                    def setUp(self):
                        self.total = sum(self.numbers)

                    @pytest.fixture(autouse=True)
                    def give_comm(self, comm):
                        self.comm = comm

                    def test_alone(self):
                        log("method alone")
                        self.assertEqual((self.total, self.comm.size), (3, 1))

                    @pytest.mark.parallel(2)
                    def test_pair(self):
                        log("method pair")
                        self.assertEqual(self.comm.allreduce(self.total), 6)

                    @pytest.mark.parallel(2)
                    def test_fails_on_rank_1(self):
                        log("method fails")
                        self.assertEqual(self.comm.rank, 0)

                    @pytest.mark.parallel(2)
                    def test_skips_itself(self):
                        self.skipTest("not today")

                    @pytest.mark.parallel(2)
                    @unittest.expectedFailure
                    def test_fails_as_expected(self):
                        log("method expected")
                        self.assertEqual(self.comm.rank, -1)


                @pytest.mark.parallel(3)
                class TestWhole(unittest.TestCase):
                    def test_trio(self):
                        log("class trio")
            """,
            "test_async.py": """
                import asyncio

                import pytest
                from log import log

                pytestmark = pytest.mark.asyncio


                @pytest.mark.parallel(2)
                async def test_pair(comm):
                    await asyncio.sleep(0)
                    log("async pair")
                    assert comm.allreduce(1) == 2


                @pytest.mark.parallel(2)
                async def test_fails_on_rank_1(comm):
                    await asyncio.sleep(0)
                    log("async fails")
                    assert comm.rank == 0


                async def test_alone():
                    await asyncio.sleep(0)
                    log("async alone")
            """,
        }
    )
    outcome = project.pytest(f"--scheduler={scheduler}", ranks=3)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.verdicts == {
        "log.log": "passed",
        "TestMethods::test_alone": "passed",
        "TestMethods::test_pair": "passed",
        "TestMethods::test_fails_on_rank_1": "failed",
        "TestMethods::test_skips_itself": "skipped",
        "TestMethods::test_fails_as_expected": "xfailed",
        "TestWhole::test_trio": "passed",
        "test_pair": "passed",
        "test_fails_on_rank_1": "failed",
        "test_alone": "passed",
    }, str(outcome)
    ranks: dict[str, list[int]] = {}
    for line in (project.folder / "bodies.txt").read_text().splitlines():
        name, _, rank = line.rpartition(" ")
        ranks.setdefault(name, []).append(int(rank))
    assert {name: len(found) for name, found in ranks.items()} == {
        "doctest": 1,
        "method alone": 1,
        "method pair": 2,
        "method fails": 2,
        "method expected": 2,
        "class trio": 3,
        "async pair": 2,
        "async fails": 2,
        "async alone": 1,
    }
    assert all(len(set(found)) == len(found) for found in ranks.values()), ranks
