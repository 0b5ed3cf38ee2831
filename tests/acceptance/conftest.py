from __future__ import annotations

import os
from pathlib import Path

import pytest
from environments import ENVIRONMENTS, Environment, why_unavailable

from tests.acceptance.harness import Project

SCHEDULERS = ("sequential", "static", "dynamic")


def require(name: str) -> Environment:
    """Give an MPI to test with; skip without it, or fail where everything is required."""
    reason = why_unavailable(ENVIRONMENTS[name])
    if reason is not None:
        if os.environ.get("RANKWISE_REQUIRE_ALL"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return ENVIRONMENTS[name]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A folder for an inner test-suite, run with MPICH."""
    return Project(tmp_path, require("mpich"))


@pytest.fixture(params=sorted(ENVIRONMENTS))
def project_on_each_mpi(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    """The same with each MPI in turn."""
    return Project(tmp_path, require(request.param))


@pytest.fixture(params=SCHEDULERS)
def scheduler(request: pytest.FixtureRequest) -> str:
    """Each scheduler in turn."""
    name: str = request.param
    return name
