"""Plugins that know nothing of ranks, beside us."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.harness import Project


def read_html(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the tests that pytest-html has put into its page, by id."""
    found = re.search(r'data-jsonblob="([^"]*)"', path.read_text())
    assert found, path
    tests: dict[str, list[dict[str, Any]]] = json.loads(html.unescape(found[1]))["tests"]
    return tests


def test_html_report_has_every_test_once_and_the_output_of_all_ranks(project: Project) -> None:
    project.write(
        {
            "test_html.py": """
                import pytest
                import pytest_html


                @pytest.mark.parallel(2)
                def test_passes(comm, extras):
                    print(f"said by {comm.rank} of the passing")
                    extras.append(pytest_html.extras.url(f"https://example.org/of_rank_{comm.rank}"))


                @pytest.mark.parallel(2)
                def test_fails_on_rank_1(comm):
                    print(f"said by {comm.rank} of the failing")
                    assert comm.rank == 0


                @pytest.mark.parametrize("number", range(4))
                def test_alone(number):
                    print(f"said in number {number}")


                @pytest.mark.parallel(9)
                def test_too_large(comm):
                    pass
            """
        }
    )
    outcome = project.pytest(
        *("--html=report.html", "--self-contained-html", "--scheduler=dynamic"), ranks=3
    )
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.output.count("Generated html report") == 1, str(outcome)
    assert [path.name for path in project.folder.glob("*.html")] == ["report.html"]
    tests = read_html(project.folder / "report.html")
    results = {
        name.removeprefix("test_html.py::"): [entry["result"] for entry in entries]
        for name, entries in tests.items()
    }
    assert results == {
        "test_passes": ["Passed"],
        "test_fails_on_rank_1": ["Failed"],
        **{f"test_alone[{number}]": ["Passed"] for number in range(4)},
        "test_too_large": ["Skipped"],
    }
    passing = tests["test_html.py::test_passes"][0]
    failing = tests["test_html.py::test_fails_on_rank_1"][0]["log"]
    for rank in (0, 1):
        assert f"Captured stdout call (rank {rank} of 2)" in passing["log"]
        assert f"said by {rank} of the passing" in passing["log"]
        assert f"https://example.org/of_rank_{rank}" in str(passing["extras"])
        assert f"said by {rank} of the failing" in failing
    assert "- rank 1 of 2 -" in failing
    assert "said in number 3" in tests["test_html.py::test_alone[3]"][0]["log"]


def test_a_time_limit_of_pytest_timeout_fails_just_the_test_that_is_over_it(
    project: Project,
) -> None:
    project.write(
        {
            "test_limits.py": """
                import time

                import pytest


                def test_sleeps_too_long():
                    time.sleep(60)


                @pytest.mark.timeout(0.2)
                def test_sleeps_too_long_by_its_mark():
                    time.sleep(60)


                @pytest.mark.timeout(0.5)
                @pytest.mark.parallel(2)
                def test_sleeps_too_long_on_two_ranks(comm):
                    time.sleep(60)


                @pytest.mark.parallel(2)
                def test_is_in_time(comm):
                    assert comm.allreduce(1) == 2


                def test_is_in_time_alone():
                    pass
            """
        }
    )
    # On two ranks, so that one of the sleeping tests is on the rank that does not report.
    outcome = project.pytest("--timeout=2", "--scheduler=static", "-p", "no:randomly", ranks=2)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.verdicts == {
        "test_sleeps_too_long": "failed",
        "test_sleeps_too_long_by_its_mark": "failed",
        "test_sleeps_too_long_on_two_ranks": "failed",
        "test_is_in_time": "passed",
        "test_is_in_time_alone": "passed",
    }, str(outcome)
    assert "Timeout (>2.0s) from pytest-timeout" in outcome.output, str(outcome)
    assert "Timeout (>0.2s) from pytest-timeout" in outcome.output, str(outcome)
    assert "[all 2 ranks] Failed: Timeout (>0.5s)" in outcome.output, str(outcome)


def test_xdist_runs_one_rank_tests_and_skips_the_others_with_a_reason(project: Project) -> None:
    project.write(
        {
            "test_spread.py": """
                import pytest


                @pytest.mark.parametrize("number", range(4))
                def test_alone(number):
                    pass


                @pytest.mark.parallel(1)
                def test_alone_with_comm(comm):
                    assert comm.size == 1


                @pytest.mark.parallel(2)
                def test_together(comm):
                    pass
            """
        }
    )
    outcome = project.pytest("-n", "2", "-rs", "--scheduler=dynamic", ranks=None)
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.counts() == {"passed": 5, "skipped": 1}, str(outcome)
    assert "needs 2 ranks, has 1 rank" in outcome.output, str(outcome)


def test_xdist_is_refused_under_mpirun_unless_it_starts_no_processes(project: Project) -> None:
    project.write(
        {
            "pytest.ini": """
                [pytest]
                addopts = -n 2
            """,
            # Its fixtures must work on a rank that looks like one of its workers.
            "test_fixtures.py": """
                import pytest


                @pytest.mark.parallel(2)
                def test_fixtures(comm, worker_id, testrun_uid):
                    assert len(set(comm.allgather(worker_id))) == 2
                    assert testrun_uid
            """,
        }
    )
    outcome = project.pytest(ranks=2)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, str(outcome)
    assert outcome.errors.count("ERROR: pytest-xdist (-n) and mpirun") == 1, str(outcome)
    assert "--scheduler=dynamic" in outcome.errors, str(outcome)
    assert "add -n 0" in outcome.errors, str(outcome)
    assert project.pytest("-n", "0", ranks=2).counts() == {"passed": 1}
