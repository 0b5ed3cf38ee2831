"""Fixtures that are set up on a rank, and what tests leave behind: MPI objects and processes."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from _pytest.fixtures import FixtureDef
from _pytest.outcomes import Exit, OutcomeException, fail
from _pytest.runner import SetupState as PytestsState

from rankwise.launch.mpi import load_mpi
from rankwise.pytest_plugin.communicators import Communicators, take_message
from rankwise.pytest_plugin.marks import limit_of
from rankwise.pytest_plugin.options import limit_from
from rankwise.pytest_plugin.rank_status import Hopeless, SetupState, how_aborted

if TYPE_CHECKING:
    from _pytest.fixtures import SubRequest
    from _pytest.nodes import Node

# Own references: a test may have replaced these functions, and they are called in its middle.
_fstat, _write, _exit = os.fstat, os.write, os._exit
_pread: Any = getattr(os, "pread", None)  # For a pool: Windows has neither.

_TAIL_BYTES = 1 << 16
# mpiexec ends the ranks sooner. If not, an MPI program that the test has started has printed that.
_ABORT_SECONDS = 3.0
# EX_SOFTWARE of sysexits.h
_CHILD_RETURNED = 70


def end_forked_child(test: str) -> NoReturn:
    """End a process that a test has forked and that has returned from the test.

    Otherwise it would report in the name of the rank of which it is a copy.
    """
    error = sys.exception()
    code = _CHILD_RETURNED
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        words = f"rankwise: a forked child of {test} came back out of the test and was ended\n"
        if error is not None:
            words += "".join(traceback.format_exception(error))
        _write(2, words.encode(errors="replace"))
    # The system keeps one byte of an exit code.
    _exit(code & 0xFF)


def has_aborted(stderr: int) -> bool:
    """Return whether MPI has written to this file that MPI_Abort was called."""
    size = _fstat(stderr).st_size
    if not size:
        return False
    # MPI writes it last, and a test may have written megabytes.
    tail = _pread(stderr, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    return bool(how_aborted(tail.decode(errors="replace")))


def await_end() -> None:
    """Wait to be ended, after a call of MPI_Abort that has returned.

    With MPICH it returns some milliseconds before mpiexec ends the ranks: by then the test could
    have passed.
    """
    deadline = monotonic() + _ABORT_SECONDS
    while monotonic() < deadline:
        sleep(0.05)


# These fixtures, and the values of `parametrize`, are known to succeed or fail on all ranks alike.
_FIXTURES = frozenset(("comm", "mpi_ranks", "request", "event_loop_policy"))
_FIXTURES_OF = frozenset(("_pytest", "rankwise", "pytest_asyncio"))
_MARKS = frozenset(("parallel", "mpi", "parallel_from_context", "parametrize"))
# Plugins whose hooks before a test do the same on all ranks.
_HOOKS_OF = frozenset(("_pytest", "rankwise", "pytest_randomly"))


def has_plain_setup(item: pytest.Item) -> bool:
    """Return whether no code of the user runs before the test, and nothing can skip it.

    Then the ranks need not agree that all of them are ready. Most small tests are like this, and
    to wait for each other would take a good part of their time.
    """
    return (
        type(item) is pytest.Function
        and all(mark.name in _MARKS for mark in item.iter_markers())
        and all(_is_plain_fixture(item, name) for name in item.fixturenames)
        and all(
            hook.function.__module__.partition(".")[0] in _HOOKS_OF
            for hook in item.ihook.pytest_runtest_setup.get_hookimpls()
        )
    )


def _is_plain_fixture(item: pytest.Function, name: str) -> bool:
    definitions = item._fixtureinfo.name2fixturedefs.get(name, ())
    modules = {definition.func.__module__.partition(".")[0] for definition in definitions}
    if name in _FIXTURES:
        return modules <= _FIXTURES_OF
    # `parametrize` uses a fixture of pytest. So do `setup_method` and others, which call functions
    # of the user, but these are no parameters.
    callspec = getattr(item, "callspec", None)
    return callspec is not None and name in callspec.params and modules == {"_pytest"}


_MAKERS = (
    *("Clone", "Dup", "Dup_with_info", "Split", "Split_type", "Create", "Create_group"),
    *("Create_cart", "Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent"),
)
_SHOWN_MESSAGES = 5


class CommTracker:
    """The communicators that tests make and may have to free."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Any]] = []

    def track(self, communicator: Any) -> Any:
        """Return the same communicator as an object that notes which others are made of it."""
        tracked = _tracking_class()(communicator)
        tracked._tracker = self
        return tracked

    def take(self) -> list[str]:
        """Return how those that were not freed were made, and forget them."""
        left = [how for how, communicator in self.made if communicator]
        self.made.clear()
        return left


