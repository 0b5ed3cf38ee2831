"""What a test leaves behind: messages nobody has received, communicators, error handlers.

What can harm the next test is put right in any case; with `--leak-check` the test is told.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from rankwise.launch.mpi import load_mpi
from rankwise.testing.communicators import Communicators

_MAKERS = (
    *("Clone", "Dup", "Dup_with_info", "Split", "Split_type", "Create", "Create_group"),
    *("Create_cart", "Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent"),
)
_SHOWN_MESSAGES = 5


class Ledger:
    """Communicators that were made and may have to be freed."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Any]] = []

    def track(self, communicator: Any) -> Any:
        """Give the same communicator as one that notes which others are made of it."""
        return _tracking_class()(communicator, self)

    def take(self) -> list[str]:
        """Give how those that are still there were made, and forget them."""
        left = [how for how, communicator in self.made if communicator]
        self.made.clear()
        return left


_CLASS: list[Any] = []


def _tracking_class() -> Any:
    if not _CLASS:
        base = load_mpi().Intracomm

        class Tracking(base):  # type: ignore[misc, valid-type]
            """Notes what is made of it."""

            def __new__(cls, communicator: Any, ledger: Ledger) -> Any:
                made = super().__new__(cls, communicator)
                made._ledger = ledger
                return made

        for name in _MAKERS:
            if hasattr(base, name):
                setattr(Tracking, name, _noting(name, getattr(base, name), base))
        _CLASS.append(Tracking)
    return _CLASS[0]


def _noting(name: str, make: Any, base: Any) -> Any:
    def noting(self: Any, *arguments: Any, **options: Any) -> Any:
        made = make(base(self), *arguments, **options)
        self._ledger.made.append((name, made))
        return made

    return noting


class LeakCheck:
    """Fails tests that leave something behind; registered as a plugin."""

    def __init__(self, communicators: Communicators) -> None:
        self._communicators = communicators
        self._ledger = Ledger()
        communicators.track = self._ledger.track
        mpi = load_mpi()
        self._mpi = mpi
        self._world = mpi.COMM_WORLD
        mpi.COMM_WORLD = self._ledger.track(self._world)  # type: ignore[attr-defined]

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        result = yield
        found = [f"a communicator from {how}, never freed" for how in self._ledger.take()]
        found += self._communicators.changed_handlers()
        # What the others have sent has arrived when they are here.
        self._communicators.meet()
        current = self._communicators.current
        for name, one in (("comm", current), ("MPI.COMM_WORLD", self._world)):
            if one:
                found += self._messages(name, one)
        if found:
            pytest.fail("the test leaves behind: " + "; ".join(found), pytrace=False)
        return result

    def _messages(self, name: str, communicator: Any) -> list[str]:
        found = []
        status = self._mpi.Status()
        while (message := communicator.Improbe(status=status)) is not None:
            self._communicators.unwanted.append(message)
            found.append(
                f"a message from rank {status.Get_source()} with tag {status.Get_tag()} on {name}, "
                f"never received"
            )
        if len(found) > _SHOWN_MESSAGES:
            found[_SHOWN_MESSAGES:] = [f"{len(found) - _SHOWN_MESSAGES} more messages on {name}"]
        return found
