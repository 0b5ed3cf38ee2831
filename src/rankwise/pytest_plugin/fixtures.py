"""Fixtures for tests on several ranks."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.compat import LEGACY_PATH, legacy_path

if TYPE_CHECKING:
    from mpi4py import MPI

NAMES = ("comm", "mpi_file_name", "mpi_ranks", "mpi_tmp_path", "mpi_tmpdir")


@pytest.fixture
def comm(request: pytest.FixtureRequest) -> MPI.Intracomm:
    """A communicator of the test alone, with as many ranks as its mark says (unmarked: one)."""
    from rankwise.errors import MpiMissing
    from rankwise.pytest_plugin.communicators import Communicators

    capture: Any = request.config.pluginmanager.get_plugin("capturemanager")
    is_loaded = capture is None or "mpi4py.MPI" in sys.modules
    try:
        # An MPI that cannot start ends this process: the user must see its message.
        with nullcontext() if is_loaded else capture.global_and_fixture_disabled():
            return Communicators.of(request.config).for_test()
    except MpiMissing as error:
        problem = str(error)
    # Outside of the handler: otherwise pytest shows the message twice, once as the cause.
    pytest.fail(problem, pytrace=False)


@pytest.fixture
def mpi_ranks(request: pytest.FixtureRequest) -> int:
    """The number of ranks that the test runs on."""
    from rankwise.pytest_plugin.marks import size_of

    return size_of(request.node)


@pytest.fixture
def mpi_tmp_path(tmp_path: Path, comm: MPI.Intracomm) -> Path:
    """One temporary folder for all ranks of the test: rank 0's `tmp_path`."""
    return Path(comm.bcast(str(tmp_path), root=0))


@pytest.fixture
def mpi_tmpdir(mpi_tmp_path: Path) -> LEGACY_PATH:
    """The same as `mpi_tmp_path`, as a `py.path.local`: for suites of pytest-mpi."""
    return legacy_path(mpi_tmp_path)


@pytest.fixture
def mpi_file_name(mpi_tmp_path: Path) -> str:
    """A file name in `mpi_tmp_path`, the same on all ranks of the test; of pytest-mpi, too."""
    return str(mpi_tmp_path / "file.hdf5")
