"""Under mpirun a test that goes on for too long is named before everything is ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.leftovers import check_that_nothing_is_left
from tests.seeds.sentences import sentence

SUITE = """
    import pytest
    from rankwise import mark


    def test_before():
        pass


    def test_wrong():
        assert "apples" == "pears"


    @mark.parallel(3)
    def test_late(comm):
        WHAT_IT_DOES


    def test_after():
        pass


    @mark.parallel(2)
    def test_pair_after(comm):
        pass
"""
DEEDS = {
    "deadlock": "comm.recv(source=(comm.rank + 1) % comm.size)",
    "spin": "comm.rank == 1 and sum(range(10**12)); comm.Barrier()",
    "raise": 'assert comm.rank != 1, "boom"; comm.Barrier()',
}


def run(project: Project, temporary: Path, deed: str, *arguments: str) -> Outcome:
    project.write({"test_it.py": SUITE.replace("WHAT_IT_DOES", DEEDS[deed])})
    outcome = run_pytest(
        project,
        *("--test-timeout=2", "--rank-grace=1", "-v", *arguments),
        ranks=3,
        environment={"TMPDIR": str(temporary)},
    )
    check_that_nothing_is_left(project, temporary)
    return outcome


@sentence(
    "pytest_parallel",
    ran="mpirun -np 3 pytest --test-timeout=2 -v",
    said="Where processes are reused, deadlocks will also be difficult to pinpoint.",
)
@pytest.mark.parametrize("deed", ["deadlock", "spin"])
def test_a_time_limit_names_the_test_and_where_every_rank_is(
    project_on_both: Project, temporary: Path, deed: str
) -> None:
    outcome = run(project_on_both, temporary, deed)
    assert outcome.exit_code != pytest.ExitCode.OK
    report = outcome.output + outcome.errors
    assert report.count("rankwise: test_it.py::test_late was stopped") == 1, str(outcome)
    assert "exceeded its time limit of 2 s in call" in report, str(outcome)
    # The line, as it stands in the file; if all wait there, they are named together.
    assert f"test_it.py:15 in test_late\n        {DEEDS[deed]}" in report, str(outcome)
    if deed == "deadlock":
        assert "all 3 ranks:" in report, str(outcome)


def test_a_grace_that_ran_out_shows_the_error_first_and_then_the_waiting_ranks(
    project_on_both: Project, temporary: Path
) -> None:
    outcome = run(project_on_both, temporary, "raise")
    assert outcome.exit_code != pytest.ExitCode.OK
    report = outcome.output + outcome.errors
    assert "E   rank 1 of 3 failed, and the others did not end within 1 s" in report, str(outcome)
    assert report.index("AssertionError: boom") < report.index("ranks 0, 2 of 3:"), str(outcome)


@pytest.mark.parametrize("policy", ["sequential", "static", "dynamic"])
def test_what_failed_before_is_shown_and_what_did_not_run_is_named(
    project: Project, temporary: Path, policy: str
) -> None:
    outcome = run(project, temporary, "deadlock", f"--scheduler={policy}")
    report = outcome.output + outcome.errors
    done = {name for name in ("test_before", "test_wrong") if name in outcome.verdicts}
    if "test_wrong" in done:
        assert "test_it.py::test_wrong failed before" in report, str(outcome)
        assert "assert 'apples' == 'pears'" in report, str(outcome)
    left_out = report[report.index("was stopped") :]
    for name in ("test_before", "test_wrong", "test_after", "test_pair_after"):
        named = f"  test_it.py::{name}\n" in left_out
        assert named == (name not in outcome.verdicts), f"{name}\n{outcome}"


# Fixtures of other ranks, after the last test

ANSWERED_AT_ONCE = """
    import rankwise.pytest_plugin.mpirun as reporting_rank

    # So long rank 0 used to wait for the others, whatever the time limit.
    reporting_rank.GOODBYE_SECONDS = 0.5
