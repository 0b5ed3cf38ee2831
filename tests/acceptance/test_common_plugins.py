"""The most common plugins of pytest, all installed at once, as users have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from environments import PLUGINS

from tests.acceptance.conftest import require_environment
from tests.acceptance.harness import Project
from tests.acceptance.inner import noted, run_pytest

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
