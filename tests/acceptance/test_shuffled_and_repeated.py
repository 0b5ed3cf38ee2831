"""pytest-randomly and pytest-rerunfailures beside us: all ranks of a test do the same."""

from __future__ import annotations

import shutil

import pytest

from tests.acceptance.harness import Outcome, Project

SHUFFLED = {"PYTEST_ADDOPTS": ""}


def outcomes(outcome: Outcome, name: str) -> list[str]:
    """Give what was reported about a test in order, without the phases that passed beside it."""
    return [
        what if when == "call" else f"{when} {what}"
        for nodeid, when, what in outcome.reports
        if nodeid.endswith(f"::{name}") and (when == "call" or what != "passed")
    ]


def test_ranks_shuffle_alike_and_as_one_process_does(project: Project) -> None:
    project.write(
        {
            "conftest.py": """
                import os


                def pytest_collection_modifyitems(items):
                    if os.environ.get("PMI_RANK") == "1":
                        items.reverse()
            """,
            "test_b.py": """
                import random

                import pytest


                @pytest.mark.parametrize("letter", "abcdefgh")
                @pytest.mark.parallel(2)
                def test_pair(request, comm, letter):
                    mine = request.node.nodeid, random.random()
                    assert comm.allgather(mine) == [mine, mine]
            """,
            "test_a.py": """
                import pytest


                class TestAlone:
                    @pytest.mark.parametrize("number", range(8))
                    def test_alone(self, number):
                        pass
            """,
        }
    )
    plain = project.pytest("--randomly-seed=11", ranks=None, environment=SHUFFLED)
    seeded = project.pytest("--randomly-seed=11", ranks=2, environment=SHUFFLED)
    again = project.pytest(
        "--randomly-seed=last", "--scheduler=dynamic", ranks=2, environment=SHUFFLED
    )
    shutil.rmtree(project.folder / ".pytest_cache")
    first = project.pytest(
        "--randomly-seed=last", "--scheduler=static", ranks=2, environment=SHUFFLED
    )
    order = [nodeid for nodeid, when, _ in plain.reports if when == "setup"]
    assert order != sorted(order), str(plain)
    assert [nodeid for nodeid, when, _ in seeded.reports if when == "setup"] == order
    for outcome in (seeded, again, first):
        assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
        assert outcome.counts() == {"passed": 16}, str(outcome)
        shown = outcome.output.count("Using --randomly-seed=11\n")
        assert shown == (outcome is not first), str(outcome)


FLAKY = """
    from pathlib import Path

    import pytest


    def attempt(name, rank=0):
        '''Count the attempts of each rank, across processes.'''
        path = Path(f"attempts-{name}-{rank}")
        count = len(path.read_text()) + 1 if path.exists() else 1
        path.write_text("x" * count)
        return count


    @pytest.fixture(scope="module")
    def once(request):
        print("module is set up")
        return []


    @pytest.fixture
    def anew(once, comm):
        once.append(comm.rank)
        yield len(once)


    @pytest.mark.parallel(2)
    def test_pair(comm, anew):
        count = attempt("pair", comm.rank)
        assert comm.allgather(count) == [anew, anew]
        assert comm.rank == 0 or count == 2


    @pytest.fixture
    def rough(comm):
        if comm.rank == 1:
            assert attempt("setup", comm.rank) == 2


    @pytest.mark.parallel(2)
    def test_setup(comm, rough):
        attempt("body", comm.rank)


    @pytest.mark.parallel(2)
    def test_hopeless(comm):
        attempt("hopeless", comm.rank)
        assert comm.rank == 1


    @pytest.mark.parametrize("number", range(4))
    def test_alone(number):
        assert attempt(f"alone{number}") == 2


    @pytest.mark.parallel(2)
    def test_parts(comm, subtests):
        with subtests.test("part"):
            assert comm.rank == 0 or attempt("part", comm.rank) == 2


    @pytest.mark.parallel(2)
    def test_fine(comm):
        attempt("fine", comm.rank)
"""


def attempts(project: Project, name: str) -> list[int]:
    """Give how often each rank has tried, by rank."""
    return [len(path.read_text()) for path in sorted(project.folder.glob(f"attempts-{name}-*"))]


