"""What a test leaves behind harms no other, and `--leak-check` names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.pools import run_pool

SUITE = {
    "test_leaks.py": """
        from mpi4py import MPI
        from rankwise import mark


        @mark.parallel(2)
        def test_message(comm):
            if comm.rank == 0:
                comm.send("left", dest=1, tag=7)


        @mark.parallel(2)
        def test_communicator(comm):
            comm.Dup()


        @mark.parallel(2)
        def test_handler(comm):
            MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_ARE_FATAL)


        @mark.parallel(2, world=True)
        def test_message_in_the_world(comm):
            if comm.rank == 0:
                MPI.COMM_WORLD.send("left", dest=1, tag=9)


        @mark.parallel(2, world=True)
        def test_orderly(comm):
            comm.Dup().Free()
            comm.Barrier()
            assert not MPI.COMM_WORLD.iprobe()
            assert not comm.iprobe()
            assert MPI.COMM_WORLD.Get_errhandler() != MPI.ERRORS_ARE_FATAL
    """
}
LEFT = {
    "test_message": "a message from rank 0 with tag 7 on comm, never received",
    "test_communicator": "a communicator from Dup, never freed",
    "test_handler": "another error handler on MPI.COMM_WORLD",
    "test_message_in_the_world": "a message from rank 0 with tag 9 on MPI.COMM_WORLD",
}


def test_what_is_left_behind_harms_nobody(
    project_on_both: Project, temporary: Path, crew: str
) -> None:
    project_on_both.write(SUITE)
    options = (f"--scheduler={crew}", "--policy=sequential")
    outcome = run_pool(project_on_both, temporary, *options)
    assert outcome.counts() == {"passed": 5}, str(outcome)


def test_the_check_names_it(project_on_both: Project, temporary: Path, crew: str) -> None:
    project_on_both.write(SUITE)
    options = (f"--scheduler={crew}", "--policy=sequential", "--leak-check")
    outcome = run_pool(project_on_both, temporary, *options)
    expected = {**dict.fromkeys(LEFT, "error in teardown"), "test_orderly": "passed"}
    assert outcome.verdicts == expected, str(outcome)
    for left in LEFT.values():
        assert outcome.output.count(f"the test leaves behind: {left}") == 1, str(outcome)


def test_the_check_works_under_mpirun_too(project: Project) -> None:
    project.write(SUITE)
    outcome = run_pytest(project, "--leak-check", ranks=2)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    for left in LEFT.values():
        assert f"the test leaves behind: {left}" in outcome.output, str(outcome)
