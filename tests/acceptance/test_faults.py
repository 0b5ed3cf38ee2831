"""Everything that can go wrong in a test: it is named, and no other test suffers.

One run has all faults in it, among innocent tests. It is made once with each way of starting ranks
on each MPI; what came of it is then looked at from many sides.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tests.acceptance.conftest import require
from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.leftovers import check_that_nothing_is_left, short_folder

FILE = "test_all_faults.py"

SUITE = textwrap.dedent(
    """\
    import ctypes
    import os
    import signal
    import time

    import pytest
    from rankwise import mark


    @pytest.mark.parametrize("number", range(6))
    def test_alone(number):
        time.sleep(0.05)


    @mark.parallel(2)
    def test_segmentation_fault(comm):
        print("before the crash")
        if comm.rank == 1:
            ctypes.string_at(0)
        comm.Barrier()


    @mark.parallel(2)
    @pytest.mark.parametrize("number", range(6))
    def test_pair(comm, number):
        time.sleep(0.05)
        assert comm.allreduce(1) == 2


    @mark.parallel(2)
    def test_killed(comm):
        if comm.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.Barrier()


    def test_wrong():
        assert "apples" == "pears"


    @mark.parallel(2)
    def test_leaves_with_zero(comm):
        if comm.rank == 0:
            os._exit(0)
        comm.Barrier()


    @mark.parallel(2)
    def test_wrong_on_one_rank(comm):
        assert comm.rank == 0, "only rank zero is right"


    @mark.parallel(2)
    def test_aborts(comm):
        if comm.rank == 1:
            comm.Abort(7)
        comm.Barrier()


    @mark.parallel(3)
    def test_receives_what_nobody_sends(comm):
        if comm.rank == 0:
            comm.recv(source=1)


    @mark.parallel(3)
    def test_trio(comm):
        assert comm.allreduce(1) == 3


    @mark.parallel(3)
    def test_raises_before_a_barrier(comm):
        if comm.rank == 1:
            raise ValueError("boom")
        comm.Barrier()


    @mark.parallel(2)
    def test_mismatched_collectives(comm):
        if comm.rank == 1:
            comm.Barrier()
        else:
            comm.bcast(1, root=1)


    @mark.parallel(2)
    def test_holds_the_lock(comm):
        if comm.rank == 1:
            sum(range(10**12))
        comm.Barrier()


    @mark.parallel(3)
    def test_one_is_elsewhere(comm):
        if comm.rank == 2:
            time.sleep(1000)
        comm.Barrier()


    @mark.parallel(3)
    @pytest.mark.timeout(1)
    def test_own_time_limit(comm):
        comm.recv(source=(comm.rank + 1) % comm.size)


    @pytest.fixture
    def crash_in_setup(comm):
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)


    @mark.parallel(2)
    def test_crash_in_setup(crash_in_setup, comm):
        comm.Barrier()


    @pytest.fixture
    def crash_in_teardown(comm):
        yield
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)


    @mark.parallel(2)
    def test_crash_in_teardown(crash_in_teardown, comm):
        comm.Barrier()


    @pytest.fixture(scope="session")
    def crash_in_session_setup():
        os.kill(os.getpid(), signal.SIGSEGV)


    def test_crash_in_session_setup(crash_in_session_setup):
        pass


    @pytest.mark.skip(reason="not today")
    def test_skipped():
        pass


    @mark.parallel(2)
    def test_skips_itself(comm):
        pytest.skip("not now")


    @pytest.mark.xfail(reason="known")
    def test_expected_failure():
        assert 0


    @mark.parallel(3, world=True)
    def test_world_of_three(comm):
        from mpi4py import MPI

        assert MPI.COMM_WORLD.size == 3
        assert comm.allreduce(1) == 3


    @mark.parallel(2, world=True)
    def test_crash_in_a_world_of_its_own(comm):
        if comm.rank == 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        comm.Barrier()


    @mark.parallel(4)
    def test_everyone(comm):
        assert comm.allreduce(1) == 4


    @mark.parallel(5)
    def test_too_many():
        pass
    """
)


def place(source: str, function: str = "", *, occurrence: int = 0) -> str:
    """Return how a stack shows a line of the suite: its place, function and text."""
    lines = SUITE.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(f"def {function}("))
    number = [i for i in range(begin, len(lines)) if lines[i].strip() == source][occurrence] + 1
    return f"    {FILE}:{number} in {function}\n        {source}\n"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is said about one faulty test."""

    verdict: str = "failed"
    headline: str
    """A regular expression for all of the line."""
    parts: Sequence[str] = ()
    """What follows it, in this order."""


SEGMENTATION_FAULT = r"was killed by SIGSEGV \(segmentation fault\)"
WHERE_EVERYBODY_IS = "- where every rank is -"

