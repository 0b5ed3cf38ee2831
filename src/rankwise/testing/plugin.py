"""Options and hooks; what they do is elsewhere."""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from rankwise.errors import RankwiseError
from rankwise.launch.mpi import forget_job_of_parent, place_from_environment
from rankwise.testing.communicators import Communicators
from rankwise.testing.fixtures import comm, mpi_ranks, mpi_tmp_path, mpi_tmpdir
from rankwise.testing.limits import seconds_option
from rankwise.testing.mark import MARKERS
from rankwise.testing.notebook_flags import add_notebook_options
from rankwise.testing.sizes import mark_by_size, parametrize, settle_size, skip_if_impossible
from rankwise.testing.slurm_flags import SLURM_SCHEDULERS, add_slurm_options

if TYPE_CHECKING:
    from rankwise.testing.crew.world import World

__all__ = ["comm", "mpi_ranks", "mpi_tmp_path", "mpi_tmpdir"]

# Where a process finds what it needs to know to be a rank of a pool.
INVITATION = "RANKWISE_INVITATION"

# Rank 0 needs no longer than this to say what is wrong.
_EXPLANATION_SECONDS = 1.0

SCHEDULERS = ("sequential", "static", "dynamic", "pool", "shell", *SLURM_SCHEDULERS)
_STARTS_RANKS = ("pool", "shell", *SLURM_SCHEDULERS)
POLICIES = ("sequential", "static", "dynamic")

_WORLD: pytest.StashKey[World] = pytest.StashKey()
_WORKERS = pytest.StashKey[int]()
_BEGUN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rankwise", "tests on many ranks (rankwise)")
    group.addoption(
        "--n-workers",
        type=_workers,
        metavar="N",
        help="Start N ranks and run the tests on them; no mpirun is needed. A rank that crashes or "
        "hangs ends its test only. auto: as many as there are cores.",
    )
    group.addoption(
        "--scheduler",
        choices=SCHEDULERS,
        help="How tests are given to ranks. With --n-workers: pool (default: ranks are reused; a "
        "world that a test has ended is started again), shell (fresh processes for every test), "
        "slurm (every test is a job step of its own), slurm-pool (a pool on the nodes of an "
        "allocation). With any, sequential: one test at a time, in order (default under mpirun). "
        "static: every test gets its ranks before the first one starts. dynamic: the largest test "
        "that fits the free ranks goes next, and of those the longest (default with --n-workers).",
    )
    group.addoption(
        "--policy",
        choices=POLICIES,
        dest="rankwise_policy",
        help="Which test goes next, for schedulers that start ranks (default: dynamic).",
    )
    group.addoption(
        "--test-timeout",
        type=seconds_option,
        metavar="SECONDS",
        help="How long setup, call and teardown of a test may take each, before it is ended and "
        "reported with the place where every rank is (default: 600; 0: for ever). "
        "@pytest.mark.timeout(SECONDS) sets it for one test.",
    )
    group.addoption(
        "--rank-grace",
        type=seconds_option,
        metavar="SECONDS",
        help="How long the other ranks of a test may go on after one has failed (default: 5).",
    )
    group.addoption(
        "--world",
        action="store_true",
        help="With --n-workers: run every test in a world of exactly its size, so that "
        "MPI.COMM_WORLD has as many ranks as the test.",
    )
    group.addoption(
        "--leak-check",
        action="store_true",
        help="Fail tests that leave a message, a communicator or an error handler behind.",
    )
    group.addoption(
        "--no-warm-start",
        action="store_true",
        help="Start ranks from nothing, not as copies of a process that has loaded the tests.",
    )
    group.addoption(
        "--bind",
        choices=("core", "none"),
        help="Keep each rank on cores of its own (default with --scheduler=shell, if there are "
        "enough cores), or on none.",
    )
    group.addoption(
        "--rank-output",
        choices=("all", "0", "failed"),
        default="all",
        help="Of which ranks of a test the captured output is shown: all (default), rank 0, or "
        "those that failed.",
    )
    group.addoption(
        "--tmux",
        action="store_true",
        help="With --n-workers: show what each rank prints, as it prints it, in a pane of tmux.",
    )
    group.addoption(
        "--timeline",
        metavar="FILE",
        help="Write when which test ran on which rank, and why the suite takes as long as it does, "
        "as a page (FILE.html) or as data (FILE.json).",
    )
    parser.addini("test_timeout", "the default of --test-timeout, in seconds", default="")
    parser.addini("rank_grace", "the default of --rank-grace, in seconds", default="")
    group.addoption(
        "--nprocs",
        type=_positive,
        metavar="N",
        help="Run every test marked with a number of ranks on N ranks instead.",
    )
    add_slurm_options(parser)
    add_notebook_options(parser)


