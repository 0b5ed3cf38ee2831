"""Under mpirun a test that goes on for too long is named before everything is ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.leftovers import check_that_nothing_is_left

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


@pytest.mark.parametrize("deed", ["deadlock", "spin"])
def test_a_time_limit_names_the_test_and_where_every_rank_is(
    project_on_both: Project, temporary: Path, deed: str
) -> None:
    outcome = run(project_on_both, temporary, deed)
    assert outcome.exit_code != pytest.ExitCode.OK
    report = outcome.output + outcome.errors
    assert report.count("rankwise: test_it.py::test_late is ended") == 1, str(outcome)
    assert "E   no end after 2 s in call (time limit)" in report, str(outcome)
    # The line, as it stands in the file; if all wait there, they are named together.
    assert f"test_it.py:15 in test_late\n        {DEEDS[deed]}" in report, str(outcome)
    if deed == "deadlock":
        assert "all 3 ranks:" in report, str(outcome)


def test_a_grace_that_ran_out_shows_the_error_first_and_then_who_waits(
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
    left_out = report[report.index("is ended") :]
    for name in ("test_before", "test_wrong", "test_after", "test_pair_after"):
        named = f"  test_it.py::{name}\n" in left_out
        assert named == (name not in outcome.verdicts), f"{name}\n{outcome}"