SAID = r"called MPI_Abort \(exit code 7\)"
FAULTS = {
    "test_segmentation_fault": Fault(
        headline=f"rank 1 of 2 {SEGMENTATION_FAULT} in call",
        parts=(
            "- where it was -",
            "rank 1 of 2:\n",
            place("ctypes.string_at(0)", "test_segmentation_fault"),
            "- Captured stdout call (rank 1 of 2) -",
            "before the crash",
        ),
    ),
    "test_killed": Fault(headline="rank 0 of 2 was killed by SIGKILL in call"),
    "test_leaves_with_zero": Fault(headline="rank 0 of 2 exited with code 0 .* in call"),
    "test_aborts": Fault(headline=rf"rank 1 of 2 (?:{SAID}|exited with code 7 .*) in call"),
    "test_receives_what_nobody_sends": Fault(
        headline=r"test_\w+ exceeded its time limit of 2 s in call",
        parts=(
            WHERE_EVERYBODY_IS,
            "rank 0 of 3:\n" + place("comm.recv(source=1)", "test_receives_what_nobody_sends"),
        ),
    ),
    "test_raises_before_a_barrier": Fault(
        headline="rank 1 of 3 failed, and the others did not end within 1 s",
        parts=(
            "- rank 1 of 3 failed first -",
            "ValueError: boom",
            "- where the others wait -",
            "ranks 0, 2 of 3:\n" + place("comm.Barrier()", "test_raises_before_a_barrier"),
        ),
    ),
    "test_mismatched_collectives": Fault(
        headline=r"test_\w+ exceeded its time limit of 2 s in call",
        parts=(
            WHERE_EVERYBODY_IS,
            "rank 0 of 2:\n" + place("comm.bcast(1, root=1)", "test_mismatched_collectives"),
            "rank 1 of 2:\n" + place("comm.Barrier()", "test_mismatched_collectives"),
        ),
    ),
    "test_holds_the_lock": Fault(
        headline=r"test_\w+ exceeded its time limit of 2 s in call",
        parts=(
            WHERE_EVERYBODY_IS,
            "rank 0 of 2:\n" + place("comm.Barrier()", "test_holds_the_lock"),
            "rank 1 of 2:\n" + place("sum(range(10**12))", "test_holds_the_lock"),
        ),
    ),
    "test_one_is_elsewhere": Fault(
        headline=r"test_\w+ exceeded its time limit of 2 s in call",
        parts=(
            WHERE_EVERYBODY_IS,
            "rank 2 never reached the barrier (",
            "`comm.Barrier()`): it is in ",
            "`time.sleep(1000)`\n",
            "rank 2 of 3:\n" + place("time.sleep(1000)", "test_one_is_elsewhere"),
            "ranks 0-1 of 3:\n" + place("comm.Barrier()", "test_one_is_elsewhere"),
        ),
    ),
    "test_own_time_limit": Fault(
        headline=r"test_\w+ exceeded its time limit of 1 s in call",
        parts=(
            WHERE_EVERYBODY_IS,
            "all 3 ranks:\n"
            + place("comm.recv(source=(comm.rank + 1) % comm.size)", "test_own_time_limit"),
        ),
    ),
    "test_crash_in_setup": Fault(
        verdict="error in setup",
        headline=f"rank 1 of 2 {SEGMENTATION_FAULT} in setup",
        parts=(
            "- where it was -",
            "rank 1 of 2:\n" + place("os.kill(os.getpid(), signal.SIGSEGV)", "crash_in_setup"),
        ),
    ),
    "test_crash_in_teardown": Fault(
        verdict="error in teardown",
        headline=f"rank 1 of 2 {SEGMENTATION_FAULT} in teardown",
        parts=(
            "- where it was -",
            "rank 1 of 2:\n" + place("os.kill(os.getpid(), signal.SIGSEGV)", "crash_in_teardown"),
        ),
    ),
    "test_crash_in_session_setup": Fault(
        verdict="error in setup",
        headline=f"its rank {SEGMENTATION_FAULT} in setup",
        parts=(
            "- where it was -",
            place("os.kill(os.getpid(), signal.SIGSEGV)", "crash_in_session_setup"),
        ),
    ),
    "test_crash_in_a_world_of_its_own": Fault(
        headline=f"rank 0 of 2 {SEGMENTATION_FAULT} in call",
        parts=(
            "- where it was -",
            "rank 0 of 2:\n"
            + place("os.kill(os.getpid(), signal.SIGSEGV)", "test_crash_in_a_world_of_its_own"),
        ),
    ),
}

