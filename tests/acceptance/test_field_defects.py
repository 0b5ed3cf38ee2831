"""What went wrong in other tools for tests on many ranks, and must not here."""

from __future__ import annotations

import psutil
import pytest

from tests.acceptance.harness import Project
from tests.acceptance.inner import read_ledger, run_pytest
from tests.seeds.sentences import sentence

AWKWARD_IDS = """
    import pytest, rankwise

    NAMES = [
        "with space", "semi;colon", "a && b", "$HOME `id`", "'single'", '"double"', "back\\\\slash",
        "new\\nline", "co::lons", "[brackets]", "a-b", "ünïcödé", "日本", "*?", "#", "", "a/b.py",
    ]

    @pytest.mark.parametrize("name", NAMES)
    @rankwise.mark.parallel(2)
    def test_pair(comm, name):
        assert name != "semi;colon" or comm.rank == 0

    @pytest.mark.parametrize("name", NAMES)
    def test_single(name):
        assert name != "with space"
"""


def test_awkward_characters_in_ids_do_no_harm(project: Project, scheduler: str) -> None:
    project.write({"test_awkward.py": AWKWARD_IDS})
    outcome = run_pytest(project, f"--scheduler={scheduler}", ranks=3)
    assert outcome.counts() == {"passed": 32, "failed": 2}, outcome
    again = run_pytest(project, f"--scheduler={scheduler}", "--lf", ranks=3)
    expected = {"test_pair[semi;colon]": "failed", "test_single[with space]": "failed"}
    assert again.verdicts == expected, again
    named = run_pytest(project, "test_awkward.py::test_pair[semi;colon]", ranks=2)
    assert named.verdicts == {"test_pair[semi;colon]": "failed"}, named


def test_communicators_are_freed_also_after_failures(project: Project) -> None:
    """MPICH has 2,048 of them."""
    project.write(
        {
            "test_many.py": """
            import pytest, rankwise

            @pytest.mark.parametrize("number", range(3000))
            @rankwise.mark.parallel(2)
            def test_pair(comm, number):
                if number % 5 == 0 and comm.rank == 0:
                    pytest.fail("on purpose", pytrace=False)

            @pytest.mark.parametrize("number", range(2100))
            def test_own(comm, number):
                assert comm.size == 1
            """
        }
    )
    outcome = run_pytest(
        project, "--scheduler=dynamic", "--tb=no", "-q", "-rN", ranks=2, limit=150.0
    )
    assert outcome.counts() == {"passed": 4500, "failed": 600}, outcome.output[-2000:]


LEFT_OVERS = """
    import pytest, rankwise
    from mpi4py import MPI

    @rankwise.mark.parallel(2)
    def test_never_received(comm):
        if comm.rank == 0:
            comm.send("stale", dest=1, tag=7)
        comm.Barrier()

    @rankwise.mark.parallel(2)
    def test_receiver_fails(comm):
        assert comm.rank == 0
        comm.send("stale", dest=1)
        comm.Bcast(bytearray(b"!"))

    @rankwise.mark.parallel(2)
    def test_root_fails(comm):
        assert comm.rank == 1
        # Others wait for the root to be ready.
        if "Open MPI" not in MPI.Get_library_version():
            comm.Gather(bytearray(b"!"), None)

    @rankwise.mark.parallel(2)
    def test_freed_by_the_test(comm):
        comm.Free()

    @pytest.mark.parametrize("number", range(200))
    @rankwise.mark.parallel(2)
    def test_later(comm, number):
        received = bytearray(2)
        comm.Gather(bytearray([number]), received if comm.rank == 0 else None)
        assert comm.rank == 1 or list(received) == [number, number]
        sent = bytearray([number if comm.rank == 0 else 255])
        comm.Bcast(sent)
        assert list(sent) == [number]
        assert not comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
"""


