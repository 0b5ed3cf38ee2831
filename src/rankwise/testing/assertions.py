"""Assertions that all ranks of a test make together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rankwise.testing.communicators import Communicators

if TYPE_CHECKING:
    from mpi4py import MPI


def parallel_assert(
    assertion: bool | Callable[[], bool],
    msg: str = "",
    *,
    participating: bool = True,
    comm: MPI.Intracomm | None = None,
) -> None:
    """Assert on every rank of `comm` (of the running test by default) what must hold on each.

    Collective: if it fails on one rank it fails on all, so that none is left waiting in the next
    collective call. A rank that is not `participating` only listens.
    """
    __tracebackhide__ = True
    # mpi-pytest takes functions too; a function that is not called would always be true.
    holds = not participating or bool(assertion() if callable(assertion) else assertion)
    results = (comm or _comm_of_test()).allgather(holds)
    failing = [rank for rank, fine in enumerate(results) if not fine]
    if failing:
        where = ", ".join(str(rank) for rank in failing)
        raise AssertionError(f"failed on rank{'s' * (len(failing) > 1)} {where}. {msg}".strip())


def _comm_of_test() -> MPI.Intracomm:
    if Communicators.latest is not None:
        return Communicators.latest.for_test()
    from mpi4py import MPI

    return MPI.COMM_WORLD
