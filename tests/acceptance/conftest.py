from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import (
    ENVIRONMENTS,
    EVERYTHING,
    Environment,
    VirtualEnvironment,
    why_unavailable,
)

from tests.acceptance.harness import Project
from tests.acceptance.leftovers import short_folder
from tests.lengths import IS_FULL

SCHEDULERS = ("sequential", "static", "dynamic")
# Two that have little in common.
MPIS = ("mpich", "openmpi5")
CREWS = ("pool", "shell")
# Debian's Open MPI is of the same version as the wheel for 4: every day one of them is enough.
EVERY_MPI = sorted(ENVIRONMENTS if IS_FULL else ENVIRONMENTS.keys() - {"openmpi4"})


def require(name: str) -> Environment:
    """Return an MPI to test with; skip without it, or fail where everything is required."""
    require_environment(name)
    return ENVIRONMENTS[name]


def require_environment(name: str) -> VirtualEnvironment:
    """Return a virtual environment; skip without it, or fail where everything is required."""
    reason = why_unavailable(EVERYTHING[name])
    if reason is not None:
        if os.environ.get("RANKWISE_REQUIRE_ALL"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return EVERYTHING[name]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A folder for an inner test-suite, run with MPICH."""
    return Project(tmp_path, require("mpich"))


@pytest.fixture
def installed_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let inner runs load the plugins that are installed, for tests of what they do beside us."""
    monkeypatch.setattr(Project, "loads_plugins", True)


@pytest.fixture(params=EVERY_MPI)
def project_on_each_mpi(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    """The same with each MPI in turn."""
    return Project(tmp_path, require(request.param))


@pytest.fixture(params=SCHEDULERS)
def scheduler(request: pytest.FixtureRequest) -> str:
    """Each scheduler in turn."""
    name: str = request.param
    return name


@pytest.fixture(params=MPIS)
def project_on_both(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    """A folder for an inner test-suite, with each of two MPIs in turn."""
    return Project(tmp_path, require(request.param))


@pytest.fixture(params=CREWS)
def crew(request: pytest.FixtureRequest) -> str:
    """Each way of starting ranks in turn."""
    name: str = request.param
    return name


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for the temporary files of a run."""
    with short_folder() as folder:
        yield folder
