"""A run on a pool ends as plain pytest does, whatever ends it and wherever that happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import noted, run_pytest
from tests.acceptance.pools import run_pool
from tests.seeds.sentences import sentence

FINE = "def test_fine(): pass"
COLD = ("--no-warm-start",)


def conftest(hook: str, body: str) -> dict[str, str]:
    """Return a suite of one passing test whose conftest.py has this hook."""
    return {"test_a.py": FINE, "conftest.py": f"import pytest\n\ndef {hook}:\n    {body}\n"}


@pytest.mark.parametrize(
    ("files", "arguments", "said"),
    [
        pytest.param(
            {"test_a.py": "import no_such_module", "test_b.py": FINE, "test_c.py": FINE},
            ("-x",),
            ("ERROR collecting test_a.py", "! stopping after 1 failures !", "1 error in"),
            id="-x, not in the last file",
        ),
        pytest.param(
            {"test_a.py": "raise KeyboardInterrupt", "test_b.py": FINE},
            (),
            ("! KeyboardInterrupt", "test_a.py:1"),
            id="KeyboardInterrupt at import",
        ),
        pytest.param(
            {"test_a.py": "import sys; sys.exit(5)", "test_b.py": FINE},
            (),
            ("INTERNALERROR> SystemExit: 5",),
            id="SystemExit at import",
        ),
        pytest.param(
            conftest("pytest_collection_modifyitems()", "1 / 0"),
            (),
            ("INTERNALERROR> ZeroDivisionError: division by zero",),
            id="internal error",
        ),
        pytest.param(
            conftest("pytest_collection_modifyitems()", "pytest.exit('no more', 7)"),
            (),
            ("Exit: no more !",),
            id="pytest.exit",
        ),
        pytest.param(
            conftest("pytest_collection_modifyitems()", "raise pytest.UsageError('not so')"),
            (),
            ("ERROR: not so",),
            id="UsageError",
        ),
        pytest.param(
            {
                **conftest(
                    "pytest_itemcollected(item)", "item.session.shouldstop = 'found enough'"
                ),
                "test_b.py": FINE,
            },
            (),
            ("! Interrupted: found enough !",),
            id="shouldstop",
        ),
    ],
)
def test_what_ends_the_collection_ends_the_run_as_in_plain_pytest(
    project: Project,
    temporary: Path,
    files: dict[str, str],
    arguments: tuple[str, ...],
    said: tuple[str, ...],
) -> None:
    project.write(files)
    alone = run_pytest(project, *arguments, ranks=None)
    for start in ((), COLD):
        outcome = run_pool(project, temporary, *start, *arguments, limit=60)
        assert outcome.exit_code == alone.exit_code, f"{alone}\n{outcome}"
        for text in said:
            assert text in alone.output + alone.errors, str(alone)
            assert text in outcome.output + outcome.errors, str(outcome)
        assert "when it is imported" not in outcome.output, str(outcome)


def test_an_error_at_the_end_of_a_workers_session_is_shown_and_fails_the_run(
    project: Project, temporary: Path
) -> None:
    hook = "if hasattr(session.config, 'workerinput'): {}"
    project.write(conftest("pytest_sessionfinish(session)", hook.format("open('not there')")))
    outcome = run_pool(project, temporary)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    # Once, though it was the same on both ranks.
    assert outcome.output.count("FileNotFoundError: ") == 1, str(outcome)
    assert "error at the end of the session of rank " in outcome.output, str(outcome)
    assert outcome.verdicts == {"test_fine": "passed"}, str(outcome)
    project.write(conftest("pytest_sessionfinish(session)", hook.format("pytest.exit('so', 7)")))
    assert run_pool(project, temporary).exit_code == 7


THREE = "".join(f"def test_{name}(): pass\n" for name in "abc")


WISHES = {
    "shouldstop": (pytest.ExitCode.INTERRUPTED, "! Interrupted: enough for today !"),
    "shouldfail": (pytest.ExitCode.TESTS_FAILED, "! enough for today !"),
}


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("ranks", [None, 2], ids=["pool", "mpirun"])
def test_a_test_that_stops_its_session_stops_the_run(
    project: Project, temporary: Path, wish: str, ranks: int | None
) -> None:
    exit_code, said = WISHES[wish]
    project.write(
        {
            "test_three.py": f"""
            import rankwise

            @rankwise.mark.parallel(2)
            def test_wish(request, comm):
                # Not on rank 0, which under mpirun is the one that reports.
                if comm.rank == comm.size - 1:
                    request.session.{wish} = "enough for today"

            @rankwise.mark.parallel(2)
            def test_after(comm):
                pass
            """
        }
    )
    if ranks is None:
        outcome = run_pool(project, temporary, "--policy=sequential", "-v")
    else:
        outcome = run_pytest(project, "-v", ranks=ranks)
    assert outcome.exit_code == exit_code, str(outcome)
    assert said in outcome.output, str(outcome)
    assert outcome.verdicts == {"test_wish": "passed"}, str(outcome)


def test_a_session_that_is_stopped_in_a_wider_teardown_fails(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "test_a.py": FINE,
            "conftest.py": """
            import pytest

            @pytest.fixture(scope="session", autouse=True)
            def stopping(request):
                yield
                request.session.shouldfail = "not clean"
            """,
        }
    )
    assert run_pytest(project, ranks=None).exit_code == pytest.ExitCode.TESTS_FAILED
    outcome = run_pool(project, temporary)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert "! not clean !" in outcome.output, str(outcome)


LOSING = """
    from rankwise.pytest_plugin.reporter import Reporter

    take = Reporter.take

    def lose(self, header, body):
        if header["kind"] != "verdict" or self._tests[header["case"]].nodeid != LOST:
            take(self, header, body)

    LOST = "test_two.py::test_b"
    Reporter.take = lose
