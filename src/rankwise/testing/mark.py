"""`mark.parallel` and its relatives: how many ranks a test asks for."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import pytest

if TYPE_CHECKING:
    from _pytest.nodes import Node

# What mpi-pytest gives to a bare `@pytest.mark.parallel`.
_BARE_PARALLEL_SIZE = 3

Exclusive = Literal["numa", "node"]
_EXCLUSIVE = ("numa", "node", None)

MARKERS = (
    (
        "parallel(n, world=False, threads=1, exclusive=None): run the test on n ranks, or once on "
        "each number of ranks of a list; world: COMM_WORLD has that size; threads: cores for each "
        'rank; exclusive: "numa" or "node", nothing else runs there meanwhile'
    ),
    "timeout(seconds): how long each phase of the test may take (0: for ever)",
    "parallel_from_context: run the test on as many ranks as the run has",
    "mpi(ranks): the same as parallel(ranks); without `ranks`, as parallel_from_context",
)


class MarkNamespace:
    """The marks by attribute, so that editors complete them."""

    @staticmethod
    def parallel(
        n_procs: int | Sequence[int],
        *,
        world: bool = False,
        threads: int = 1,
        exclusive: Exclusive | None = None,
    ) -> pytest.MarkDecorator:
        """Run a test on `n_procs` ranks, or once on each number of ranks of a list.

        With `world`, MPI.COMM_WORLD has that many ranks too. Each rank has `threads` cores. An
        `exclusive` test shares its NUMA domains, or the machine, with no other.
        """
        wishes = {"world": world, "threads": threads, "exclusive": exclusive}
        usual = {"world": False, "threads": 1, "exclusive": None}
        given = {name: value for name, value in wishes.items() if value != usual[name]}
        return pytest.mark.parallel(n_procs, **given)

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
    world: bool = False
    threads: int = 1
    exclusive: str | None = None


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
    wishes = ("world", "threads", "exclusive")
    _refuse_unknown(found, ("n_procs", "nprocs", *wishes), positional=1)
    values = [*found.args, *(v for name, v in found.kwargs.items() if name not in wishes)]
    if len(values) > 1:
        raise BadMark(f"{_show(found)} gives the number of ranks more than once")
    request = _read_sizes(found, values[0] if values else _BARE_PARALLEL_SIZE)
    world, exclusive = found.kwargs.get("world", False), found.kwargs.get("exclusive")
    if not isinstance(world, bool):
        raise BadMark(f"{_show(found)}: `world` must be True or False, not {world!r}")
    if exclusive not in _EXCLUSIVE:
        raise BadMark(f'{_show(found)}: `exclusive` must be "numa" or "node", not {exclusive!r}')
    return request._replace(world=world, threads=_read_threads(found), exclusive=exclusive)


def _read_mpi(found: pytest.Mark) -> SizeRequest:
    # The time limit is read where limits are; the rest is how pytest-isolate-mpi spells it.
    _refuse_unknown(found, ("ranks", "timeout", "unit", "threads"))
    if "ranks" not in found.kwargs:
        return SizeRequest(from_context=True)
    request = _read_sizes(found, found.kwargs["ranks"])
    return request._replace(threads=_read_threads(found))


def _read_threads(found: pytest.Mark) -> int:
    return _read_size(found, found.kwargs.get("threads", 1), what="threads of a rank")


def _read_sizes(found: pytest.Mark, value: object) -> SizeRequest:
    if isinstance(value, Collection) and not isinstance(value, (str, bytes)):
        sizes = tuple(_read_size(found, one) for one in value)
        if not sizes:
            raise BadMark(f"{_show(found)} has an empty list of numbers of ranks")
        return SizeRequest(sizes=sizes, is_list=True)
    return SizeRequest(sizes=(_read_size(found, value),))


def _read_size(found: pytest.Mark, value: object, what: str = "ranks") -> int:
    problem = f"{_show(found)}: the number of {what} must be a positive whole number, not {value!r}"
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
