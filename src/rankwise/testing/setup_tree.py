"""Fixtures of several modules alive at once, each set up once on a rank.

pytest keeps one stack of collectors that are set up: to run a test of another module it tears the
present one down. A scheduler that moves between modules would set a module's fixtures up again and
again. This tree keeps them until it is told that no more tests of that collector will come.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from _pytest.outcomes import OutcomeException
from _pytest.runner import SetupState

if TYPE_CHECKING:
    import pytest
    from _pytest.nodes import Node

# What a fixture may raise: pytest's own skip and fail are not `Exception`s.
_OUTCOMES = (Exception, OutcomeException)


class SetupTree(SetupState):
    """Takes the place of a session's stack while a rank runs what it is told to."""

    def __init__(self) -> None:
        super().__init__()
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