"""


def hooks_of(rank: int) -> str:
    """Return hooks by which a rank never comes to the end of its session."""
    return f"""
    import time
    from ledger import RANK

    def pytest_sessionfinish():
        if RANK == {rank}:
            time.sleep(1000)
    """


def run_to_the_end(
    project: Project, temporary: Path, last: str, *arguments: str, hooks: str = ""
) -> tuple[Outcome, str]:
    """Run a suite of which rank 1 does something when its last test is over."""
    project.write(
        {
            "conftest.py": f"{ANSWERED_AT_ONCE}\n{hooks}",
            "test_ends.py": f"""
                import time
                from pathlib import Path

                import pytest
                from ledger import RANK
                from rankwise import mark


                @pytest.fixture(scope="session")
                def server():
                    yield
                    if RANK == 1:
                        {last}


                @mark.parallel(2)
                def test_server(server, comm):
                    pass
            """,
        }
    )
    file = temporary / "junit.xml"
    outcome = run_pytest(
        project,
        *(f"--junitxml={file}", *arguments),
        ranks=2,
        environment={"TMPDIR": str(temporary)},
    )
    return outcome, file.read_text() if file.exists() else ""


def test_what_goes_wrong_in_a_slow_fixture_of_another_rank_is_an_error(
    project_on_both: Project, temporary: Path
) -> None:
    last = 'time.sleep(2); raise ValueError("the server is broken")'
    outcome, junit = run_to_the_end(project_on_both, temporary, last)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.verdicts == {"test_server": "error in teardown"}, str(outcome)
    assert "the server is broken" in junit, str(outcome)


def test_a_fixture_of_another_rank_that_has_no_end_is_an_error_at_the_time_limit(
    project_on_both: Project, temporary: Path
) -> None:
    outcome, junit = run_to_the_end(
        project_on_both, temporary, "time.sleep(1000)", "--test-timeout=2"
    )
    # What mpirun makes of ranks that were ended.
    assert outcome.exit_code != pytest.ExitCode.OK, str(outcome)
    assert outcome.verdicts == {"test_server": "error in teardown"}, str(outcome)
    limit = "exceeded its time limit of 2 s when fixtures of a wider scope were torn down"
    assert limit in outcome.output, str(outcome)
    assert limit in junit, str(outcome)
    assert "time.sleep(1000)" in outcome.output, str(outcome)
    check_that_nothing_is_left(project_on_both, temporary)


def test_a_rank_that_hangs_at_the_end_of_its_session_is_an_error_at_the_time_limit(
    project_on_both: Project, temporary: Path
) -> None:
    outcome, junit = run_to_the_end(
        project_on_both, temporary, "pass", "--test-timeout=2", hooks=hooks_of(1)
    )
    # What mpirun makes of ranks that were ended.
    assert outcome.exit_code != pytest.ExitCode.OK, str(outcome)
    limit = "exceeded its time limit of 2 s after its last test, at the end of the process"
    assert limit in outcome.output, str(outcome)
    assert limit in junit, str(outcome)
    check_that_nothing_is_left(project_on_both, temporary)


def test_a_rank_without_a_test_that_hangs_at_its_end_fails_the_run(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "conftest.py": ANSWERED_AT_ONCE + hooks_of(2),
            "test_one.py": """
                from rankwise import mark


                @mark.parallel(2)
                def test_pair(comm):
                    pass
            """,
        }
    )
    file = temporary / "junit.xml"
    outcome = run_pytest(
        project,
        *("--test-timeout=2", f"--junitxml={file}"),
        ranks=3,
        environment={"TMPDIR": str(temporary)},
    )
    # What mpirun makes of ranks that were ended.
    assert outcome.exit_code != pytest.ExitCode.OK, str(outcome)
    words = "rank 2 of 3 did not end within 2.5 s after the last test"
    assert words in outcome.output, str(outcome)
    assert words in file.read_text(), str(outcome)
    check_that_nothing_is_left(project, temporary)


def test_a_time_limit_of_centuries_is_none(project: Project) -> None:
    project.write(
        {
            "test_one.py": """
                from rankwise import mark


                @mark.parallel(2)
                def test_pair(comm):
                    pass
            """,
        }
    )
    outcome = run_pytest(project, "--test-timeout=1e11", ranks=2)
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.verdicts == {"test_pair": "passed"}, str(outcome)
