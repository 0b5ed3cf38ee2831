"""What tests have set up on their rank, and what they leave behind: of MPI, and processes."""

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
from rankwise.pytest_plugin.rank_status import Hopeless, SetupState

if TYPE_CHECKING:
    from _pytest.fixtures import SubRequest
    from _pytest.nodes import Node

# Own references: a test may have put something else in their place, and this runs in its middle.
_fstat, _pread, _write, _exit = os.fstat, os.pread, os.write, os._exit

# What MPICH, and MPIs that are made of it, print before they have mpiexec end all ranks.
_ABORTS = (b"application called MPI_Abort(", b"Abort(")
_TAIL_BYTES = 1 << 16
# mpiexec ends the ranks within a fraction of this; a test's own MPI program may have printed it.
_ABORT_SECONDS = 3.0
# EX_SOFTWARE of sysexits.h
_CAME_BACK = 70


def end_forked_child(test: str) -> NoReturn:
    """End a process that a test has forked and that has come back out of the test.

    It would report in the name of the rank that it is a copy of. The verdict is that one's.
    """
    error = sys.exception()
    code = _CAME_BACK
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        words = f"rankwise: a forked child of {test} came back out of the test and was ended\n"
        if error is not None:
            words += "".join(traceback.format_exception(error))
        _write(2, words.encode(errors="replace"))
    _exit(code & 0xFF)


