"""A real Slurm for the tests of this folder, one for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from cluster import Cluster, cluster, obstacle


def require_slurm() -> None:
    """Skip without a Slurm, or fail where everything is required."""
    if why := obstacle():
        if os.environ.get("RANKWISE_REQUIRE_ALL"):
            pytest.fail(f"no Slurm here: {why}")
        pytest.skip(f"no Slurm here: {why}")


def _prefix() -> str:
    """Return the nodes' names of this process: what they leave in /tmp is known by their names."""
    return f"{os.environ.get('PYTEST_XDIST_WORKER', '')}n"


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """A cluster without accounting, as many are. A test that breaks it repairs it."""
    require_slurm()
    with cluster(prefix=_prefix()) as made:
        yield made


@pytest.fixture(scope="session")
def slurm_with_accounting() -> Iterator[Cluster]:
    """A cluster with slurmdbd and MariaDB, whose controller forgets jobs soon."""
    require_slurm()
    with cluster(has_accounting=True, prefix=_prefix(), job_age=2) as made:
        yield made


@pytest.fixture
def own_slurm() -> Iterator[Cluster]:
    """A cluster for a test that breaks it."""
    require_slurm()
    with cluster(prefix=_prefix()) as made:
        yield made
