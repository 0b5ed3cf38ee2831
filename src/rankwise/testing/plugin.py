"""Options and hooks; what they do is elsewhere."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from rankwise.errors import RankwiseError
from rankwise.launch.mpi import forget_job_of_parent, place_from_environment
from rankwise.testing.communicators import Communicators
from rankwise.testing.fixtures import comm, mpi_ranks, mpi_tmp_path, mpi_tmpdir
from rankwise.testing.mark import MARKERS
from rankwise.testing.sizes import mark_by_size, parametrize, settle_size, skip_if_too_large

if TYPE_CHECKING:
    from rankwise.testing.crew.world import World

__all__ = ["comm", "mpi_ranks", "mpi_tmp_path", "mpi_tmpdir"]

# Rank 0 needs no longer than this to say what is wrong.
_EXPLANATION_SECONDS = 1.0

SCHEDULERS = ("sequential", "static", "dynamic")

_WORLD: pytest.StashKey[World] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rankwise", "tests on many ranks (rankwise)")
    group.addoption(
        "--scheduler",
        choices=SCHEDULERS,
        default="sequential",
        help="How tests are given to the ranks of mpirun. sequential: one test at a time, in order "
        "(default). static: every test gets its ranks before the first one starts. dynamic: the "
        "largest test that fits the free ranks goes next, and of those the longest.",
    )
    group.addoption(
        "--nprocs",
        type=_positive,
        metavar="N",
        help="Run every test marked with a number of ranks on N ranks instead.",
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Join the other ranks before anything of the user's is loaded.

    An error in a conftest on one rank is then something that the others are told. It is also
    before output is captured: what MPI has to say when it cannot start is for the user's eyes.
    """
    _join_world(early_config)
    return (yield)


def _join_world(early_config: pytest.Config) -> None:
    place = place_from_environment()
    if place is None or place.size == 1:
        forget_job_of_parent()
        return
    # Until the first test runs, next to everything that is made is there to stay.
    collects_garbage = gc.isenabled()
    gc.disable()
    from rankwise.testing.crew.session import WorldSession
    from rankwise.testing.crew.world import World

    try:
        world = World.join(place, lambda: WorldSession.settle(early_config))
    except RankwiseError as error:
        if place.rank:
            # One explanation is enough, and a launcher ends rank 0 when another rank has failed.
            time.sleep(_EXPLANATION_SECONDS)
            raise SystemExit(pytest.ExitCode.USAGE_ERROR) from None
        raise pytest.UsageError(str(error)) from None
    early_config.stash[_WORLD] = world
    WorldSession.register(early_config, world, collects_garbage=collects_garbage)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    world = config.stash.get(_WORLD, None)
    config.stash[Communicators.KEY] = Communicators(world.comm if world else None)


def _available(config: pytest.Config) -> int:
    world = config.stash.get(_WORLD, None)
    return world.size if world is not None else 1


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    config = metafunc.config
    parametrize(metafunc, override=config.getoption("nprocs"), available=_available(config))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    available = _available(config)
    override = config.getoption("nprocs")
    by_size = "parallel[" in (config.getoption("markexpr", "") or "")
    for item in items:
        settle_size(item, override=override, available=available)
        if by_size:
            mark_by_size(item, available)
        skip_if_too_large(item, available)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Free the communicator of a test that ran without a world."""
    if item.config.stash.get(_WORLD, None) is None:
        item.config.stash[Communicators.KEY].close()
