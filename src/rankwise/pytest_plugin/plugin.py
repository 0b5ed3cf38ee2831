"""Options and hooks; what they do is elsewhere.

PYTEST_DONT_REWRITE: pytest is not to warn that it cannot (see the package).
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, NoReturn

import pytest

# A plain pytest loads this module too, and each further one takes a third of a millisecond: what it
# does not need is imported where it is used.
from rankwise.pytest_plugin.fixtures import comm, mpi_ranks, mpi_tmp_path, mpi_tmpdir
from rankwise.pytest_plugin.options import MARKERS, STARTS_RANKS, add_options, closest_mark

if TYPE_CHECKING:
    from types import ModuleType

    from rankwise.launch.mpi import Place
    from rankwise.pytest_plugin.mpirun import MpirunLink

__all__ = ["comm", "mpi_ranks", "mpi_tmp_path", "mpi_tmpdir"]

# Where a process finds what it needs to know to be a rank of a pool.
INVITATION = "RANKWISE_INVITATION"

# Rank 0 needs no longer than this to say what is wrong.
_EXPLANATION_SECONDS = 1.0

# The variables that make a process a rank, or what a rank has started, hold one of these words.
_WORDS_OF_LAUNCHERS = ("RANK", "PROCID")

_WORLD: pytest.StashKey[MpirunLink] = pytest.StashKey()
_WORKERS = pytest.StashKey[int]()
_BEGUN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Join the other ranks before anything of the user's is loaded.

    An error in a conftest on one rank is then something that the others are told. It is also
    before output is captured: what MPI has to say when it cannot start is for the user's eyes.
    """
    early_config.stash[_BEGUN] = time.time()
    if "parallel[" in (early_config.known_args_namespace.markexpr or ""):
        early_config.pluginmanager.register(_SelectionBySize(), "rankwise-selection")
    _join_world(early_config)
    try:
        return (yield)
    except BaseException as error:
        worker = early_config.pluginmanager.get_plugin("rankwise-world")
        if worker is not None and hasattr(worker, "refuse"):
            # A copy of the controller must not go on with what that does without pytest.
            worker.refuse(str(error))
            os._exit(int(pytest.ExitCode.USAGE_ERROR))
        raise


def _mpi_pytest() -> ModuleType | None:
    """Return what there is to do beside mpi-pytest; None: that is not here."""
    if "pytest_mpi.plugin" not in sys.modules:
        return None
    from rankwise.pytest_plugin import interop

    return interop


def _is_left_to_mpi_pytest(config: pytest.Config) -> bool:
    return (beside := _mpi_pytest()) is not None and beside.acts(config)


def _place() -> Place | None:
    """Return which rank a launcher made of this process; None if none did."""
    names = [name for name in os.environ if not name.startswith("RANKWISE_")]
    if not any(word in name for name in names for word in _WORDS_OF_LAUNCHERS):
        return None
    from rankwise.launch.mpi import place_from_environment

    return place_from_environment()


def _join_world(early_config: pytest.Config) -> None:
    place = _place()
    wanted = _wants_workers(early_config)
    beside = _mpi_pytest()
    if INVITATION in os.environ:
        if beside is not None:
            beside.replace_in(early_config)
        _join_pool(early_config)
        return
    if beside is not None and beside.has_started_us(early_config):
        return
    if wanted and place is not None and place.rank:
        # Rank 0 starts the workers, and MPI has not been started here.
        raise SystemExit(pytest.ExitCode.OK)
    if beside is not None and (wanted or (place is not None and place.size > 1)):
        beside.replace_in(early_config)
    if wanted:
        _start_pool(early_config, place)
        return
    known = early_config.known_args_namespace
    if known.tmux and known.n_workers is None and (place is None or place.rank == 0):
        raise pytest.UsageError("--tmux shows the ranks of --n-workers, and there are none")
    if place is None or place.size == 1:
        if (launch := sys.modules.get("rankwise.launch.mpi")) is not None:
            launch.forget_job_of_parent()
            # An earlier run in this process was a controller.
            launch.start_mpi_if_held_back()
        return
    collects_garbage = _postpone_garbage(early_config)
    from rankwise.errors import RankwiseError
    from rankwise.pytest_plugin.interop import settle
    from rankwise.pytest_plugin.mpirun import MpirunLink
    from rankwise.pytest_plugin.worker_session import MpirunSession

    try:
        world = MpirunLink.join(place, lambda: settle(early_config))
    except RankwiseError as error:
        from rankwise.pytest_plugin.worker_session import has_option

        refusal = _Refusal(place, str(error))
        if has_option(early_config) or _is_mpi_spoilt():
            refusal.speak()
        early_config.pluginmanager.register(refusal, "rankwise-refusal")
        return
    early_config.stash[_WORLD] = world
    MpirunSession(early_config, world, collects_garbage=collects_garbage).add_to(early_config)


class _Refusal:
    """What keeps the ranks from finding each other; it matters to tests that ask for ranks."""

    def __init__(self, place: Place, reason: str) -> None:
        self._place = place
        self._reason = reason

    def pytest_runtestloop(self, session: pytest.Session) -> None:
        from rankwise.pytest_plugin.worker_session import is_used

        if is_used(session.config) and not session.config.option.collectonly:
            self.speak()

    def speak(self) -> NoReturn:
        """End this process, on rank 0 with the reason."""
        if self._place.rank:
            # One explanation is enough, and a launcher ends rank 0 when another rank has failed.
            time.sleep(_EXPLANATION_SECONDS)
            raise pytest.UsageError
        raise pytest.UsageError(self._reason)


def _is_mpi_spoilt() -> bool:
    """Return whether MPI was loaded and not started: then it does not start by itself any more."""
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and not module.Is_initialized()