# The reports on each innocent test, all of them.
_ALL_WELL = [("setup", "passed"), ("call", "passed"), ("teardown", "passed")]
_WRONG = [("setup", "passed"), ("call", "failed"), ("teardown", "passed")]
_SKIPPED = [("setup", "skipped"), ("teardown", "passed")]
INNOCENT = {
    **{f"test_alone[{number}]": _ALL_WELL for number in range(6)},
    **{f"test_pair[{number}]": _ALL_WELL for number in range(6)},
    "test_trio": _ALL_WELL,
    "test_world_of_three": _ALL_WELL,
    "test_everyone": _ALL_WELL,
    "test_wrong": _WRONG,
    "test_wrong_on_one_rank": _WRONG,
    "test_skipped": _SKIPPED,
    "test_too_many": _SKIPPED,
    "test_skips_itself": [("setup", "passed"), ("call", "skipped"), ("teardown", "passed")],
    "test_expected_failure": [("setup", "passed"), ("call", "xfailed"), ("teardown", "passed")],
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((mpi, crew), id=f"{mpi}-{crew}")
        for mpi in ("mpich", "openmpi5")
        for crew in ("pool", "shell")
    ],
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The run of all faults, which ends by itself and leaves nothing behind."""
    mpi, crew = request.param
    project = Project(tmp_path_factory.mktemp("faults"), require(mpi))
    project.write({FILE: SUITE})
    with short_folder() as temporary:
        outcome = run_pytest(
            project,
            *("--n-workers=4", f"--scheduler={crew}", "--rank-grace=1", "--test-timeout=2"),
            ranks=None,
            limit=120.0,
            environment={"TMPDIR": str(temporary)},
        )
        try:
            check_that_nothing_is_left(project, temporary)
        except AssertionError as left:
            raise AssertionError(f"left behind: {left}\n{outcome}") from None
    return outcome


def explanation(outcome: Outcome, name: str) -> str:
    """Cut what is said about a test out of the output."""
    title = rf"_+ (?:ERROR at \w+ of )?{re.escape(name)} _+"
    found = re.search(rf"^{title}\n(.*?)^(?:_{{5,}}|={{5,}}) ", outcome.output, re.M | re.S)
    assert found is not None, f"nothing about {name}\n{outcome}"
    return found[1]


def reports_on(outcome: Outcome, name: str) -> list[tuple[str, str]]:
    return [(when, what) for nodeid, when, what in outcome.reports if nodeid == f"{FILE}::{name}"]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_rank_and_where_everybody_was(run: Outcome, name: str) -> None:
    fault = FAULTS[name]
    said = explanation(run, name)
    headline = said.splitlines()[0]
    assert re.fullmatch(f"E   {fault.headline}", headline), said
    position = 0
    for part in fault.parts:
        found = said.find(part, position)
        assert found >= 0, f"not there, or not in its place:\n{part}\n--- in\n{said}"
        position = found


def test_an_abort_is_called_one_where_the_rank_has_printed_that(run: Outcome) -> None:
    # With Open MPI, it is mpirun that prints it.
    is_said = re.search(SAID, explanation(run, "test_aborts")) is not None
    assert is_said == ("Open MPI" not in run.output)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_failure_in_its_phase(run: Outcome, name: str) -> None:
    reports = reports_on(run, name)
    phase = FAULTS[name].verdict.removeprefix("error in ").replace("failed", "call")
    expected = [("setup", "passed"), ("call", "passed"), ("teardown", "passed")]
    if phase == "setup":
        del expected[1]
    assert reports == [(when, "failed" if when == phase else what) for when, what in expected]


@pytest.mark.parametrize("name", INNOCENT)
def test_an_innocent_test_has_its_own_verdict_once(run: Outcome, name: str) -> None:
    assert reports_on(run, name) == INNOCENT[name], str(run)


def test_an_innocent_failure_is_explained_by_its_own_assertion(run: Outcome) -> None:
    assert "AssertionError: assert 'apples' == 'pears'" in explanation(run, "test_wrong")
    one_rank = explanation(run, "test_wrong_on_one_rank")
    assert "only rank zero is right" in one_rank
    assert "rank 1 of 2" in one_rank


def test_the_run_ends_with_a_summary_of_everything(run: Outcome) -> None:
    assert run.exit_code == pytest.ExitCode.TESTS_FAILED, str(run)
    tests = {nodeid.partition("::")[2] for nodeid, _, _ in run.reports}
    assert tests == {*FAULTS, *INNOCENT}, str(run)
    failed = sum(fault.verdict == "failed" for fault in FAULTS.values())
    errors = len(FAULTS) - failed
    # A crash in the teardown comes after a call that has passed.
    counts = f"{failed + 2} failed, 16 passed, 3 skipped, 1 xfailed, {errors} errors in "
    assert counts in run.output.splitlines()[-1], str(run)


def test_words_of_mpiexec_about_a_dead_rank_are_not_shown(run: Outcome) -> None:
    """What mpiexec says about a rank that has died is not for the user's eyes."""
    assert run.errors == "", str(run)
