"""Options of pytest's own go on working when its tests run on many ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence

import pytest

from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import noted, run_pytest

MIXED = """
    import pytest
    import rankwise

    def test_one():
        print("one says hello")

    @rankwise.mark.parallel(2)
    def test_two(comm):
        print("two says hello")
        assert comm.rank == 0, "rank one is to blame"

    @pytest.mark.skip(reason="not today")
    def test_skipped():
        pass

    @pytest.mark.xfail(reason="known")
    @rankwise.mark.parallel(3)
    def test_expected(comm):
        raise AssertionError

    class TestGroup:
        @rankwise.mark.parallel(3)
        def test_three(self, comm):
            assert comm.size == 3
"""


@pytest.fixture
def mixed(project: Project) -> Project:
    project.write({"test_mixed.py": MIXED})
    return project


def names_run(outcome: Outcome) -> list[str]:
    return sorted(name for name, verdict in outcome.verdicts.items() if verdict != "skipped")


def test_x_stops_after_the_first_failure_in_every_scheduler(
    project: Project, scheduler: str
) -> None:
    project.write(
        {
            "test_many.py": """
            import pytest, rankwise

            @pytest.mark.parametrize("number", range(200))
            @rankwise.mark.parallel(2)
            def test_pair(comm, number):
                assert (comm.rank, number) != (1, 5)

            @pytest.mark.parametrize("number", range(200))
            def test_single(number):
                pass
            """
        }
    )
    outcome = run_pytest(project, "-x", f"--scheduler={scheduler}")
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    assert outcome.verdicts["test_pair[5]"] == "failed", outcome
    assert outcome.counts()["failed"] == 1, outcome
    # Tests that other ranks had already begun may end.
    assert len(outcome.verdicts) < 100, outcome
    assert outcome.output.count("stopping after 1 failures") == 1, outcome


def test_maxfail_counts_failures_of_all_ranks_in_every_scheduler(
    project: Project, scheduler: str
) -> None:
    project.write(
        {
            "test_many.py": """
            import pytest, rankwise

            @pytest.mark.parametrize("number", range(200))
            @rankwise.mark.parallel(2)
            def test_pair(comm, number):
                assert (comm.rank, number) != (1, 5)

            @pytest.mark.parametrize("number", range(200))
            def test_single(number):
                assert number != 3
            """
        }
    )
    outcome = run_pytest(project, "--maxfail=2", f"--scheduler={scheduler}")
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    failed = {name for name, verdict in outcome.verdicts.items() if verdict == "failed"}
    assert failed == {"test_pair[5]", "test_single[3]"}, outcome
    assert len(outcome.verdicts) < 350, outcome
    assert outcome.output.count("stopping after 2 failures") == 1, outcome


FAILS_UNTIL_FIXED = """
    import pytest, rankwise
    from pathlib import Path
    from ledger import note

    FIXED = Path(__file__).with_name("fixed").exists()

    @pytest.fixture(autouse=True)
    def noted(request):
        note(request.node.name)

    def test_a(): pass

    @rankwise.mark.parallel(2)
    def test_b(comm): pass

    @rankwise.mark.parallel(2)
    def test_c(comm):
        assert FIXED or comm.rank == 0

    def test_d(): pass

    @rankwise.mark.parallel(3)
    def test_e(comm):
        assert FIXED or comm.rank != 1

    def test_f():
        assert FIXED