def test_a_failure_on_one_rank_repeats_the_test_on_all(project: Project, scheduler: str) -> None:
    project.write({"test_flaky.py": FLAKY})
    outcome = project.pytest("--reruns=2", f"--scheduler={scheduler}", "-rR", ranks=2)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcomes(outcome, "test_pair") == ["rerun", "passed"], str(outcome)
    assert outcomes(outcome, "test_setup") == ["setup rerun", "passed"], str(outcome)
    assert outcomes(outcome, "test_hopeless") == ["rerun", "rerun", "failed"], str(outcome)
    assert outcomes(outcome, "test_fine") == ["passed"], str(outcome)
    for number in range(4):
        assert outcomes(outcome, f"test_alone[{number}]") == ["rerun", "passed"], str(outcome)
    assert outcomes(outcome, "test_parts")[-1] == "passed", str(outcome)
    assert "1 failed, 8 passed, 9 rerun in" in outcome.output, str(outcome)
    assert attempts(project, "pair") == [2, 2]
    assert attempts(project, "body") == [1, 1]
    assert attempts(project, "hopeless") == [3, 3]
    assert attempts(project, "fine") == [1, 1]
    assert "rank 0 of 2" in outcome.output, str(outcome)


def test_what_is_repeated_can_be_chosen_by_the_error(project: Project) -> None:
    project.write(
        {
            # As if pytest-xdist were not installed: the plugin asks for it on ranks like workers.
            "conftest.py": """
                import importlib.metadata

                find = importlib.metadata.distribution


                def find_all_but_xdist(name):
                    if name == "pytest-xdist":
                        raise importlib.metadata.PackageNotFoundError(name)
                    return find(name)


                importlib.metadata.distribution = find_all_but_xdist
            """,
            "test_chosen.py": """
                import pytest

                ATTEMPTS = {}


                def attempt(name):
                    ATTEMPTS[name] = ATTEMPTS.get(name, 0) + 1
                    return ATTEMPTS[name]


                @pytest.mark.parallel(2)
                def test_worth_it(comm):
                    if comm.rank == 1 and attempt("worth it") == 1:
                        raise OSError("the network was away")


                @pytest.mark.parallel(2)
                def test_not_worth_it(comm):
                    if comm.rank == 1 and attempt("not worth it") == 1:
                        raise ValueError("wrong for good")


                @pytest.mark.parallel(2)
                def test_worth_it_on_one_rank_only(comm):
                    if attempt("mixed") == 1:
                        raise (OSError if comm.rank else ValueError)("two minds")


                @pytest.mark.parametrize("number", range(4))
                def test_alone(number):
                    if attempt(number) == 1:
                        raise OSError("the network was away")


                @pytest.mark.flaky(reruns=1, condition=lambda error: "again" in str(error))
                @pytest.mark.parallel(2)
                def test_by_its_mark(comm):
                    if comm.rank == 1 and attempt("mark") == 1:
                        raise OSError("try again")


                @pytest.mark.flaky(reruns=1, condition=lambda error: "again" in str(error))
                @pytest.mark.parallel(2)
                def test_not_by_its_mark(comm):
                    if comm.rank == 1 and attempt("no mark") == 1:
                        raise OSError("no more")
            """,
        }
    )
    outcome = project.pytest(
        *("--reruns=1", "--only-rerun=OSError", "--scheduler=dynamic", "-p", "no:xdist"), ranks=2
    )
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcomes(outcome, "test_worth_it") == ["rerun", "passed"], str(outcome)
    assert outcomes(outcome, "test_not_worth_it") == ["failed"], str(outcome)
    assert outcomes(outcome, "test_worth_it_on_one_rank_only") == ["failed"], str(outcome)
    assert outcomes(outcome, "test_by_its_mark") == ["rerun", "passed"], str(outcome)
    assert outcomes(outcome, "test_not_by_its_mark") == ["failed"], str(outcome)
    for number in range(4):
        assert outcomes(outcome, f"test_alone[{number}]") == ["rerun", "passed"], str(outcome)


def test_flaky_tests_fail_the_run_where_that_is_asked_for(project: Project) -> None:
    project.write(
        {
            "test_flaky.py": """
                import pytest

                ATTEMPTS = []


                @pytest.mark.parallel(2)
                def test_pair(comm):
                    ATTEMPTS.append(comm.rank)
                    assert comm.rank == 0 or len(ATTEMPTS) == 2
            """
        }
    )
    outcome = project.pytest("--reruns=1", "--fail-on-flaky", ranks=2)
    assert outcomes(outcome, "test_pair") == ["rerun", "passed"], str(outcome)
    assert outcome.exit_code == 7, str(outcome)
