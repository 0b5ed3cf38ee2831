"""What a policy is told and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

Venue = Literal["shared", "exact", "fresh"]
"""Where a test runs: on some ranks of a world that others share, in a world of exactly its size
that others have used before, or in one made for it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A test as a policy sees it: how many ranks, and how long it took last time if known."""

    index: int
    size: int
    seconds: float | None = None
    venue: Venue = "shared"
    exclusive: bool = False
    """Whether nothing else may run in the NUMA domains it runs in."""
    ranks: int | None = None
    """How many processes it has, if not one for each seat."""

    def goes_with(self, first: Case) -> bool:
        """Tell whether it can run on the ranks that another one was given, after it."""
        if self.venue == "fresh" or self.exclusive or first.exclusive:
            return False
        return (self.size, self.venue, self.ranks) == (first.size, first.venue, first.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Tests to run one after the other on the same ranks.

    Several short tests travel together so that a rank need not ask after each of them.
    """

    cases: tuple[int, ...]
    ranks: tuple[int, ...]


class Policy(Protocol):
    """Decides what starts now. All ranks count as busy until they are first released."""

    one_by_one: ClassVar[bool]
    """Whether a test's ranks are released together, when all of them have ended it."""

    def release(self, ranks: tuple[int, ...]) -> None:
        """Learn that these ranks are free (again)."""

    def put_back(self, case: int) -> None:
        """Learn that a test that was taken could not be run to its end: it is to start again."""

    def take(self) -> Assignment | None:
        """Give what can start now and count its ranks as busy; None: wait for a release."""
