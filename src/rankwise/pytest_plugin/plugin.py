"""The hooks of the plugin: which kind of process this is, and how many ranks its tests have.

PYTEST_DONT_REWRITE: without this word pytest warns that it cannot rewrite us (see the package).
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, NoReturn

import pytest
from _pytest.unittest import TestCaseFunction

# A plain pytest loads this module too, and each other module takes a third of a millisecond: what a
# plain pytest does not need is imported where it is used.
from rankwise.pytest_plugin.fixtures import comm, mpi_file_name, mpi_ranks, mpi_tmp_path, mpi_tmpdir
from rankwise.pytest_plugin.options import LATE_GC, MARKERS, STARTS_RANKS, add_options, closest_mark

if TYPE_CHECKING:
    from types import ModuleType

    from rankwise.launch.mpi import Place
    from rankwise.pytest_plugin.mpirun import MpirunLink

__all__ = ["comm", "mpi_file_name", "mpi_ranks", "mpi_tmp_path", "mpi_tmpdir"]

# The variable with all that a process needs to know to be a rank of a pool.
INVITATION = "RANKWISE_INVITATION"

# Rank 0 needs no longer than this to print an error.
_EXPLANATION_SECONDS = 1.0

# The names of the variables by which launchers tell a process its rank contain one of these.
_WORDS_OF_LAUNCHERS = ("RANK", "PROCID")

_WORLD: pytest.StashKey[MpirunLink] = pytest.StashKey()
_WORKERS = pytest.StashKey[int]()
_BEGUN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, None, None]:
    """Join the other ranks before any conftest is loaded.

    Then the other ranks learn of an error in a conftest. It is also before output is captured: the
    user sees what MPI prints when it cannot start.
    """
    # The timeline begins here, before any process is started.
    early_config.stash[_BEGUN] = time.time()
    if "parallel[" in (early_config.known_args_namespace.markexpr or ""):
        early_config.pluginmanager.register(_SelectionBySize(), "rankwise-selection")
    _start(early_config)
    try:
        yield
        if not {"--with-mpi", "--only-mpi"}.isdisjoint(args):
            from rankwise.pytest_plugin.interop import ActsAsPytestMpi

            ActsAsPytestMpi.add_to(early_config, parser)
    except BaseException as error:
        worker = early_config.pluginmanager.get_plugin("rankwise-world")
        if worker is not None and hasattr(worker, "refuse"):
            # This copy of the controller must not run the code that called pytest there.
            worker.refuse(str(error))
            os._exit(int(pytest.ExitCode.USAGE_ERROR))
        raise


def _mpi_pytest() -> ModuleType | None:
    """Return the module that handles mpi-pytest; None: that plugin is not loaded."""
    if "pytest_mpi.plugin" not in sys.modules:
        return None
    from rankwise.pytest_plugin import interop

    return interop


def _is_left_to_mpi_pytest(config: pytest.Config) -> bool:
    return (beside := _mpi_pytest()) is not None and beside.acts(config)


def _place() -> Place | None:
    """Return the rank that a launcher gave to this process; None: no launcher started it."""
    # Our own variables hold these words too, and are no sign of a launcher.
    names = [name for name in os.environ if not name.startswith("RANKWISE_")]
    if not any(word in name for name in names for word in _WORDS_OF_LAUNCHERS):
        return None
    from rankwise.launch.mpi import place_from_environment

    return place_from_environment()


def _start(early_config: pytest.Config) -> None:
    """Find out which kind of process this is, and begin as such.

    A rank of a pool, a child of mpi-pytest, a controller, a plain pytest or a rank under mpirun.
    """
    place, wanted, beside = _place(), _wants_workers(early_config), _mpi_pytest()
    known = early_config.known_args_namespace
    is_worker = INVITATION in os.environ
    if not is_worker and beside is not None and beside.has_started_us(early_config):
        return
    if wanted and not is_worker and place is not None and place.rank:
        # Rank 0 starts the workers, and MPI has not been started here.
        raise SystemExit(pytest.ExitCode.OK)
    is_alone = place is None or place.size == 1
    if beside is not None and (is_worker or wanted or not is_alone):
        beside.replace_in(early_config)
    if is_worker:
        _join_pool(early_config)
    elif wanted:
        _start_pool(early_config, place)
    elif known.tmux and known.n_workers is None and (place is None or not place.rank):
        raise pytest.UsageError("--tmux needs --n-workers: it shows the ranks that pytest starts")
    elif place is not None and not is_alone:
        _join_mpirun(early_config, place)
    elif (launch := sys.modules.get("rankwise.launch.mpi")) is not None:
        # An earlier run in this process may have been a controller.
        launch.forget_job_of_parent()
        launch.start_mpi_if_held_back()


def _join_mpirun(early_config: pytest.Config, place: Place) -> None:
    _postpone_garbage(early_config)
    from rankwise.errors import RankwiseError
    from rankwise.pytest_plugin.interop import settle
    from rankwise.pytest_plugin.mpirun import MpirunLink
    from rankwise.pytest_plugin.worker_session import MpirunSession, has_option

    try:
        scheduler = early_config.known_args_namespace.scheduler
        world = MpirunLink.join(place, scheduler, lambda: settle(early_config))
    except RankwiseError as error:
        refusal = _Refusal(place, str(error))
        if has_option(early_config) or _cannot_start_mpi():
            refusal.speak()
        early_config.pluginmanager.register(refusal, "rankwise-refusal")
        return
    early_config.stash[_WORLD] = world
    MpirunSession(early_config, world).add_to(early_config)


class _Refusal:
    """Refuses tests that ask for ranks, when the ranks cannot find each other."""

    def __init__(self, place: Place, reason: str) -> None:
        self._place = place
        self._reason = reason

    def pytest_runtestloop(self, session: pytest.Session) -> None:
        from rankwise.pytest_plugin.worker_session import is_used

        if is_used(session.config) and not session.config.option.collectonly:
            self.speak()

    def speak(self) -> NoReturn:
        """End this process; only rank 0 prints the reason."""
        if self._place.rank:
            # A launcher ends rank 0 when another rank has failed: that one waits for the message.
            time.sleep(_EXPLANATION_SECONDS)
            raise pytest.UsageError
        raise pytest.UsageError(self._reason)


def _cannot_start_mpi() -> bool:
    """Return whether mpi4py was loaded without starting MPI: then it never starts by itself."""
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and not module.Is_initialized()


def _postpone_garbage(early_config: pytest.Config) -> None:
    """Disable garbage collection until the first test.

    Nearly all objects that are made until then stay, so a search is a waste of time.
    """
    if gc.isenabled():
        gc.disable()
        early_config.add_cleanup(gc.enable)
        early_config.stash[LATE_GC] = True


def _wants_workers(early_config: pytest.Config) -> bool:
    known = early_config.known_args_namespace
    asked = known.n_workers is not None or known.scheduler in STARTS_RANKS
    # These run no tests.
    return asked and not (known.collectonly or known.help or known.version)


def _start_pool(early_config: pytest.Config, place: Place | None) -> None:
    if sys.platform != "linux":
        raise pytest.UsageError("--n-workers needs Linux; here, run mpirun -np N pytest")
    _postpone_garbage(early_config)
    from rankwise.pytest_plugin.workers.place import RunOptions, start_controller

    options = RunOptions(early_config, place=place)
    if options.slurm is not None and options.slurm.detaches:
        # The whole run is in the job: here it is only submitted.
        from rankwise.pytest_plugin.workers.slurm_allocation import DetachedRun

        early_config.pluginmanager.register(DetachedRun(early_config, options.slurm))
        return
    early_config.stash[_WORKERS] = options.width
    start_controller(early_config, options)


def _join_pool(early_config: pytest.Config) -> None:
    _postpone_garbage(early_config)
    from rankwise.pytest_plugin.connections import WORLD, Invitation
    from rankwise.pytest_plugin.workers.worker import PoolLink, PoolSession

    invitation = Invitation.from_environment()
    early_config.stash[_WORKERS] = invitation.width
    if invitation.is_distant and WORLD not in os.environ:
        from rankwise.pytest_plugin.workers.supervisor import supervise_node

        supervise_node(early_config, invitation)
        return
    link = PoolLink(invitation)
    link.join_world()
    PoolSession(early_config, link).add_to(early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    _prepare_communicators(config)
    if config.getoption("notebooks"):
        from rankwise.pytest_plugin.notebooks import register

        register(config)
    timeline = config.getoption("timeline", None)
    # Only one of many processes writes files.
    if timeline and not hasattr(config, "workerinput"):
        from rankwise.pytest_plugin.timeline import NAME, Timekeeper

        begun = config.stash.get(_BEGUN, None) or time.time()
        config.pluginmanager.register(Timekeeper(config, timeline, begun), NAME)


def _prepare_communicators(config: pytest.Config) -> None:
    """Make the communicators of a session with a world; others make them when a test asks."""
    world = config.stash.get(_WORLD, None)
    # Loaded: of an earlier run in this process, whose communicators must not be used. A controller
    # runs no tests.
    is_loaded = "rankwise.pytest_plugin.communicators" in sys.modules
    is_controller = config.pluginmanager.has_plugin("rankwise-controller")
    is_child = (beside := _mpi_pytest()) is not None and beside.has_started_us(config)
    if world is not None or is_child or (is_loaded and not is_controller):
        from rankwise.pytest_plugin.communicators import Communicators

        world_comm = None if world is None else world.comm
        config.stash[Communicators.KEY] = Communicators(world_comm, spans_world=is_child)


def _available(config: pytest.Config) -> int:
    """Return the number of ranks that this run has."""
    world = config.stash.get(_WORLD, None)
    return config.stash.get(_WORKERS, 1 if world is None else world.size)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    config = metafunc.config
    found = closest_mark(metafunc.definition)
    if found is None or _is_left_to_mpi_pytest(config):
        return
    from rankwise.pytest_plugin.marks import parametrize

    # The ids that the tests have with mpi-pytest.
    is_replaced = (beside := _mpi_pytest()) is not None and beside.is_replaced(config)
    label = "nprocs=" if is_replaced else ""
    parametrize(metafunc, found, config.getoption("nprocs"), _available(config), label)


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, TestCaseFunction) and hasattr(item.cls, "N_PROCS"):
        from rankwise.pytest_plugin.marks import read_class

        read_class(item)


def _note_use(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note whether tests use rankwise; it matters under mpirun, where the module is loaded."""
    if (usage := sys.modules.get("rankwise.pytest_plugin.worker_session")) is not None:
        usage.note_use(config, items)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Settle the sizes after all other hooks, which may add and remove marks."""
    _note_use(config, items)
    yield
    _note_use(config, items)
    if _is_left_to_mpi_pytest(config):
        return
    every_world = config.getoption("world", False)
    # Loaded: a test has a mark of ours, or had one when it was collected.
    is_loaded = "rankwise.pytest_plugin.marks" in sys.modules
    if not (every_world or is_loaded or any(map(closest_mark, items))):
        return
    from rankwise.pytest_plugin.marks import settle_size, skip_if_impossible

    available = _available(config)
    override = config.getoption("nprocs")
    pool = _WORKERS in config.stash
    for item in items:
        settle_size(item, override, available)
        skip_if_impossible(item, available, pool=pool, every_world=every_world)


class _SelectionBySize:
    """Adds the marks of sizes after the hooks of conftests, and before pytest selects by marks.

    Hooks are called in the reverse order of registration, and this is registered before conftests.
    """

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        if _is_left_to_mpi_pytest(config):
            return
        from rankwise.pytest_plugin.marks import mark_by_size, settle_size

        available = _available(config)
        for item in items:
            settle_size(item, config.getoption("nprocs"), available)
            mark_by_size(item, available)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if (marks := sys.modules.get("rankwise.pytest_plugin.marks")) is not None:
        marks.fail_if_impossible(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    found = closest_mark(item)
    if found is None:
        return
    from rankwise.pytest_plugin.marks import refuse_if_late, set_comm

    set_comm(item)
    if not _is_left_to_mpi_pytest(item.config):
        refuse_if_late(item, found)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Free the communicator of a test that ran without a world."""
    loaded = sys.modules.get("rankwise.pytest_plugin.communicators")
    if loaded is not None and not item.config.pluginmanager.has_plugin("rankwise-rank"):
        loaded.Communicators.of(item.config).close()
