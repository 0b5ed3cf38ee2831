"""What is known about ranks and MPI without starting MPI, and MPI outside of ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from environments import ENVIRONMENTS, LAUNCH_VARIABLES

from rankwise.errors import MpiMismatch, MpiMissing, RankwiseError
from rankwise.launch import mpi
from rankwise.launch.mpi import (
    Place,
    library_name,
    place_from_environment,
    replace_world,
    start_mpi,
)
from rankwise.pytest_plugin import plugin
from tests.acceptance.conftest import require

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "1"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_FD": "7"}
MVAPICH = {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "4"}
PALS = {"PALS_RANKID": "1", "PALS_SIZE": "4", "PMI_RANK": "1", "PMI_SIZE": "4"}
SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}
SBATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "77"}


# Places


@pytest.mark.parametrize("variables", [OPEN_MPI, HYDRA, MVAPICH, PALS, SRUN])
def test_each_launcher_tells_rank_and_size(variables: Mapping[str, str]) -> None:
    place = place_from_environment(variables)
    assert place is not None
    assert (place.rank, place.size) == (1, 4)


@pytest.mark.parametrize(("rank", "size"), [names[:2] for names in mpi._LAUNCHERS])
def test_the_plugin_sees_each_launcher(
    rank: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(mpi.JOB_VARIABLES)]:
        monkeypatch.delenv(name)
    assert plugin._place() is None
    monkeypatch.setenv(rank, "1")
    monkeypatch.setenv(size, "4")
    place = plugin._place()
    assert place is not None
    assert (place.rank, place.size) == (1, 4)


@pytest.mark.parametrize(
    ("variables", "version", "fits"),
    [
        (OPEN_MPI, "Open MPI v5.0.11, package: …", True),
        (OPEN_MPI, "MPICH Version:      5.0.2", False),
        (HYDRA, "MPICH Version:      5.0.2", True),
        (HYDRA, "Intel(R) MPI Library 2021.18", True),
        (HYDRA, "Open MPI v5.0.11, package: …", False),
    ],
)
def test_a_place_knows_which_library_fits_its_launcher(
    variables: Mapping[str, str], version: str, fits: bool
) -> None:
    place = place_from_environment(variables)
    assert place is not None
    assert version.startswith(place.launcher) == fits


@pytest.mark.parametrize("variables", [MVAPICH, PALS, SRUN])
def test_some_launchers_start_ranks_of_any_library(variables: Mapping[str, str]) -> None:
    place = place_from_environment(variables)
    assert place is not None
    assert place.launcher == ()


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"PATH": "/usr/bin"},
        SBATCH,
        {"PMI_RANK": "0"},
        {"PMI_SIZE": "2"},
        {"PMI_RANK": "", "PMI_SIZE": ""},
        {"OMPI_COMM_WORLD_RANK": "one", "OMPI_COMM_WORLD_SIZE": "two"},
    ],
    ids=["nothing", "a shell", "a batch script", "no size", "no rank", "empty", "no numbers"],
)
def test_without_a_launcher_there_is_no_place(variables: Mapping[str, str]) -> None:
    assert place_from_environment(variables) is None


def test_a_launcher_inside_a_batch_job_is_believed_before_the_batch_system() -> None:
    place = place_from_environment({**SBATCH, "SLURM_STEP_NUM_TASKS": "1", **OPEN_MPI})
    assert place == Place(rank=1, size=4, launcher=("Open MPI",))


@pytest.mark.parametrize("variables", [OPEN_MPI, HYDRA, SRUN])
def test_a_process_that_a_rank_starts_is_no_rank(
    variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANKWISE_RANK_PROCESS", "")
    mpi.mark_as_joined()
    assert place_from_environment({**os.environ}) is None


@pytest.mark.parametrize("variables", [OPEN_MPI, HYDRA, SRUN])
def test_a_process_that_a_rank_has_started_can_leave_the_job_of_its_parent(
    variables: Mapping[str, str],
) -> None:
    parent = str(os.getpid() + 1)
    environment = {**variables, "RANKWISE_RANK_PROCESS": parent, "PATH": "/usr/bin"}
    mpi.forget_job_of_parent(environment)
    assert environment["PATH"] == "/usr/bin"
    assert place_from_environment(environment) is None
    assert not [name for name in environment if name.startswith(("PMI", "OMPI_COMM"))]


def test_a_rank_does_not_forget_its_own_job() -> None:
    environment = {**HYDRA, "RANKWISE_RANK_PROCESS": str(os.getpid())}
    mpi.forget_job_of_parent(environment)
    assert environment == {**HYDRA, "RANKWISE_RANK_PROCESS": str(os.getpid())}


# Names of libraries


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25\n", "MPICH 5.0.2"),
        ("MPICH Version:\t4.3.0rc1\n", "MPICH 4.3.0rc1"),
        ("Open MPI v5.0.11, package: Open MPI user@host Distribution\0", "Open MPI 5.0.11"),
        ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", "Open MPI 4.1.4"),
        ("Intel(R) MPI Library 2021.18.1 for Linux* OS\n", "Intel MPI 2021.18.1"),
        ("MVAPICH Version\t:\t3.0\nMVAPICH Release date:\t2023\n", "MVAPICH Version : 3.0"),
        ("CRAY MPICH version 8.1.28.2 (ANL base 3.4a2)", "CRAY MPICH version 8.1.28.2"),
        ("", "an unknown MPI"),
        ("\0", "an unknown MPI"),
    ],
)
def test_a_library_is_called_by_name_and_number(version: str, expected: str) -> None:
    assert library_name(version) == expected


@pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
def test_the_library_of_each_environment_is_recognised(name: str) -> None:
    environment = require(name)
    program = (
        "import mpi4py; mpi4py.rc.initialize = False\n"
        "from mpi4py import MPI; print(MPI.Get_library_version())"
    )
    version = subprocess.run(
        [environment.python, "-c", program],
        env={**os.environ, **LAUNCH_VARIABLES},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    family = {"MPICH": "MPICH", "Open MPI v4": "Open MPI 4.", "Open MPI v5": "Open MPI 5."}
    name_of_it = library_name(version)
    assert name_of_it.startswith(family.get(environment.library, "Intel MPI 20"))
    assert name_of_it.rpartition(" ")[2][0].isdigit()


# Starting


class _FakeMpi(SimpleNamespace):
    """An MPI module as far as starting it goes."""

    def __init__(self, version: str, size: int, *, running: bool = False) -> None:
        self.started = 0
        super().__init__(
            Get_library_version=lambda: version,
            Is_initialized=lambda: running,
            COMM_WORLD=SimpleNamespace(Get_size=lambda: size),
            THREAD_SINGLE=0,
            THREAD_FUNNELED=1,
            THREAD_MULTIPLE=3,
        )

    def Init_thread(self, level: int) -> None:
        self.started += 1
        self.level = level


class _FakeSettings(SimpleNamespace):
    """What mpi4py has as `rc`."""

    def __call__(self, **given: object) -> None:
        self.given.append(given)


def _pretend(monkeypatch: pytest.MonkeyPatch, fake: _FakeMpi) -> list[dict[str, Any]]:
    settings: list[dict[str, Any]] = []
    rc = _FakeSettings(given=settings, threads=True, thread_level="multiple")
    module = SimpleNamespace(rc=rc, __version__="4.1")
    monkeypatch.setattr(mpi, "_import_mpi4py", lambda: module)
    monkeypatch.setattr(mpi, "load_mpi", lambda: fake)
    return settings


def test_mpi_is_started_once_it_is_known_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _FakeMpi("MPICH Version: 5.0", size=4)
    settings = _pretend(monkeypatch, fake)
    place = Place(rank=0, size=4, launcher=("MPICH", "Intel"))
    given: object = start_mpi(place)
    assert given is fake
    assert (fake.started, fake.level) == (1, fake.THREAD_MULTIPLE)
    assert settings[0]["initialize"] is False, "or importing it would have started it"


@pytest.mark.parametrize(
    ("variables", "level"),
    [
        ({"MPI4PY_RC_THREAD_LEVEL": "funneled"}, 1),
        ({"MPI4PY_RC_THREADS": "false"}, 0),
        ({"MPI4PY_RC_THREADS": "1"}, 3),
    ],
)
def test_mpi_is_started_at_the_thread_level_that_the_user_has_set(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], level: int
) -> None:
    fake = _FakeMpi("MPICH Version: 5.0", size=4)
    _pretend(monkeypatch, fake)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    start_mpi(Place(rank=0, size=4))
    assert fake.level == level


def test_mpi_that_a_plugin_has_started_already_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = _FakeMpi("MPICH Version: 5.0", size=4, running=True)
    _pretend(monkeypatch, fake)
    start_mpi(Place(rank=0, size=4))
    assert fake.started == 0


def test_a_launcher_of_another_mpi_is_refused_before_mpi_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = _FakeMpi("Open MPI v5.0.11, …", size=1)
    _pretend(monkeypatch, fake)
    with pytest.raises(MpiMismatch, match="mpirun of MPICH or Intel, but mpi4py uses Open MPI 5"):
        start_mpi(Place(rank=0, size=4, launcher=("MPICH", "Intel")))
    assert fake.started == 0


def test_ranks_that_do_not_see_each_other_are_refused_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _pretend(monkeypatch, _FakeMpi("MPICH Version: 5.0", size=1))
    with pytest.raises(MpiMismatch, match=r"started 4 processes, but MPICH 5\.0 sees 1") as caught:
        start_mpi(Place(rank=0, size=4))
    assert "pip install" in str(caught.value)


def test_missing_mpi4py_is_explained_with_the_command_that_mends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MpiMissing, match=r'pip install "rankwise\[mpi\]"'):
        mpi.load_mpi()


def test_every_error_can_be_caught_as_one() -> None:
    assert issubclass(MpiMissing, RankwiseError)
    assert issubclass(MpiMismatch, RankwiseError)


# MPI for a process that is no rank, in processes of their own: what is imported stays imported

LIMIT = 60.0


def run(code: str) -> str:
    """Run a program and give what it prints; it may not fail."""
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("PMI")},
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def alone() -> Any:
    mpi = SimpleNamespace(Intracomm=object, COMM_WORLD=None, COMM_SELF=None)
    replace_world(mpi)
    return mpi.COMM_WORLD


def test_the_world_is_this_process_alone() -> None:
    world = alone()
    assert (world.rank, world.size) == (world.Get_rank(), world.Get_size()) == (0, 1)


def test_what_is_said_to_all_comes_back() -> None:
    world = alone()
    value = object()
    world.Barrier()
    world.barrier()
    assert world.bcast(value, root=0) is value
    assert world.allreduce(value) is value
    assert world.gather(value) == world.allgather(value) == [value]


def test_asking_the_stand_in_for_the_world_does_not_start_mpi() -> None:
    pytest.importorskip("mpi4py")
    code = """
