"""pytest-cov beside us: what any rank has executed is covered, and the run leaves one data file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.harness import Outcome, Project

# Every rank but the first has lines of its own; rank 3 is in no two-rank test.
PRODUCT = """
    def work(rank):
        if rank == 0:
            found = "zero"
        elif rank == 1:
            found = "one"
        elif rank == 2:
            found = "two"
        else:
            found = "three"
        return found


    def alone():
        return "alone"
"""

TESTS = """
    import product
    import pytest


    @pytest.mark.parallel(4)
    def test_on_all_ranks(comm):
        assert product.work(comm.rank) == ["zero", "one", "two", "three"][comm.rank]


    def test_on_one_rank():
        assert product.alone() == "alone"
"""


def stray_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".coverage.*"))


def total(outcome: Outcome) -> str:
    """Find the last column of the total in the terminal's table."""
    lines = [line for line in outcome.output.splitlines() if line.startswith("TOTAL")]
    assert len(lines) == 1, str(outcome)
    return lines[0].split()[-1]


def test_lines_that_only_one_rank_executes_are_covered(project: Project, scheduler: str) -> None:
    project.write({"product.py": PRODUCT, "test_product.py": TESTS})
    outcome = project.pytest(
        *("--cov=product", "--cov-branch", "--cov-context=test", "--cov-fail-under=100"),
        *("--cov-report=term", "--cov-report=json:report.json", f"--scheduler={scheduler}"),
    )
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.counts() == {"passed": 2}, str(outcome)
    assert total(outcome) == "100%", str(outcome)
    assert "Required test coverage of 100% reached" in outcome.output, str(outcome)
    assert stray_files(project.folder) == [], str(outcome)
    assert (project.folder / ".coverage").exists(), str(outcome)

    report = json.loads((project.folder / "report.json").read_text())
    assert report["totals"]["missing_lines"] == 0, report
    assert report["totals"]["missing_branches"] == 0, report

    shown = project.run(
        [str(project.mpi.python), "-m", "coverage", "json", "--show-contexts", "-o", "-"]
    )
    contexts = json.loads(shown.output[shown.output.index("{") :])["files"]["product.py"][
        "contexts"
    ]
    for line in ("3", "5", "7", "9"):
        assert contexts[line] == ["test_product.py::test_on_all_ranks|run"], contexts
    assert contexts["14"] == ["test_product.py::test_on_one_rank|run"], contexts


def test_lines_of_tests_that_ask_for_it_are_covered_on_no_rank(project: Project) -> None:
    project.write(
        {
            "product.py": PRODUCT,
            "test_product.py": """
                import product
                import pytest


                @pytest.mark.no_cover
                @pytest.mark.parallel(2)
                def test_unseen(comm):
                    product.work(comm.rank)


                @pytest.mark.parallel(2)
                def test_seen(comm, cov):
                    assert cov is not None
                    if comm.rank == 1:
                        product.alone()
            """,
        }
    )
    outcome = project.pytest(
        *("--cov=product", "--cov-fail-under=30", "--cov-report=json:report.json"), ranks=2
    )
    # The tests pass, and too little coverage fails the run nevertheless.
    assert outcome.counts() == {"passed": 2}, str(outcome)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.output.count("ERROR: Coverage failure: total of") == 1, str(outcome)
    executed = json.loads((project.folder / "report.json").read_text())["files"]["product.py"]
    assert executed["executed_lines"] == [1, 13, 14], executed


def test_coverage_is_appended_to_that_of_an_earlier_run(project: Project) -> None:
    project.write({"product.py": PRODUCT, "test_product.py": TESTS})
    first = project.pytest("--cov=product", "-k", "one_rank", ranks=None)
    assert total(first) != "100%", str(first)
    second = project.pytest("--cov=product", "--cov-append", "-k", "all_ranks")
    assert total(second) == "100%", str(second)
    assert stray_files(project.folder) == [], str(second)


def test_a_run_that_stops_early_leaves_one_data_file(project: Project) -> None:
    project.write(
        {
            "product.py": PRODUCT,
            "test_a.py": TESTS,
            "test_b.py": """
                import pytest


                @pytest.mark.parallel(2)
                def test_fails_on_rank_1(comm):
                    assert comm.rank == 0
            """,
            ".coveragerc": """
                [run]
                parallel = true
            """,
        }
    )
    outcome = project.pytest("--cov=product", "-x", "-p", "no:randomly")
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.counts() == {"passed": 2, "failed": 1}, str(outcome)
    assert stray_files(project.folder) == [], str(outcome)
    shown = project.run([str(project.mpi.python), "-m", "coverage", "report"])
    assert total(shown) == "100%", str(shown)
