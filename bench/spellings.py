"""How a trivial test is written for each of those that are compared.

Every test on two ranks looks at its communicator, so that none passes on one rank.
"""

from __future__ import annotations

from dataclasses import dataclass

_COMM_IS_WORLD = """
import pytest
from mpi4py import MPI

@pytest.fixture
def comm():
    return MPI.COMM_WORLD
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """A module's opening, a test with a place for its `{number}`, and a conftest.py."""

    opening: str = ""
    test: str
    conftest: str = ""


SERIAL = Spelling(test="def test_{number}():\n    assert True\n\n")

BY_HAND = Spelling(
    test="def test_{number}(comm):\n    assert comm.size == 2\n\n",
    conftest=_COMM_IS_WORLD,
)
RANKWISE = Spelling(
    opening="from rankwise import mark\n\n",
    test="@mark.parallel(2)\ndef test_{number}(comm):\n    assert comm.size == 2\n\n",
)
MPI_PYTEST = Spelling(
    opening="import pytest\n\n",
    test="@pytest.mark.parallel(2)\ndef test_{number}(comm):\n    assert comm.size == 2\n\n",
    conftest=_COMM_IS_WORLD,
)
PYTEST_MPI = Spelling(
    opening="import pytest\n\n",
    test="@pytest.mark.mpi\ndef test_{number}(comm):\n    assert comm.size == 2\n\n",
    conftest=_COMM_IS_WORLD,
)
PYTEST_ISOLATE_MPI = Spelling(
    opening="import pytest\n\n",
    test="@pytest.mark.mpi(ranks=2)\ndef test_{number}(comm):\n    assert comm.size == 2\n\n",
)
TESTFLO = Spelling(
    opening="import unittest\n\nclass TwoRanks(unittest.TestCase):\n    N_PROCS = 2\n\n",
    test="    def test_{number}(self):\n        assert self.comm.size == 2\n\n",
)
