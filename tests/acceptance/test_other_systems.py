"""Runs under mpirun need nothing that macOS or Windows does not have."""

from __future__ import annotations

import pytest

from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.other_systems import SITECUSTOMIZE
from tests.seeds.sentences import sentence

SUITE = """
    import os
    import signal
    import socket
    import sys
    import time

    import pytest
    import rankwise

    WINDOWS = os.environ["STAND_IN_FOR"] == "Windows"

    def test_what_linux_has_is_missing():
        with pytest.raises(FileNotFoundError):
            open("/proc/self/status")
        assert not any(hasattr(os, name) for name in ("sched_getaffinity", "pidfd_open", "O_PATH"))
        assert not hasattr(signal, "SIGRTMIN")
        assert hasattr(os, "fork") == hasattr(signal, "SIGUSR2") == (not WINDOWS)
        if WINDOWS:
            with pytest.raises(ImportError):
                import fcntl

    @rankwise.mark.parallel(2)
    def test_sum(comm):
        assert comm.allreduce(comm.rank) == 1

    @rankwise.mark.parallel([1, 2])
    def test_fails_on_the_last_rank(comm):
        assert comm.rank != comm.size - 1, f"of {comm.size}"

    @rankwise.mark.parallel(3)
    def test_too_large(comm):
        pass

    @pytest.mark.parametrize("number", range(3))
    def test_one(number, tmp_path):
        assert tmp_path.is_dir()
"""
VERDICTS = {
    "test_what_linux_has_is_missing": "passed",
    "test_sum": "passed",
    "test_fails_on_the_last_rank[1]": "failed",
    "test_fails_on_the_last_rank[2]": "failed",
    "test_too_large": "skipped",
    **{f"test_one[{number}]": "passed" for number in range(3)},
}
WITHOUT = "a Python without what macOS, or Windows, does not have,"


def run_as_on(
    system: str, project: Project, *options: str, ranks: int | None = 2, **more: str
) -> Outcome:
    project.write({"sitecustomize.py": SITECUSTOMIZE})
    library = next((project.mpi.python.parent.parent / "lib").glob("libmpi.so.*"))
    # On macOS mpi4py would look for a library of another name.
    variables = {"STAND_IN_FOR": system, "MPI4PY_LIBMPI": str(library), **more}
    return run_pytest(project, *options, ranks=ranks, environment=variables)


@sentence(
    "pytest_parallel",
    ran="mpiexec -n 2 pytest --scheduler=sequential, static, dynamic",
    stand_in=WITHOUT,
    said="sequential, static and dynamic work with Mac OS, sequential and static with Windows.",
)
@pytest.mark.parametrize(
    ("system", "scheduler"),
    [
        *(("macOS", name) for name in ("sequential", "static", "dynamic")),
        *(("Windows", name) for name in ("sequential", "static")),
    ],
)
def test_ranks_of_mpirun_need_nothing_of_linux(
    project: Project, system: str, scheduler: str
) -> None:
    project.write({"test_it.py": SUITE})
    outcome = run_as_on(system, project, f"--scheduler={scheduler}")
    assert outcome.verdicts == VERDICTS, outcome
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    assert f"scheduler {scheduler}" in outcome.output, outcome
    assert "[rank 1 of 2] AssertionError: of 2" in outcome.output, outcome


HANGS = """
    import time
    import rankwise

    @rankwise.mark.parallel(2)
    def test_hangs(comm):
        if comm.rank:
            time.sleep(600)
        comm.barrier()
"""


@pytest.mark.parametrize(("system", "places"), [("macOS", 2), ("Windows", 0)])
def test_a_hang_is_ended_there_too(project: Project, system: str, places: int) -> None:
    project.write({"test_it.py": HANGS})
    outcome = run_as_on(system, project, "--test-timeout=3")
    assert outcome.exit_code not in (0, 1), outcome
    said = outcome.output + outcome.errors
    assert "test_hangs exceeded its time limit of 3 s in call" in said, outcome
    # Where ranks are is asked by a signal.
    assert said.count(" in test_hangs\n") == places, outcome


def test_a_long_path_of_temporary_files_is_no_obstacle_there(project: Project) -> None:
    project.write({"test_it.py": SUITE, f"{'long' * 30}/there": ""})
    outcome = run_as_on("macOS", project, TMPDIR=str(project.folder / ("long" * 30)))
    assert outcome.verdicts == VERDICTS, outcome


def test_workers_are_refused_there_with_the_way_out(project: Project) -> None:
    project.write({"test_it.py": SUITE})
    outcome = run_as_on("macOS", project, "--n-workers=2", ranks=None)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, outcome
    assert "--n-workers needs Linux; here, run mpirun -np N pytest" in outcome.errors, outcome