def _postpone_garbage(early_config: pytest.Config) -> bool:
    """Look for no garbage until the first test; returns whether it is looked for as a rule.

    Next to everything that is made until then is there to stay.
    """
    collects_garbage = gc.isenabled()
    gc.disable()
    if collects_garbage:
        early_config.add_cleanup(gc.enable)
    return collects_garbage


def _wants_workers(early_config: pytest.Config) -> bool:
    known = early_config.known_args_namespace
    asked = known.n_workers is not None or known.scheduler in STARTS_RANKS
    # These only look at what there is.
    return asked and not (known.collectonly or known.help or known.version)


def _start_pool(early_config: pytest.Config, place: Place | None) -> None:
    collects_garbage = _postpone_garbage(early_config)
    from rankwise.pytest_plugin.workers.place import RunOptions, start_controller

    options = RunOptions(early_config, place=place)
    if options.slurm is not None and options.slurm.detaches:
        from rankwise.pytest_plugin.workers.slurm_allocation import DetachedRun

        early_config.pluginmanager.register(DetachedRun(early_config, options.slurm))
        return
    early_config.stash[_WORKERS] = options.width
    start_controller(early_config, options, collects_garbage=collects_garbage)


def _join_pool(early_config: pytest.Config) -> None:
    collects_garbage = _postpone_garbage(early_config)
    from rankwise.pytest_plugin.connections import WORLD, Invitation
    from rankwise.pytest_plugin.workers.worker import PoolLink, PoolSession

    invitation = Invitation.from_environment()
    early_config.stash[_WORKERS] = invitation.width
    if invitation.is_distant and WORLD not in os.environ:
        from rankwise.pytest_plugin.workers.supervisor import supervise_node

        supervise_node(early_config, invitation, collects_garbage=collects_garbage)
        return
    link = PoolLink(invitation)
    link.join_world()
    PoolSession(early_config, link, collects_garbage=collects_garbage).add_to(early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    _prepare_communicators(config)
    if config.getoption("notebooks"):
        from rankwise.pytest_plugin.notebooks import register

        register(config)
    timeline = config.getoption("timeline", None)
    # Of many processes, one writes files.
    if timeline and not hasattr(config, "workerinput"):
        from rankwise.pytest_plugin.timeline import NAME, Timekeeper

        begun = config.stash.get(_BEGUN, None) or time.time()
        config.pluginmanager.register(Timekeeper(config, timeline, begun), NAME)


def _prepare_communicators(config: pytest.Config) -> None:
    """Make those of a session with a world; others have some when a test asks for them."""
    world = config.stash.get(_WORLD, None)
    is_loaded = "rankwise.pytest_plugin.communicators" in sys.modules
    # A controller runs no tests.
    is_loaded = is_loaded and not config.pluginmanager.has_plugin("rankwise-controller")
    beside = _mpi_pytest()
    is_child = beside is not None and beside.has_started_us(config)
    if world is not None or is_loaded or is_child:
        from rankwise.pytest_plugin.communicators import Communicators

        world_comm = None if world is None else world.comm
        config.stash[Communicators.KEY] = Communicators(world_comm, spans_world=is_child)


def _available(config: pytest.Config) -> int:
    if _WORKERS in config.stash:
        return config.stash[_WORKERS]
    world = config.stash.get(_WORLD, None)
    return world.size if world is not None else 1


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    config = metafunc.config
    beside = _mpi_pytest()
    if closest_mark(metafunc.definition) is None or (beside is not None and beside.acts(config)):
        return
    from rankwise.pytest_plugin.marks import parametrize

    label = "nprocs=" if beside is not None and beside.is_replaced(config) else ""
    override = config.getoption("nprocs")
    parametrize(metafunc, override=override, available=_available(config), label=label)


def _note_use(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note whether tests want something of rankwise, under mpirun, where that matters."""
    if (usage := sys.modules.get("rankwise.pytest_plugin.worker_session")) is not None:
        usage.note_use(config, items)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Settle the sizes when all other hooks have been called: they may add and remove marks."""
    _note_use(config, items)
    yield
    _note_use(config, items)
    if _is_left_to_mpi_pytest(config):
        return
    every_world = config.getoption("world", False)
    if not (every_world or _has_sizes(items)):
        return
    from rankwise.pytest_plugin.marks import settle_size, skip_if_impossible

    available = _available(config)
    override = config.getoption("nprocs")
    pool = _WORKERS in config.stash
    for item in items:
        settle_size(item, override=override, available=available)
        skip_if_impossible(item, available, pool=pool, every_world=every_world)


def _has_sizes(items: list[pytest.Item]) -> bool:
    """Return whether a test has a mark of ours, or had one."""
    is_loaded = "rankwise.pytest_plugin.marks" in sys.modules
    return is_loaded or any(closest_mark(item) is not None for item in items)


class _SelectionBySize:
    """A second place in the order of hooks: after conftests, before pytest selects by marks.

    It is registered before conftests are: the last one comes first.
    """

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        if _is_left_to_mpi_pytest(config):
            return
        from rankwise.pytest_plugin.marks import mark_by_size, settle_size

        available = _available(config)
        for item in items:
            settle_size(item, override=config.getoption("nprocs"), available=available)
            mark_by_size(item, available)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    found = closest_mark(item)
    if found is not None and not _is_left_to_mpi_pytest(item.config):
        from rankwise.pytest_plugin.marks import refuse_if_late

        refuse_if_late(item, found)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Free the communicator of a test that ran without a world."""
    loaded = sys.modules.get("rankwise.pytest_plugin.communicators")
    if loaded is not None and not item.config.pluginmanager.has_plugin("rankwise-rank"):
        loaded.Communicators.of(item.config).close()