def _workers(text: str) -> str:
    return text if text == "auto" else str(_positive(text))


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
    early_config.stash[_BEGUN] = time.time()
    _join_world(early_config)
    try:
        return (yield)
    except BaseException as error:
        member = early_config.pluginmanager.get_plugin("rankwise-world")
        if member is not None and hasattr(member, "refuse"):
            # A copy of the controller must not go on with what that does without pytest.
            member.refuse(str(error))
            os._exit(int(pytest.ExitCode.USAGE_ERROR))
        raise


def _join_world(early_config: pytest.Config) -> None:
    place = place_from_environment()
    wanted = _wants_workers(early_config)
    if INVITATION in os.environ:
        _join_pool(early_config)
        return
    if wanted and (place is None or place.size == 1):
        _start_pool(early_config)
        return
    if wanted:
        if place is None or place.rank == 0:
            raise pytest.UsageError(
                "mpirun and --n-workers cannot both start the ranks: leave one of them out"
            )
        raise SystemExit(pytest.ExitCode.USAGE_ERROR)
    known = early_config.known_args_namespace
    if known.tmux and known.n_workers is None and (place is None or place.rank == 0):
        raise pytest.UsageError("--tmux shows the ranks of --n-workers, and there are none")
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


def _wants_workers(early_config: pytest.Config) -> bool:
    known = early_config.known_args_namespace
    asked = known.n_workers is not None or known.scheduler in _STARTS_RANKS
    # These only look at what there is.
    return asked and not (known.collectonly or known.help or known.version)


def _start_pool(early_config: pytest.Config) -> None:
    collects_garbage = gc.isenabled()
    gc.disable()
    from rankwise.testing.crew.start import start_controller
    from rankwise.testing.crew.wishes import Wishes

    wishes = Wishes(early_config)
    if wishes.slurm is not None and wishes.slurm.detaches:
        from rankwise.testing.crew.detached import DetachedRun

        early_config.pluginmanager.register(DetachedRun(early_config, wishes.slurm))
        return
    early_config.stash[_WORKERS] = wishes.width
    start_controller(early_config, wishes, collects_garbage=collects_garbage)


def _join_pool(early_config: pytest.Config) -> None:
    collects_garbage = gc.isenabled()
    gc.disable()
    from rankwise.testing.crew.member import WORLD, Invitation, MemberSession, Membership

    invitation = Invitation.from_environment()
    assert invitation is not None
    early_config.stash[_WORKERS] = invitation.width
    if invitation.is_distant and WORLD not in os.environ:
        from rankwise.testing.crew.start import keep_on_node

        keep_on_node(early_config, invitation, collects_garbage=collects_garbage)
        return
    membership = Membership(invitation)
    membership.join_world()
    MemberSession.enrol(early_config, membership, collects_garbage=collects_garbage)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    world = config.stash.get(_WORLD, None)
    config.stash[Communicators.KEY] = Communicators(world.comm if world else None)
    if config.getoption("notebooks"):
        from rankwise.testing.notebooks import register

        register(config)
    timeline = config.getoption("timeline", None)
    # Of many processes, one writes files.
    if timeline and not hasattr(config, "workerinput"):
        from rankwise.testing.timekeeping import NAME, Timekeeper

        begun = config.stash.get(_BEGUN, None) or time.time()
        config.pluginmanager.register(Timekeeper(config, timeline, begun), NAME)


def _available(config: pytest.Config) -> int:
    if _WORKERS in config.stash:
        return config.stash[_WORKERS]
    world = config.stash.get(_WORLD, None)
    return world.size if world is not None else 1


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    config = metafunc.config
    parametrize(metafunc, override=config.getoption("nprocs"), available=_available(config))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    available = _available(config)
    override = config.getoption("nprocs")
    pool = _WORKERS in config.stash
    by_size = "parallel[" in (config.getoption("markexpr", "") or "")
    for item in items:
        settle_size(item, override=override, available=available)
        if by_size:
            mark_by_size(item, available)
        skip_if_impossible(item, available, pool=pool, every_world=config.getoption("world", False))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Free the communicator of a test that ran without a world."""
    if item.config.stash.get(_WORLD, None) is None and _WORKERS not in item.config.stash:
        item.config.stash[Communicators.KEY].close()
