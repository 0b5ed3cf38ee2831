"""Assertions that all ranks make together."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise import parallel_assert


class Null:
    """Is false, as MPI.COMM_NULL is, and refuses every operation."""

    def __bool__(self) -> bool:
        return False

    def allgather(self, value: object) -> list[object]:
        raise RuntimeError(f"{value} on a null communicator")


def test_a_null_communicator_is_not_replaced_by_that_of_the_test() -> None:
    null: Any = Null()
    with pytest.raises(RuntimeError, match="True on a null communicator"):
        parallel_assert(True, comm=null)