"""


def read_cache(project: Project, name: str) -> object:
    return json.loads((project.folder / ".pytest_cache/v/cache" / name).read_text())


def test_lf_and_ff_know_what_failed_on_any_rank_in_every_scheduler(
    project: Project, scheduler: str
) -> None:
    project.write({"test_it.py": FAILS_UNTIL_FIXED})
    choose = f"--scheduler={scheduler}"
    failing = ["test_c", "test_e", "test_f"]

    first = run_pytest(project, choose)
    assert first.counts() == {"passed": 3, "failed": 3}, first
    expected = {f"test_it.py::{name}": True for name in failing}
    assert read_cache(project, "lastfailed") == expected

    again = run_pytest(project, choose, "--lf")
    assert again.verdicts == dict.fromkeys(failing, "failed"), again
    assert read_cache(project, "lastfailed") == expected

    project.write({"fixed": ""})
    last = run_pytest(project, choose, "--ff")
    assert last.counts() == {"passed": 6}, last
    assert last.exit_code == pytest.ExitCode.OK, last
    assert read_cache(project, "lastfailed") == {}
    if scheduler == "sequential":
        order = [name.split("::")[-1] for name, when, _ in last.reports if when == "call"]
        assert order[:3] == failing, last


def test_stepwise_leaves_no_test_out_in_any_scheduler(project: Project, scheduler: str) -> None:
    project.write({"test_it.py": FAILS_UNTIL_FIXED})
    choose = f"--scheduler={scheduler}"

    first = run_pytest(project, choose, "--sw")
    assert first.verdicts == {"test_a": "passed", "test_b": "passed", "test_c": "failed"}, first
    assert first.exit_code == pytest.ExitCode.INTERRUPTED, first

    project.write({"fixed": ""})
    second = run_pytest(project, choose, "--sw")
    expected = dict.fromkeys(["test_c", "test_d", "test_e", "test_f"], "passed")
    assert second.verdicts == expected, second
    assert second.exit_code == pytest.ExitCode.OK, second
    assert set(noted(project)) == set(expected)


@pytest.mark.parametrize(
    ("arguments", "selected"),
    [
        (("-k", "two or three"), ["TestGroup::test_three", "test_two"]),
        (("-m", "parallel and not xfail"), ["TestGroup::test_three", "test_two"]),
        (("test_mixed.py::TestGroup", "test_mixed.py::test_one"), None),
    ],
)
def test_tests_are_selected_by_keyword_by_mark_and_by_id(
    mixed: Project, arguments: Sequence[str], selected: list[str] | None
) -> None:
    outcome = run_pytest(mixed, *arguments, ranks=3)
    assert names_run(outcome) == (selected or ["TestGroup::test_three", "test_one"]), outcome


def test_collect_only_prints_the_tests_once_and_runs_none(mixed: Project) -> None:
    outcome = run_pytest(mixed, "--collect-only", "-q", ranks=3)
    assert outcome.exit_code == pytest.ExitCode.OK, outcome
    assert outcome.output.splitlines()[:5] == [
        "test_mixed.py::test_one",
        "test_mixed.py::test_two",
        "test_mixed.py::test_skipped",
        "test_mixed.py::test_expected",
        "test_mixed.py::TestGroup::test_three",
    ]
    assert "5 tests collected" in outcome.output, outcome
    assert outcome.output.count("collected") == 1, outcome
    assert outcome.reports == [], outcome


def test_q_prints_one_letter_for_a_test_and_the_counts(mixed: Project) -> None:
    outcome = run_pytest(mixed, "-q", ranks=3)
    lines = outcome.output.splitlines()
    assert lines[0].split()[0] == ".Fsx.", outcome
    assert lines[-1].startswith("1 failed, 2 passed, 1 skipped, 1 xfailed in "), outcome


def test_v_ra_and_durations_show_each_test_once(mixed: Project) -> None:
    outcome = run_pytest(mixed, "-v", "-rA", "--durations=3", "--durations-min=0", ranks=3)
    before, _, summary = outcome.output.partition("short test summary info")
    for shown in (
        "test_mixed.py::test_one PASSED",
        "test_mixed.py::test_two FAILED",
        "test_mixed.py::test_skipped SKIPPED (not today)",
        "test_mixed.py::test_expected XFAIL (known)",
        "test_mixed.py::TestGroup::test_three PASSED",
    ):
        assert before.count(shown) == 1, outcome
    for shown in (
        "PASSED test_mixed.py::test_one\n",
        "FAILED test_mixed.py::test_two - [rank 1 of 2] AssertionError: rank one is to blame",
        "SKIPPED [1] test_mixed.py:12: not today\n",
        "XFAIL test_mixed.py::test_expected - known\n",
        "PASSED test_mixed.py::TestGroup::test_three\n",
    ):
        assert summary.count(shown) == 1, outcome
    assert "slowest 3 durations" in outcome.output, outcome
    _, _, durations = before.partition("slowest 3 durations")
    assert sum(" test_mixed.py::" in line for line in durations.splitlines()) == 3, outcome


def test_s_lets_every_rank_write_by_itself(mixed: Project) -> None:
    outcome = run_pytest(mixed, "-s", "--tb=no", "-k", "one or two", ranks=3)
    assert outcome.output.count("one says hello") == 1, outcome
    assert outcome.output.count("two says hello") == 2, outcome
    assert "Captured stdout" not in outcome.output, outcome


TRACEBACKS = {
    "auto": ["- rank 1 of 2 -", ">       assert comm.rank == 0", "comm = <mpi4py"],
    "long": ["- rank 1 of 2 -", ">       assert comm.rank == 0", "comm = <mpi4py"],
    "short": ["- rank 1 of 2 -", "test_mixed.py:10: in test_two\n"],
    "line": ["test_mixed.py:10: [rank 1 of 2] AssertionError: rank one is to blame"],
    "native": ["- rank 1 of 2 -", "Traceback (most recent call last)"],
    "no": [],
}


@pytest.mark.parametrize("style", TRACEBACKS)
def test_tracebacks_have_the_style_asked_for_and_name_the_rank(mixed: Project, style: str) -> None:
    outcome = run_pytest(mixed, f"--tb={style}", "-k", "two", ranks=2)
    for shown in TRACEBACKS[style]:
        assert outcome.output.count(shown) == 1, outcome
    shown = "FAILED test_mixed.py::test_two - [rank 1 of 2] AssertionError: rank one is to blame"
    assert outcome.output.count(shown) == 1, outcome
    assert ("FAILURES" in outcome.output) == (style != "no"), outcome
    assert ("comm = <mpi4py" in outcome.output) == (style in ("auto", "long")), outcome


def test_pdb_is_refused_in_one_sentence(mixed: Project) -> None:
    outcome = run_pytest(mixed, "--pdb", ranks=3)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, outcome
    assert outcome.errors.count("--pdb") >= 1, outcome
    assert (outcome.output + outcome.errors).count("need a terminal on every rank") == 1, outcome
    assert outcome.reports == [], outcome


# pytest-randomly and pytest-rerunfailures beside us: all ranks of a test do the same

SHUFFLED = {"PYTEST_ADDOPTS": ""}


def outcomes(outcome: Outcome, name: str) -> list[str]:
    """Return what was reported about a test in order, without the phases that passed beside it."""
    return [
        what if when == "call" else f"{when} {what}"
        for nodeid, when, what in outcome.reports
        if nodeid.endswith(f"::{name}") and (when == "call" or what != "passed")
    ]


@pytest.mark.usefixtures("installed_plugins")
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
    """Return how often each rank has tried, by rank."""
    return [len(path.read_text()) for path in sorted(project.folder.glob(f"attempts-{name}-*"))]


@pytest.mark.usefixtures("installed_plugins")
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


@pytest.mark.usefixtures("installed_plugins")
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


@pytest.mark.usefixtures("installed_plugins")
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