"""
TWO = """
    import rankwise

    @rankwise.mark.parallel(2)
    def test_a(comm): pass

    @rankwise.mark.parallel(2)
    def test_b(comm): pass
"""


@pytest.mark.parametrize("ranks", [None, 2], ids=["pool", "mpirun"])
def test_a_test_whose_verdict_is_lost_is_named_and_fails_the_run(
    project: Project, temporary: Path, ranks: int | None
) -> None:
    project.write({"conftest.py": LOSING, "test_two.py": TWO})
    outcome = run_pool(project, temporary) if ranks is None else run_pytest(project, ranks=ranks)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert "1 collected test has no verdict" in outcome.output, str(outcome)
    assert "test_two.py::test_b" in outcome.output, str(outcome)


HOOKS = """
    import pytest
    from ledger import note

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        # As pytest-benchmark does.
        note(f"report {item.name} {call.when} {sorted(item.funcargs)}")
        return report

    def pytest_runtest_teardown(item, nextitem):
        if nextitem is None:
            note(f"last {item.name}")

    @pytest.fixture(scope="session", autouse=True)
    def whole():
        yield
        note("session over")
"""


@sentence(
    "pytest_parallel",
    ran="mpirun and --n-workers",
    said="pytest's complete pipeline runs on the master, so that all messages are reported correctly.",
)
@pytest.mark.parametrize("ranks", [None, 2], ids=["pool", "mpirun"])
def test_hooks_see_a_test_as_in_plain_pytest_and_are_told_of_the_last(
    project: Project, temporary: Path, ranks: int | None
) -> None:
    project.write({"conftest.py": HOOKS, "test_three.py": THREE})
    run_pytest(project, ranks=None)
    alone = noted(project)
    if ranks is None:
        outcome = run_pool(project, temporary)
    else:
        outcome = run_pytest(project, "--scheduler=sequential", ranks=ranks)
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    found = noted(project)
    assert [line for line in found if line.startswith("last ")] == ["last test_c"], str(outcome)
    wanted = [line for line in alone if line.startswith("report ")]
    assert len(wanted) == 9, alone
    assert sorted(line for line in found if line.startswith("report ")) == sorted(wanted)
    assert found[-1] == "session over"


@pytest.mark.parametrize("error", ["SystemExit(3)", "asyncio.CancelledError()"])
def test_whatever_a_fixture_raises_when_torn_down_the_next_test_has_its_own_communicator(
    project: Project, temporary: Path, error: str
) -> None:
    project.write(
        {
            "test_two.py": f"""
            import asyncio
            import pytest
            import rankwise

            @pytest.fixture
            def bad(comm):
                yield
                if comm.rank == 1:
                    raise {error}

            @rankwise.mark.parallel(2)
            def test_bad(comm, bad): pass

            @rankwise.mark.parallel(2)
            def test_after(comm):
                assert comm.allreduce(1) == 2
            """
        }
    )
    outcome = run_pool(project, temporary, "--test-timeout=20")
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert "time limit" not in outcome.output, str(outcome)
    assert outcome.output.count("2 passed, 1 error in") == 1, str(outcome)


def test_pytest_exit_in_a_session_teardown_ends_the_run(project: Project, temporary: Path) -> None:
    project.write(
        {
            "test_a.py": FINE,
            "conftest.py": """
            import pytest

            @pytest.fixture(scope="session", autouse=True)
            def leaving():
                yield
                pytest.exit("that is all", 9)
            """,
        }
    )
    assert run_pytest(project, ranks=None).exit_code == 9
    outcome = run_pool(project, temporary)
    assert outcome.exit_code == 9, str(outcome)
    assert "Exit: that is all (rank " in outcome.output, str(outcome)
    assert "error" not in outcome.output, str(outcome)


def test_a_failing_test_may_patch_what_reports_are_made_with(
    project: Project, temporary: Path
) -> None:
    """The plugin packs and sends a report before the test's teardown undoes the patches."""
    project.write(
        {
            "test_it.py": """
            import builtins
            import json
            import os
            import select
            import socket
            import time
            import pytest
            import rankwise

            NAMES = [(json, "dumps"), (json, "loads"), (time, "monotonic"), (time, "sleep"),
                     (os, "sched_yield"), (os, "getpid"), (os, "open"), (os, "close"),
                     (os, "read"), (os, "write"), (os, "pread"), (os, "lseek"), (os, "dup2"),
                     (builtins, "open"), (select, "select"), (select, "poll"),
                     (socket, "socket"), (socket.socket, "recv"), (socket.socket, "send"),
                     (socket.socket, "sendall"), (socket.socket, "fileno")]

            def refuse(*arguments, **options):
                raise RuntimeError("patched")

            @rankwise.mark.parallel(2)
            def test_patched(comm, monkeypatch):
                for module, name in NAMES:
                    monkeypatch.setattr(module, name, refuse)
                pytest.fail("as wanted")

            @rankwise.mark.parallel(2)
            def test_after(comm): pass

            @rankwise.mark.parallel(2)
            @pytest.mark.xfail(strict=True)
            def test_in_part(comm):
                if comm.rank == 1:
                    pytest.skip("not here")
            """
        }
    )
    for outcome in (run_pool(project, temporary), run_pytest(project, ranks=2)):
        assert outcome.verdicts == {
            "test_patched": "failed",
            "test_after": "passed",
            "test_in_part": "skipped",
        }, str(outcome)
        assert "as wanted" in outcome.output, str(outcome)