@cache
def _tracking_class() -> Any:
    base = load_mpi().Intracomm

    def noting(name: str) -> Any:
        def make(self: Any, *arguments: Any, **options: Any) -> Any:
            # By the plain class: through `self`, the call would come back here.
            made = getattr(base(self), name)(*arguments, **options)
            self._tracker.made.append((name, made))
            return made

        return make

    # MPIs differ in what they have.
    makers = {name: noting(name) for name in _MAKERS if hasattr(base, name)}
    return type("Tracking", (base,), makers)


class LeakCheck:
    """Fails tests that leave something behind: the plugin of --leak-check."""

    def __init__(self, communicators: Communicators) -> None:
        self._communicators = communicators
        self._tracker = CommTracker()
        communicators.track = self._tracker.track
        self._mpi = mpi = load_mpi()
        self._world = mpi.COMM_WORLD
        mpi.COMM_WORLD = self._tracker.track(self._world)  # type: ignore[attr-defined]
        communicators.add_world(mpi.COMM_WORLD)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        try:
            result = yield
        except BaseException:
            # The test has failed: what it has left must not fail the next one.
            self._tracker.take()
            raise
        found = [f"a communicator from {how}, never freed" for how in self._tracker.take()]
        found += self._communicators.changed_handlers()
        # When all ranks are here, what they have sent has arrived.
        self._communicators.meet()
        if current := self._communicators.current:
            found += self._messages("comm", current)
        if self._communicators.world_exists:
            found += self._messages("MPI.COMM_WORLD", self._world)
        if found:
            pytest.fail("the test leaves behind: " + "; ".join(found), pytrace=False)
        return result

    def _messages(self, name: str, communicator: Any) -> list[str]:
        found = []
        status = self._mpi.Status()
        while (message := take_message(communicator, status)) is not None:
            self._communicators.leftovers.unwanted.append(message)
            found.append(
                f"a message from rank {status.Get_source()} with tag {status.Get_tag()} on {name}, "
                f"never received"
            )
        if len(found) > _SHOWN_MESSAGES:
            # A test that leaves thousands of messages has one defect, not thousands.
            found[_SHOWN_MESSAGES:] = [f"{len(found) - _SHOWN_MESSAGES} more messages on {name}"]
        return found


# What a fixture may raise: those of pytest's skip and fail are not `Exception`s.
_OUTCOMES = (Exception, OutcomeException)
_ENDS = (KeyboardInterrupt, Exit)


class SetupTree(PytestsState):
    """Takes the place of pytest's own on a rank: the dispatcher decides which test is next."""

    def __init__(self) -> None:
        super().__init__()
        _keep_fixtures_apart()
        self.closing: set[Node] = set()
        """Collectors that end with the test that is running."""
        self.is_running = False  # a test
        self.hopeless: Mapping[str, Hopeless] = {}
        """Fixtures of a wide scope that took too long elsewhere: the seconds, and the reason."""
        self.on_setup: Callable[[str, str, SetupState], None] | None = None
        """Called when the setup of a fixture of a wide scope begins and ends: key, words, state."""

    def setup(self, item: pytest.Item) -> None:
        """Set up the collectors of an item that are not set up yet."""
        # As in pytest, but without its check that only the chain to this item is set up.
        for collector in item.listchain():
            if collector in self.stack:
                error = self.stack[collector][1]
                if error is not None:
                    raise error[0].with_traceback(error[1])
                continue
            self.stack[collector] = ([collector.teardown], None)
            try:
                collector.setup()
            except _OUTCOMES as error:
                self.stack[collector] = (self.stack[collector][0], (error, error.__traceback__))
                raise

    def teardown_exact(self, nextitem: pytest.Item | None) -> None:
        """Tear down tests that have run and collectors that end with them.

        Fixtures of the session stay even after the last test (None): other ranks may have to take
        part in their end. After the run (None too), everything is torn down.
        """
        if nextitem is None and not self.is_running:
            self.tear_down(list(self.stack))
        else:
            self.tear_down([node for node in self.stack if self._is_over(node)])

    def _is_over(self, node: Node) -> bool:
        return not hasattr(node, "collect") or node in self.closing

    def tear_down(self, nodes: Collection[Node]) -> None:
        """Tear these nodes down, the newest first.

        All finalizers run, whatever they raise. Afterwards raises what ends the whole run, if that
        was among it, else everything together.
        """
        errors: list[BaseException] = []
        for node in [node for node in reversed(self.stack) if node in nodes]:
            finalizers, _ = self.stack.pop(node)
            while finalizers:
                try:
                    finalizers.pop()()
                except BaseException as error:
                    errors.append(error)
        for end in errors:
            if isinstance(end, _ENDS):
                raise end
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise BaseExceptionGroup("errors during test teardown", errors)