def test_what_one_test_leaves_in_its_communicator_never_reaches_another(
    project_on_each_mpi: Project,
) -> None:
    project_on_each_mpi.write({"test_left_overs.py": LEFT_OVERS})
    outcome = run_pytest(project_on_each_mpi, "--scheduler=dynamic", ranks=2)
    failed = {name for name, verdict in outcome.verdicts.items() if verdict == "failed"}
    assert failed == {"test_receiver_fails", "test_root_fails"}, outcome
    assert outcome.counts() == {"passed": 202, "failed": 2}, outcome


def test_a_repeated_test_does_not_receive_what_its_failed_attempts_sent(project: Project) -> None:
    project.write(
        {
            "test_repeated.py": """
            import rankwise

            attempts = 0

            @rankwise.mark.parallel(2)
            def test_third_time_lucky(comm):
                global attempts
                attempts += 1
                if comm.rank == 0:
                    comm.send(attempts, dest=1)
                else:
                    assert attempts == 3
                    assert comm.recv(source=0) == 3
            """
        }
    )
    outcome = run_pytest(project, "-p", "rerunfailures", "--reruns=3", ranks=2)
    assert "1 passed, 2 rerun" in outcome.output, outcome
    assert outcome.exit_code == pytest.ExitCode.OK, outcome


@sentence(
    "pytest_parallel",
    ran="mpirun -np 4 pytest --scheduler=dynamic",
    said="The comm fixture is a communicator private to the test.",
)
def test_two_tests_at_once_do_not_hear_each_other(project: Project) -> None:
    project.write(
        {
            "test_pairs.py": """
            import pytest, rankwise
            from mpi4py import MPI

            @pytest.mark.parametrize("number", range(40))
            @rankwise.mark.parallel(2)
            def test_pair(comm, number):
                for _ in range(20):
                    if comm.rank == 0:
                        comm.send(number, dest=1, tag=0)
                    else:
                        assert comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG) == number
            """
        }
    )
    outcome = run_pytest(project, "--scheduler=dynamic", ranks=4)
    assert outcome.counts() == {"passed": 40}, outcome


@sentence(
    "pytest_parallel",
    ran="mpirun -np 4 pytest --scheduler=…",
    said="The other processes are sleeping.",
)
def test_a_rank_that_waits_uses_next_to_no_processor_time(project: Project, scheduler: str) -> None:
    """A rank that waited busily would use a good part of the seconds that it waits."""
    project.write(
        {
            "conftest.py": """
            import os, time
            import pytest
            from ledger import note

            def used():
                times = os.times()
                return times.user + times.system

            @pytest.hookimpl(wrapper=True, tryfirst=True)
            def pytest_runtestloop():
                before = used(), time.monotonic()
                result = yield
                note(f"{used() - before[0]} {time.monotonic() - before[1]}")
                return result
            """,
            "test_long.py": """
            import time
            import pytest, rankwise

            @pytest.fixture
            def slow_on_rank_0(comm):
                if comm.rank == 0:
                    time.sleep(1)

            def test_single():
                time.sleep(2)

            @rankwise.mark.parallel(2)
            def test_pair(comm, slow_on_rank_0):
                pass
            """,
        }
    )
    outcome = run_pytest(project, f"--scheduler={scheduler}", ranks=3)
    assert outcome.counts() == {"passed": 2}, outcome
    ledger = read_ledger(project)
    assert sorted(rank for rank, _ in ledger) == [0, 1, 2]
    for rank, text in ledger:
        processor, wall = map(float, text.split())
        assert wall > 1.9, (rank, text)
        assert processor < 0.5, (rank, text)


def test_a_run_leaves_one_folder_and_no_processes_behind(project: Project) -> None:
    project.write(
        {
            "test_it.py": """
            import rankwise

            @rankwise.mark.parallel(3)
            def test_it(comm, tmp_path):
                pass
            """
        }
    )
    temporary = project.folder / "temporary"
    temporary.mkdir()
    outcome = run_pytest(project, ranks=3, environment={"TMPDIR": str(temporary)})
    assert outcome.exit_code == pytest.ExitCode.OK, outcome
    assert not list(temporary.glob("rankwise*"))
    assert [path.name for path in temporary.glob("pytest-of-*/pytest-[0-9]*")] == ["pytest-0"]
    here = str(project.folder)
    assert [p for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == here] == []