def test_collection_errors_are_shown_with_the_difference_between_ranks(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "test_a.py": "import no_such_module",
            "test_b.py": """
            import pytest
            from ledger import RANK

            if RANK == 1:
                def test_there(): pass

            @pytest.mark.parallel(2)
            def test_everywhere(): pass
            """,
        }
    )
    outcome = run_pool(project, temporary, *COLD)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, str(outcome)
    assert "ERROR collecting test_a.py" in outcome.output, str(outcome)
    assert "only on rank 1: test_b.py::test_there" in outcome.errors, str(outcome)


def test_subtests_are_counted_and_named_as_in_plain_pytest(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "test_it.py": """
            import unittest

            class TestIt(unittest.TestCase):
                def test_some(self):
                    for number in range(3):
                        with self.subTest(number=number):
                            self.assertNotEqual(number, 1)

            def test_more(subtests):
                for number in range(3):
                    with subtests.test(number=number):
                        assert number != 2
            """
        }
    )
    alone = run_pytest(project, ranks=None)
    outcome = run_pool(project, temporary)
    assert outcome.exit_code == alone.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert summary_of(outcome) == summary_of(alone), f"{alone}\n{outcome}"


def summary_of(outcome: Outcome) -> list[str]:
    """Return the lines about tests of the short summary, and the counts, without the time."""
    lines = outcome.output.split("short test summary info")[-1].splitlines()[1:]
    return sorted(line.split(" in ")[0].strip("= ") for line in lines)
