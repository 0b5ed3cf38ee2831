"""Plugins that know nothing of ranks, beside us."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from environments import PLUGINS

from tests.acceptance.conftest import require_environment
from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import noted, run_pytest
from tests.seeds.sentences import sentence

pytestmark = pytest.mark.usefixtures("installed_plugins")


def read_html(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the tests that pytest-html has put into its page, by id."""
    found = re.search(r'data-jsonblob="([^"]*)"', path.read_text())
    assert found, path
    tests: dict[str, list[dict[str, Any]]] = json.loads(html.unescape(found[1]))["tests"]
    return tests


@sentence(
    "pytest_parallel",
    ran="mpirun -np … pytest --html=report.html",
    said="It is known to work with the pytest-html plugin.",
)
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


# The most common plugins of pytest, all installed at once, as users have them

WAYS = {"pool": ("--n-workers=2",), "shell": ("--n-workers=2", "--scheduler=shell"), "mpirun": ()}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Each way to have two ranks in turn."""
    name: str = request.param
    return name


@pytest.fixture
def crowded(tmp_path: Path) -> Project:
    """A folder for an inner test-suite, run with all those plugins."""
    require_environment(PLUGINS.name)
    return Project(tmp_path, PLUGINS)


@sentence(
    "pytest_parallel",
    ran="mpirun and --n-workers, with the most common plugins",
    said="No other plugin has been tested, feedback is welcomed.",
)
def test_a_green_suite_stays_green_with_common_plugins_installed(
    crowded: Project, way: str
) -> None:
    crowded.write(
        {
            "conftest.py": """
                import pytest


                @pytest.fixture(scope="module")
                def wide():
                    yield 1


                @pytest.fixture(scope="session")
                def wider():
                    yield 2
            """,
            "test_first.py": """
                import asyncio

                import pytest
                from hypothesis import given, strategies


                @pytest.mark.parallel(2)
                def test_two(comm, wide, wider):
                    assert comm.allreduce(wide) == wider


                @pytest.mark.parallel(2)
                def test_drawn(comm, wider):
                    assert comm.allreduce(1) == wider


                def test_measured(benchmark, wide):
                    assert benchmark(lambda: wide) == 1


                @given(strategies.integers())
                def test_any(number):
                    assert number - number == 0
            """,
            "test_second.py": """
                import pytest


                @pytest.mark.asyncio
                async def test_awaited():
                    pass


                def test_mocked(mocker, wider):
                    assert mocker.Mock(return_value=wider)() == 2


                @pytest.mark.parallel(2)
                @pytest.mark.timeout(60)
                def test_limited(comm, wide):
                    assert comm.size == 2


                @pytest.mark.flaky(reruns=1)
                def test_repeated(request):
                    assert getattr(request.node, "execution_count", 1) == 2
            """,
        }
    )
    outcome = crowded.pytest(
        *WAYS[way],
        ranks=2 if way == "mpirun" else None,
        environment={"PYTEST_ADDOPTS": "--benchmark-min-rounds=1 --benchmark-max-time=0.01"},
    )
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert "8 passed, 1 rerun" in outcome.output, str(outcome)


def test_reports_of_plugins_have_what_they_have_in_one_process(crowded: Project, way: str) -> None:
    crowded.write(
        {
            "test_group.py": """
                class TestGroup:
                    def test_measured(self, benchmark):
                        benchmark(lambda: 1)
            """,
            "below/test_more.py": "def test_more(): pass",
        }
    )
    words = ("-p", "no:randomly", "--json-report", "--json-report-file=report.json")
    environment = {"PYTEST_ADDOPTS": "--benchmark-min-rounds=1 --benchmark-max-time=0.01"}
    crowded.pytest(*words, ranks=None, environment=environment)
    expected = json.loads((crowded.folder / "report.json").read_text())
    # Without an option of ours each rank of mpirun would run all tests: nothing is marked.
    options = WAYS[way] or ("--scheduler=dynamic",)
    outcome = crowded.pytest(
        *words, *options, ranks=2 if way == "mpirun" else None, environment=environment
    )
    found = json.loads((crowded.folder / "report.json").read_text())
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert found["collectors"] == expected["collectors"] != [], str(outcome)
    assert found["summary"] == expected["summary"], str(outcome)
    nodeids = [{test["nodeid"] for test in one["tests"]} for one in (found, expected)]
    assert nodeids[0] == nodeids[1], str(outcome)
    table = outcome.output.partition("benchmark: 1 tests")[2]
    assert table.count("test_measured") == 1, str(outcome)


def test_tests_may_be_left_out_beside_common_plugins(crowded: Project, way: str) -> None:
    crowded.write(
        {
            "test_some.py": """
                import pytest


                @pytest.mark.parallel(2)
                def test_two(comm):
                    assert comm.size == 2


                def test_other():
                    pass


                def test_third():
                    pass
            """
        }
    )
    outcome = crowded.pytest(
        *("--deselect=test_some.py::test_other", "-k", "not third", *WAYS[way]),
        ranks=2 if way == "mpirun" else None,
    )
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.verdicts == {"test_two": "passed"}, str(outcome)


def test_headers_and_summaries_are_made_by_one_process(project: Project, way: str) -> None:
    project.write(
        {
            "conftest.py": """
                from ledger import note


                def pytest_report_header():
                    note("header")
                    return "a line of the conftest"


                def pytest_terminal_summary(terminalreporter):
                    note("summary")
                    terminalreporter.section("a section of the conftest")


                def pytest_sessionfinish():
                    note("finish")
            """,
            "test_two.py": """
                import pytest


                @pytest.mark.parallel(2)
                def test_one(comm):
                    pass


                @pytest.mark.parallel(2)
                def test_other(comm):
                    pass
            """,
        }
    )
    outcome = run_pytest(project, *WAYS[way], ranks=2 if way == "mpirun" else None)
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    said = noted(project)
    assert (said.count("header"), said.count("summary")) == (1, 1), (said, str(outcome))
    assert outcome.output.count("a line of the conftest") == 1, str(outcome)
    assert outcome.output.count("a section of the conftest") == 1, str(outcome)
    # What is not for show happens on every worker.
    assert said.count("finish") >= 2, said


def test_beside_a_plugin_that_starts_mpi_workers_start_from_nothing(
    project_on_both: Project, crew: str
) -> None:
    project_on_both.write(
        {
            "starts_mpi.py": """
                from mpi4py import MPI

                RANK = MPI.COMM_WORLD.rank
            """,
            "conftest.py": """
                from mpi4py import MPI

                RANK = MPI.COMM_WORLD.rank
            """,
            "test_two.py": """
                import os

                import pytest
                import starts_mpi
                from mpi4py import MPI


                @pytest.mark.parallel(2)
                def test_two(comm):
                    assert comm.allgather(starts_mpi.RANK) == [0, 1]


                def test_one():
                    assert MPI.Is_initialized()
            """,
        }
    )
    outcome = run_pytest(
        project_on_both,
        *("-p", "starts_mpi", "--n-workers=2", f"--scheduler={crew}"),
        ranks=None,
    )
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.verdicts == {"test_two": "passed", "test_one": "passed"}, str(outcome)
    assert outcome.output.count("rankwise: MPI was started before the workers") == 1, str(outcome)


# What matters here of mpi-pytest: how it is known, and what it does to tests with its marks.
_LIKE_MPI_PYTEST = {
    "pytest_mpi/__init__.py": "",
    "pytest_mpi/plugin.py": """
        import pytest

        CHILD_PROCESS_FLAG = "_PYTEST_MPI_CHILD_PROCESS"


        def pytest_generate_tests(metafunc):
            for found in metafunc.definition.iter_markers("parallel"):
                if isinstance(found.args[0], list):
                    metafunc.fixturenames.append("_nprocs")
                    metafunc.parametrize("_nprocs", found.args[0], ids=lambda n: f"nprocs={n}")


        def pytest_runtest_setup(item):
            from mpi4py import MPI

            if MPI.COMM_WORLD.size > 1:
                raise pytest.UsageError("not in this world")
            if item.get_closest_marker("parallel"):
                item.obj = lambda **_: None
    """,
    "test_both.py": """
        import pytest


        @pytest.mark.parallel([1, 2])
        def test_list(comm):
            assert comm.size == comm.allreduce(1)


        @pytest.mark.parallel(2)
        def test_two(comm):
            assert comm.size == 2


        def test_one():
            pass
    """,
}


@pytest.mark.parametrize("way", [*WAYS, "plain"])
def test_beside_mpi_pytest_its_tests_keep_their_ids_and_verdicts(
    project: Project, way: str
) -> None:
    project.write(_LIKE_MPI_PYTEST)
    outcome = run_pytest(
        project,
        *("-p", "pytest_mpi.plugin", *WAYS.get(way, ())),
        ranks=2 if way == "mpirun" else None,
    )
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    names = ("test_list[nprocs=1]", "test_list[nprocs=2]", "test_two", "test_one")
    assert outcome.verdicts == dict.fromkeys(names, "passed"), str(outcome)
    # In one process rankwise would skip them: it leaves them to the other plugin there.
    says_so = "marked for mpi-pytest" in outcome.output
    assert says_so == (way != "plain"), str(outcome)


def test_a_rank_that_mpi_pytest_has_started_is_left_to_it(project: Project) -> None:
    project.write(
        {
            **_LIKE_MPI_PYTEST,
            "pytest_mpi/plugin.py": "CHILD_PROCESS_FLAG = '_PYTEST_MPI_CHILD_PROCESS'\n",
        }
    )
    outcome = run_pytest(
        project,
        *("-p", "pytest_mpi.plugin", "test_both.py::test_two"),
        ranks=2,
        environment={"_PYTEST_MPI_CHILD_PROCESS": "1"},
    )
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    # Each rank is a pytest of its own.
    assert outcome.output.count("1 passed") == 2, str(outcome)


# pytest-cov beside us: what any rank has executed is covered, and the run leaves one data file

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
