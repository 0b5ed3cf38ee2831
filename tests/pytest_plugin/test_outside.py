"""MPI for a process that is no rank, in processes of their own: what is imported stays imported."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from rankwise.launch.mpi import replace_world

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


def test_mpi_is_not_started_by_one_who_asks_for_the_world() -> None:
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