# Fixtures of these scopes have a value for each collector; those of the session have one.
_SHARED_SCOPES = ("class", "module", "package")
_WIDE_SCOPES = ("module", "package", "session")


@contextmanager
def _announced(definition: FixtureDef[Any], request: SubRequest) -> Iterator[None]:
    """Report the setup of a fixture of a wide scope; fail if it is known to take too long."""
    tree = request.session._setupstate
    is_wide = definition.scope in _WIDE_SCOPES and definition.cached_result is None
    if not is_wide or not isinstance(tree, SetupTree) or tree.on_setup is None:
        yield
        return
    # Each value of a parameter is set up by itself, for each module or package.
    place = f"{request.node.nodeid}[{getattr(request, 'param_index', 0)}]"
    key = f"{definition.baseid}::{definition.argname}@{place}"
    too_short, why = tree.hopeless.get(key, (0.0, ""))
    # It is tried again if this test has more time than it took elsewhere.
    if 0.0 < limit_of(request._pyfuncitem, limit_from(request.config)) <= too_short:
        fail(why, pytrace=False)
    # Fixtures may be decorated, or be objects without code.
    code = getattr(inspect.unwrap(definition.func), "__code__", None)
    where = f", {code.co_filename}:{code.co_firstlineno}" if code is not None else ""
    words = f"the fixture `{definition.argname}` ({definition.scope} scope{where})"
    tree.on_setup(key, words, "begins")
    state: SetupState = "failed"
    try:
        yield
        state = "done"
    finally:
        tree.on_setup(key, words, state)


class _Values:
    """The values of one fixture, by the collector that each belongs to.

    A fixture of pytest has one value, and pytest runs one module after the other. Here modules may
    overlap: one would get the value of another, and lose it when the other ends. So the right value
    is restored before the fixture is used or torn down.
    """

    def __init__(self, definition: FixtureDef[Any]) -> None:
        self._definition = definition
        self.ranks: dict[Node, tuple[int, ...]] = {}
        """The ranks of MPI.COMM_WORLD when the fixture was set up, by the collector."""
        self._absent: dict[Node | None, tuple[Any, list[Any]]] = {}
        self.present: Node | None = None

    @classmethod
    def of(cls, definition: FixtureDef[Any]) -> _Values:
        """Return the values of a fixture, which are an attribute of it."""
        values: _Values = definition.__dict__.setdefault("_rankwise_values", cls(definition))
        return values

    def turn_to(self, node: Node | None) -> None:
        """Set the value of the fixture to the one that belongs to a collector."""
        if node is self.present:
            return
        definition = self._definition
        if definition.cached_result is not None or definition._finalizers:
            self._absent[self.present] = definition.cached_result, definition._finalizers[:]
        definition.cached_result, definition._finalizers[:] = self._absent.pop(node, (None, []))
        self.present = node


def _as_at_setup(definition: FixtureDef[Any], node: Node) -> AbstractContextManager[None]:
    """Let MPI.COMM_WORLD have the ranks that it had when a fixture was set up."""
    ranks = _Values.of(definition).ranks.get(node)
    latest = Communicators.latest
    return nullcontext() if ranks is None or latest is None else latest.as_with(ranks)


def _keep_fixtures_apart() -> None:
    """Let fixtures have a value for each module or class at the same time."""
    execute, finish = FixtureDef.execute, FixtureDef.finish
    if execute.__module__ == __name__:
        return

    def execute_apart(self: FixtureDef[Any], request: SubRequest) -> Any:
        if self.scope == "function":
            return execute(self, request)
        if self.scope in _SHARED_SCOPES:
            _Values.of(self).turn_to(request.node)
        before = self.cached_result
        try:
            with _announced(self, request):
                return execute(self, request)
        finally:
            if self.cached_result is not before:
                ranks = getattr(Communicators.latest, "ranks", ())
                _Values.of(self).ranks[request.node] = ranks

    def finish_apart(self: FixtureDef[Any], request: SubRequest) -> None:
        if self.scope == "function":
            return finish(self, request)
        with _as_at_setup(self, request.node):
            if self.scope not in _SHARED_SCOPES:
                return finish(self, request)
            values = _Values.of(self)
            before = values.present
            values.turn_to(request.node)
            try:
                finish(self, request)
            finally:
                values.turn_to(before)

    # pytest has no hook around the two methods.
    FixtureDef.execute = execute_apart  # type: ignore[method-assign]
    FixtureDef.finish = finish_apart  # type: ignore[method-assign]
