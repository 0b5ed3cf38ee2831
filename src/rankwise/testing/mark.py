"""`mark.parallel` and its relatives: how many ranks a test asks for."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from _pytest.nodes import Node

# What mpi-pytest gives to a bare `@pytest.mark.parallel`.
_BARE_PARALLEL_SIZE = 3

MARKERS = (
    "parallel(n): run the test on n ranks, or once on each number of ranks of a list",
    "parallel_from_context: run the test on as many ranks as the run has",
    "mpi(ranks): the same as parallel(ranks); without `ranks`, as parallel_from_context",
)


class MarkNamespace:
    """The marks by attribute, so that editors complete them."""

    @staticmethod
    def parallel(n_procs: int | Sequence[int]) -> pytest.MarkDecorator:
        """Run a test on `n_procs` ranks, or once on each number of ranks of a list."""
        return pytest.mark.parallel(n_procs)

    @property
    def parallel_from_context(self) -> pytest.MarkDecorator:
        """Run a test on as many ranks as the run has."""
        return pytest.mark.parallel_from_context


mark = MarkNamespace()


class BadMark(Exception):
    """A mark that asks for something that cannot be; the message says what."""


# A plain pytest loads this module too, and a dataclass takes ten times as long to define.
class SizeRequest(NamedTuple):
    """What a test's mark says about its ranks."""

    sizes: tuple[int, ...] = ()
    from_context: bool = False
    is_list: bool = False
    """Whether the sizes came as a list: then the test's id shows its size."""


def read_marks(node: Node) -> SizeRequest | None:
    """Find what the closest mark on a test (function, class or module) asks for; None: nothing.

    Raises BadMark.
    """
    for found in node.iter_markers():
        match found.name:
            case "parallel":
                return _read_parallel(found)
            case "mpi":
                return _read_mpi(found)
            case "parallel_from_context":
                _refuse_unknown(found, ())
                return SizeRequest(from_context=True)
    return None


def _read_parallel(found: pytest.Mark) -> SizeRequest:
    _refuse_unknown(found, ("n_procs", "nprocs"), positional=1)
    values = [*found.args, *found.kwargs.values()]
    if len(values) > 1:
        raise BadMark(f"{_show(found)} gives the number of ranks more than once")
    return _read_sizes(found, values[0] if values else _BARE_PARALLEL_SIZE)


def _read_mpi(found: pytest.Mark) -> SizeRequest:
    # Time limits and threads are accepted so that suites of pytest-isolate-mpi are read.
    _refuse_unknown(found, ("ranks", "timeout", "unit", "threads"))
    if "ranks" not in found.kwargs:
        return SizeRequest(from_context=True)
    return _read_sizes(found, found.kwargs["ranks"])


def _read_sizes(found: pytest.Mark, value: object) -> SizeRequest:
    if isinstance(value, Collection) and not isinstance(value, (str, bytes)):
        sizes = tuple(_read_size(found, one) for one in value)
        if not sizes:
            raise BadMark(f"{_show(found)} has an empty list of numbers of ranks")
        return SizeRequest(sizes=sizes, is_list=True)
    return SizeRequest(sizes=(_read_size(found, value),))


def _read_size(found: pytest.Mark, value: object) -> int:
    problem = f"{_show(found)}: the number of ranks must be a positive whole number, not {value!r}"
    if isinstance(value, bool):
        raise BadMark(problem)
    try:
        size = operator.index(value)  # type: ignore[arg-type]  # the TypeError is the check
    except TypeError:
        raise BadMark(problem) from None
    if size < 1:
        raise BadMark(problem)
    return size


def _refuse_unknown(found: pytest.Mark, known: Sequence[str], positional: int = 0) -> None:
    unknown = [f"`{name}`" for name in found.kwargs if name not in known]
    unknown += [repr(value) for value in found.args[positional:]]
    if unknown:
        takes = ", ".join(f"`{name}`" for name in known) or "no arguments"
        raise BadMark(
            f"{_show(found)} has unknown arguments: {', '.join(unknown)}; it takes {takes}"
        )


def _show(found: pytest.Mark) -> str:
    arguments = [repr(value) for value in found.args]
    arguments += [f"{name}={value!r}" for name, value in found.kwargs.items()]
    return f"@mark.{found.name}({', '.join(arguments)})"
