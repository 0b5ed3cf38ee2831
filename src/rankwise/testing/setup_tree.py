"""Fixtures of several modules alive at once, each set up once on a rank.

pytest keeps one stack of collectors that are set up: to run a test of another module it tears the
present one down. A scheduler that moves between modules would set a module's fixtures up again and
again. This tree keeps them until it is told that no more tests of that collector will come.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from _pytest.fixtures import FixtureDef
from _pytest.outcomes import OutcomeException
from _pytest.runner import SetupState

if TYPE_CHECKING:
    import pytest
    from _pytest.fixtures import SubRequest
    from _pytest.nodes import Node

# What a fixture may raise: pytest's own skip and fail are not `Exception`s.
_OUTCOMES = (Exception, OutcomeException)


class SetupTree(SetupState):
    """Takes the place of a session's stack while a rank runs what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        _keep_fixtures_apart()
        self.closing: set[Node] = set()
        """Collectors that end with the test that is running."""

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
        """Tear down tests that have run and collectors that end with them; None: everything."""
        if nextitem is None:
            self.tear_down(list(self.stack))
        else:
            self.tear_down([node for node in self.stack if self._is_over(node)])

    def _is_over(self, node: Node) -> bool:
        return not hasattr(node, "collect") or node in self.closing

    def tear_down(self, nodes: Collection[Node]) -> None:
        """Tear these nodes down, the newest first.

        Raises what their finalizers raised, together, after all of them have run.
        """
        errors: list[BaseException] = []
        for node in [node for node in reversed(self.stack) if node in nodes]:
            finalizers, _ = self.stack.pop(node)
            while finalizers:
                try:
                    finalizers.pop()()
                except _OUTCOMES as error:
                    errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise BaseExceptionGroup("errors during test teardown", errors)


_SHARED_SCOPES = ("class", "module", "package")


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
        """Give those of a fixture, which keeps them."""
        values: _Values = definition.__dict__.get("_rankwise_values") or cls(definition)
        definition.__dict__["_rankwise_values"] = values
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


def _keep_fixtures_apart() -> None:
    """Let fixtures have a value for each module or class at once, also if these share them."""
    execute, finish = FixtureDef.execute, FixtureDef.finish
    if execute.__module__ == __name__:
        return

    def execute_apart(self: FixtureDef[Any], request: SubRequest) -> Any:
        if self.scope in _SHARED_SCOPES:
            _Values.of(self).turn_to(request.node)
        return execute(self, request)

    def finish_apart(self: FixtureDef[Any], request: SubRequest) -> None:
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
