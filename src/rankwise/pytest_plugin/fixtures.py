"""Fixtures for tests on several ranks."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mpi4py import MPI

NAMES = ("comm", "mpi_ranks", "mpi_tmp_path", "mpi_tmpdir")


@pytest.fixture
def comm(request: pytest.FixtureRequest) -> MPI.Intracomm:
    """A communicator private to the test, of as many ranks as its mark says (unmarked: one)."""
    from rankwise.errors import MpiMissing
    from rankwise.pytest_plugin.communicators import Communicators

    capture = request.config.pluginmanager.get_plugin("capturemanager")
    if "mpi4py.MPI" in sys.modules:
        capture = None
    try:
        # An MPI that cannot start ends the process: then what it says must be seen.
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            return Communicators.of(request.config).for_test()
    except MpiMissing as error:
        problem = str(error)
    # Not from within the handler: pytest would show the explanation twice, once as the cause.
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
def mpi_tmpdir(mpi_tmp_path: Path) -> Path:
    """The same as `mpi_tmp_path`, by an older name that suites of pytest-mpi use."""
    return mpi_tmp_path