from rankwise.launch.mpi import stand_in_for_mpi
stand_in_for_mpi()
from mpi4py import MPI
import mpi4py.MPI as again
assert again is MPI
print(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, MPI.COMM_SELF.size, MPI.Is_initialized())
print(isinstance(MPI.COMM_WORLD, MPI.Intracomm), MPI.Get_library_version() != "")
"""
    assert run(code) == "0 1 1 False\nTrue True"


def test_what_needs_mpi_is_refused_and_does_not_end_the_process() -> None:
    pytest.importorskip("mpi4py")
    code = """
from rankwise.launch.mpi import stand_in_for_mpi
stand_in_for_mpi()
from mpi4py import MPI
for ask in (lambda: MPI.COMM_WORLD.Dup(), lambda: MPI.COMM_WORLD.name):
    try:
        ask()
    except RuntimeError as error:
        print(error)
"""
    said = "of a communicator: MPI is not started in the controller"
    assert run(code) == f"Dup {said}\nname {said}"


def test_the_way_modules_are_found_is_as_it_was_after_the_import() -> None:
    pytest.importorskip("mpi4py")
    code = """
import sys
import mpi4py  # it has a finder of its own
from rankwise.launch.mpi import stand_in_for_mpi
before = list(sys.meta_path)
stand_in_for_mpi()
import json.tool, mpi4py.util  # others are found as ever
assert sys.meta_path != before
from mpi4py import MPI
assert sys.meta_path == before
print("as before")
"""
    assert run(code) == "as before"


def test_who_only_looks_for_mpi_does_not_get_the_real_world_later() -> None:
    pytest.importorskip("mpi4py")
    code = """
import importlib.util
from rankwise.launch.mpi import stand_in_for_mpi
stand_in_for_mpi()
assert importlib.util.find_spec("mpi4py.MPI") is not None
from mpi4py import MPI
print(type(MPI.COMM_WORLD).__name__)
"""
    assert run(code) == "Alone"


def test_without_mpi4py_nothing_is_done() -> None:
    code = """
import sys
sys.modules["mpi4py"] = None
from rankwise.launch.mpi import stand_in_for_mpi
before = list(sys.meta_path)
stand_in_for_mpi()
assert sys.meta_path == before
print("nothing")
"""
    assert run(code) == "nothing"