def has_aborted(stderr: int) -> bool:
    """Return whether MPI has said in this file that it was asked to end all ranks."""
    size = _fstat(stderr).st_size
    if not size:
        return False
    tail = _pread(stderr, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    return any(line.startswith(_ABORTS) for line in tail.splitlines())


def await_end() -> None:
    """Wait to be ended, after a call of MPI_Abort that has returned.

    With MPICH it does, some milliseconds before mpiexec ends the ranks: a test that goes on would
    be over by then, and have passed.
    """
    deadline = monotonic() + _ABORT_SECONDS
    while monotonic() < deadline:
        sleep(0.05)


# Nothing but these, and the values of `parametrize`, is known to be the same on every rank.
_FIXTURES = frozenset(("comm", "mpi_ranks", "request", "event_loop_policy"))
_FIXTURES_OF = frozenset(("_pytest", "rankwise", "pytest_asyncio"))
_MARKS = frozenset(("parallel", "mpi", "parallel_from_context", "parametrize"))
# What these do before a test, they do alike on all ranks.
_HOOKS_OF = frozenset(("_pytest", "rankwise", "pytest_randomly"))


def has_plain_setup(item: pytest.Item) -> bool:
    """Return whether nothing of the user's runs, and nothing can be skipped, before the test.

    Then the ranks need not agree that all of them are ready: most small tests are like this, and
    to wait for each other would be a good part of their time.
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
    # `parametrize` gives a value through a fixture of pytest's own. So do `setup_method` and its
    # like, which call the user's functions, but these are no parameters.
    callspec = getattr(item, "callspec", None)
    return callspec is not None and name in callspec.params and modules == {"_pytest"}


_MAKERS = (
    *("Clone", "Dup", "Dup_with_info", "Split", "Split_type", "Create", "Create_group"),
    *("Create_cart", "Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent"),
)
_SHOWN_MESSAGES = 5


class CommTracker:
    """Communicators that were made and may have to be freed."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Any]] = []

    def track(self, communicator: Any) -> Any:
        """Return the same communicator as one that notes which others are made of it."""
        return _tracking_class()(communicator, self)

    def take(self) -> list[str]:
        """Return how those that are still there were made, and forget them."""
        left = [how for how, communicator in self.made if communicator]
        self.made.clear()
        return left


@cache
def _tracking_class() -> Any:
    base = load_mpi().Intracomm

    class Tracking(base):  # type: ignore[misc, valid-type]
        """Notes what is made of it."""

        def __new__(cls, communicator: Any, tracker: CommTracker) -> Any:
            made = super().__new__(cls, communicator)
            made._tracker = tracker
            return made

    for name in _MAKERS:
        if hasattr(base, name):
            setattr(Tracking, name, _noting(name, getattr(base, name), base))
    return Tracking


def _noting(name: str, make: Any, base: Any) -> Any:
    def noting(self: Any, *arguments: Any, **options: Any) -> Any:
        made = make(base(self), *arguments, **options)
        self._tracker.made.append((name, made))
        return made

    return noting


class LeakCheck:
    """Fails tests that leave something behind; registered as a plugin."""

    def __init__(self, communicators: Communicators) -> None:
        self._communicators = communicators
        self._tracker = CommTracker()
        communicators.track = self._tracker.track
        mpi = load_mpi()
        self._mpi = mpi
        self._world = mpi.COMM_WORLD
        mpi.COMM_WORLD = self._tracker.track(self._world)  # type: ignore[attr-defined]
        communicators.add_world(mpi.COMM_WORLD)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        try:
            result = yield
        except BaseException:
            # The test has failed; what it has left is not for the next one to answer for.
            self._tracker.take()
            raise
        found = [f"a communicator from {how}, never freed" for how in self._tracker.take()]
        found += self._communicators.changed_handlers()
        # What the others have sent has arrived when they are here.
        self._communicators.meet()
        current = self._communicators.current
        world = self._world if self._communicators.world_exists else None
        for name, one in (("comm", current), ("MPI.COMM_WORLD", world)):
            if one:
                found += self._messages(name, one)
        if found:
            pytest.fail("the test leaves behind: " + "; ".join(found), pytrace=False)
        return result

    def _messages(self, name: str, communicator: Any) -> list[str]:
        found = []
        status = self._mpi.Status()
        while (message := take_message(communicator, status)) is not None:
            self._communicators.remains.unwanted.append(message)
            found.append(
                f"a message from rank {status.Get_source()} with tag {status.Get_tag()} on {name}, "
                f"never received"
            )
        if len(found) > _SHOWN_MESSAGES:
            found[_SHOWN_MESSAGES:] = [f"{len(found) - _SHOWN_MESSAGES} more messages on {name}"]
        return found


# What a fixture may raise: pytest's own skip and fail are not `Exception`s.
_OUTCOMES = (Exception, OutcomeException)
_ENDS = (KeyboardInterrupt, Exit)


class SetupTree(PytestsState):
    """Takes the place of a session's stack while a rank runs what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        _keep_fixtures_apart()
        self.closing: set[Node] = set()
        """Collectors that end with the test that is running."""
        self.is_running = False
        """Whether a test is."""
        self.hopeless: Mapping[str, Hopeless] = {}
        """Fixtures of a wide scope that are not to be set up within so long, and why."""
        self.on_setup: Callable[[str, str, SetupState], None] | None = None
        """Told of fixtures of a wide scope as they are set up: which, in words, and how it is."""

    def setup(self, item: pytest.Item) -> None:
        """Set up what the chain to the item still lacks."""
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

        What belongs to the session stays also after the last test (None): other ranks may have to
        take part in its end. After the run (None too), everything is torn down.
        """
        if nextitem is None and not self.is_running:
            self.tear_down(list(self.stack))
        else:
            self.tear_down([node for node in self.stack if self._is_over(node)])

    def _is_over(self, node: Node) -> bool:
        return not hasattr(node, "collect") or node in self.closing

    def tear_down(self, nodes: Collection[Node]) -> None:
        """Tear these nodes down, the newest first.

        Raises what their finalizers raised, together, after all of them have run; what ends the
        whole run comes before the rest. Whatever it is, nothing is left for the next test to find.
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


_SHARED_SCOPES = ("class", "module", "package")
_WIDE_SCOPES = ("module", "package", "session")


@contextmanager
def _announced(definition: FixtureDef[Any], request: SubRequest) -> Iterator[None]:
    """Say that a fixture of a wide scope is being set up, if it is; fail if that is hopeless."""
    tree = request.session._setupstate
    is_wide = definition.scope in _WIDE_SCOPES and definition.cached_result is None
    if not is_wide or not isinstance(tree, SetupTree) or tree.on_setup is None:
        yield
        return
    # Each value of its parameters is set up by itself, for each module or package.
    place = f"{request.node.nodeid}[{getattr(request, 'param_index', 0)}]"
    key = f"{definition.baseid}::{definition.argname}@{place}"
    too_short, why = tree.hopeless.get(key, (0.0, ""))
    if 0.0 < limit_of(request._pyfuncitem, limit_from(request.config)) <= too_short:
        fail(why, pytrace=False)
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

    A fixture of pytest has one value. One that is defined in a conftest would give a module the
    value that another module has set up, and take it away when that other module is over. So the
    right value is put in its place whenever the fixture is asked for its value or torn down.
    """

    def __init__(self, definition: FixtureDef[Any]) -> None:
        self._definition = definition
        self._absent: dict[Node | None, tuple[Any, list[Any]]] = {}
        self.present: Node | None = None

    @classmethod
    def of(cls, definition: FixtureDef[Any]) -> _Values:
        """Return those of a fixture, which keeps them."""
        values: _Values = definition.__dict__.setdefault("_rankwise_values", cls(definition))
        return values

    def turn_to(self, node: Node | None) -> None:
        """Make the value that belongs to a collector the one that the fixture has."""
        if node is self.present:
            return
        definition = self._definition
        if definition.cached_result is not None or definition._finalizers:
            self._absent[self.present] = definition.cached_result, definition._finalizers[:]
        definition.cached_result, definition._finalizers[:] = self._absent.pop(node, (None, []))
        self.present = node


# A fixture that outlives a test has the same MPI.COMM_WORLD at its end as at its beginning.


def _ranks_at_setup(definition: FixtureDef[Any]) -> dict[Node, tuple[int, ...]]:
    """Return the ranks that MPI.COMM_WORLD had when a fixture was set up, by its collector."""
    ranks: dict[Node, tuple[int, ...]] = definition.__dict__.setdefault("_rankwise_ranks", {})
    return ranks


def _as_at_setup(definition: FixtureDef[Any], node: Node) -> AbstractContextManager[None]:
    ranks = _ranks_at_setup(definition).get(node)
    if ranks is None or Communicators.latest is None:
        return nullcontext()
    return Communicators.latest.as_with(ranks)


def _keep_fixtures_apart() -> None:
    """Let fixtures have a value for each module or class at once, also if these share them."""
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
                _ranks_at_setup(self)[request.node] = ranks

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

    # pytest has no hook around the two, and its versions list fixtures in different places.
    FixtureDef.execute = execute_apart  # type: ignore[method-assign]
    FixtureDef.finish = finish_apart  # type: ignore[method-assign]
