"""Marks: on how many ranks a test runs, and how long it may take."""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple, get_args

import pytest
from _pytest.unittest import TestCaseFunction

from rankwise.pytest_plugin.options import closest_mark

KEEPS_TIME = "keeps_time"
"""The attribute of tests that have a time limit of their own, and end by themselves."""

# How much later than pytest-timeout we end a test.
_HEAD_START = 1.0

# As pytest-isolate-mpi writes them.
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def limit_of(item: pytest.Item, default: float) -> float:
    """Return the time limit of each phase of a test; 0: none, or the test has one of its own.

    Raises UsageError for a mark that gives no number.
    """
    for found in item.iter_markers():
        match found.name:
            case "timeout":
                value = found.args[0] if found.args else found.kwargs.get("timeout")
                limit = _seconds(item, found, value)
                # pytest-timeout ends a test from within: if that succeeds, the rank lives on.
                plugins = item.config.pluginmanager
                has_plugin = any(map(plugins.has_plugin, ("timeout", "pytest_timeout")))
                return limit + _HEAD_START if limit and has_plugin else limit
            case "mpi" if "timeout" in found.kwargs:
                # pytest-isolate-mpi has units.
                unit = _UNITS.get(str(found.kwargs.get("unit", "s")), 1.0)
                return _seconds(item, found, found.kwargs["timeout"]) * unit
    return 0.0 if getattr(item, KEEPS_TIME, False) else default


def _seconds(item: pytest.Item, found: pytest.Mark, value: object) -> float:
    if value is None:
        return 0.0
    # For Python, True is a number.
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise pytest.UsageError(
            f"{item.nodeid}: @pytest.mark.{found.name}: {value!r} is not a number of seconds"
        )
    return float(value)


# The number of ranks of a bare `@pytest.mark.parallel` with mpi-pytest.
_BARE_PARALLEL_SIZE = 3

Exclusive = Literal["core", "l3", "numa", "socket", "node"]
_LEVELS = get_args(Exclusive)


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
        `exclusive` test shares its cores, L3 caches, NUMA domains, sockets or machine with no
        other.
        """
        given = {"world": world, "threads": threads, "exclusive": exclusive}
        usual = {"world": False, "threads": 1, "exclusive": None}
        # Others read the mark too: it has what was written, as with `pytest.mark.parallel`.
        return pytest.mark.parallel(n_procs, **{k: v for k, v in given.items() if v != usual[k]})

    @property
    def parallel_from_context(self) -> pytest.MarkDecorator:
        """Run a test on as many ranks as the run has."""
        return pytest.mark.parallel_from_context


mark = MarkNamespace()


class OrderedSizes(list[object]):
    """Sizes that have the place in a test's id that their mark has among `parametrize` marks.

    It is so with pytest_parallel; the sizes of other lists come first.
    """


class BadMark(Exception):
    """A mark has arguments that make no sense."""


# Not a dataclass: to define one takes ten times as long.
class SizeRequest(NamedTuple):
    """What a test's mark says about its ranks."""

    sizes: tuple[int, ...] = ()
    from_context: bool = False
    is_list: bool = False
    """Whether the sizes came as a list: then each test's id shows its size."""
    is_ordered: bool = False
    """Whether the size has the place in the id that the mark has among `parametrize` marks."""
    world: bool = False
    threads: int = 1
    exclusive: str | None = None
    least: int = 1
    """The least number of ranks for a test that takes as many as there are."""


def read_mark(found: pytest.Mark) -> SizeRequest:
    """Return what a mark asks for; raises BadMark."""
    match found.name:
        case "parallel":
            return _read_parallel(found)
        case "mpi":
            return _read_mpi(found)
        case _:
            _refuse_unknown(found, ())
            return SizeRequest(from_context=True)


def _read_parallel(found: pytest.Mark) -> SizeRequest:
    requirements = ("world", "threads", "exclusive", "exclusive_numa_domain")
    _refuse_unknown(found, ("n_procs", "nprocs", N_PROCS, *requirements), positional=1)
    # `n_procs` is the name of pytest_parallel, `nprocs` that of mpi-pytest.
    values = [*found.args, *(v for name, v in found.kwargs.items() if name not in requirements)]
    if len(values) > 1:
        raise BadMark(f"{show_mark(found)} gives the number of ranks more than once")
    request = _read_sizes(found, values[0] if values else _BARE_PARALLEL_SIZE)
    world = found.kwargs.get("world", False)
    if not isinstance(world, bool):
        raise BadMark(f"{show_mark(found)}: `world` must be True or False, not {world!r}")
    return request._replace(
        world=world, threads=_read_threads(found), exclusive=_read_exclusive(found)
    )


def _read_exclusive(found: pytest.Mark) -> str | None:
    # The second name, and "cpu", are pytest_parallel's.
    wanted = {name: found.kwargs.get(name) for name in ("exclusive", "exclusive_numa_domain")}
    for name, level in wanted.items():
        if level not in (None, "cpu", *_LEVELS):
            levels = ", ".join(f'"{one}"' for one in _LEVELS)
            raise BadMark(
                f'{show_mark(found)}: `{name}` must be {levels}, or "cpu" (the same as "numa"), '
                f"not {level!r}"
            )
    level = next(filter(None, wanted.values()), None)
    return "numa" if level == "cpu" else level


def _read_mpi(found: pytest.Mark) -> SizeRequest:
    # `min_size` is of pytest-mpi, the rest of pytest-isolate-mpi. `limit_of` reads the time limit.
    known = ("ranks", "timeout", "unit", "threads")
    _refuse_unknown(found, known if "ranks" in found.kwargs else (*known, "min_size"))
    if "ranks" not in found.kwargs:
        least = _read_size(found, found.kwargs.get("min_size", 1))
        return SizeRequest(from_context=True, least=least)
    request = _read_sizes(found, found.kwargs["ranks"])
    return request._replace(threads=_read_threads(found))


def _read_threads(found: pytest.Mark) -> int:
    return _read_size(found, found.kwargs.get("threads", 1), what="threads of a rank")


def _read_sizes(found: pytest.Mark, value: object) -> SizeRequest:
    if isinstance(value, Collection) and not isinstance(value, (str, bytes)):
        sizes = tuple(_read_size(found, one) for one in value)
        if not sizes:
            raise BadMark(f"{show_mark(found)} has an empty list of numbers of ranks")
        is_ordered = isinstance(value, OrderedSizes)
        return SizeRequest(sizes=sizes, is_list=True, is_ordered=is_ordered)
    return SizeRequest(sizes=(_read_size(found, value),))


def _read_size(found: pytest.Mark, value: object, what: str = "ranks") -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        # Integers of numpy are welcome, floats are not.
        size = operator.index(value)  # type: ignore[arg-type]  # the TypeError is the check
    except TypeError:
        size = 0
    if size < 1:
        raise BadMark(
            f"{show_mark(found)}: the number of {what} must be a positive whole number, "
            f"not {value!r}"
        )
    return size


def _refuse_unknown(found: pytest.Mark, known: Sequence[str], positional: int = 0) -> None:
    unknown = [f"`{name}`" for name in found.kwargs if name not in known]
    unknown += [repr(value) for value in found.args[positional:]]
    if unknown:
        takes = ", ".join(f"`{name}`" for name in known) or "no arguments"
        raise BadMark(
            f"{show_mark(found)} has unknown arguments: {', '.join(unknown)}; it takes {takes}"
        )


def show_mark(found: pytest.Mark) -> str:
    """Return a mark as it is written in a test's file."""
    arguments = [repr(value) for value in found.args]
    arguments += [f"{name}={value!r}" for name, value in found.kwargs.items()]
    return f"@mark.{found.name}({', '.join(arguments)})"


SIZE_FIXTURE = "mpi_ranks"
N_PROCS = "N_PROCS"
"""The attribute of a TestCase that is the number of ranks of its tests, as for testflo."""
# Of mpi-pytest: the most ranks that a mark may ask for.
_MOST_RANKS = ("PYTEST_MPI_MAX_NPROCS", "MPI_PYTEST_MAX_NPROCS")
_SIZE = pytest.StashKey[int]()
_REQUIREMENTS = pytest.StashKey[SizeRequest]()
_TOO_FEW = pytest.StashKey[str]()
_SETTLED = pytest.StashKey[pytest.Mark | None]()


def requested_sizes(request: SizeRequest, override: int | None, available: int) -> list[int]:
    """Return the sizes of the tests that are made of one function."""
    if override is None and not request.from_context:
        return list(request.sizes)
    return [available if override is None else override]


def parametrize(
    metafunc: pytest.Metafunc, found: pytest.Mark, override: int | None, available: int, label: str
) -> None:
    """Make one test of each size of a list; the test need not take an argument for it.

    In the ids of tests, the label stands before a size.

    Raises a collection error that names the test when its mark makes no sense.
    """
    try:
        request = read_mark(found)
    except BadMark as error:
        where = f"{metafunc.definition.nodeid}: {error}"
        raise pytest.Collector.CollectError(where) from None
    if not request.is_list:
        return
    # The test need not take it as an argument.
    if SIZE_FIXTURE not in metafunc.fixturenames:
        metafunc.fixturenames.append(SIZE_FIXTURE)
    sizes = requested_sizes(request, override, available)
    ids = [f"{label}{size}" for size in sizes]
    if request.is_ordered:
        mark = pytest.mark.parametrize(SIZE_FIXTURE, sizes, indirect=True, ids=ids).mark
        # pytest reads marks in the order of decorators; those of a class come after them.
        marks = metafunc.definition.own_markers
        marks.insert(next((n for n, one in enumerate(marks) if one is found), len(marks)), mark)
    else:
        metafunc.parametrize(SIZE_FIXTURE, sizes, indirect=True, ids=ids)


def settle_size(item: pytest.Item, override: int | None, available: int) -> int:
    """Return how many ranks a collected test needs, and remember it on the test.

    Raises UsageError for a list that has not become tests: methods of `unittest.TestCase` cannot
    be parametrised, nor can a test that is collected already.
    """
    found = item.stash[_SETTLED] = closest_mark(item)
    item.stash[_SIZE], item.stash[_REQUIREMENTS] = 1, SizeRequest()
    if found is None:
        return 1
    try:
        request = item.stash[_REQUIREMENTS] = read_mark(found)
    except BadMark as error:
        raise pytest.UsageError(f"{item.nodeid}: {error}") from None
    sizes = requested_sizes(request, override, available)
    callspec = getattr(item, "callspec", None)
    parameter = None if callspec is None else callspec.params.get(SIZE_FIXTURE)
    # A hook may have replaced the mark of which the parameter is.
    size: int = parameter if parameter in sizes else sizes[0]
    if size != parameter and len(set(sizes)) > 1:
        raise pytest.UsageError(
            f"{item.nodeid}: {show_mark(found)} has a list of numbers of ranks, which "
            f"cannot be used here: methods of unittest.TestCase cannot be parametrised, "
            f"nor can tests that a hook marks after they are collected; give one number"
        )
    if size in request.sizes:
        _refuse_too_many(item, size)
    item.stash[_SIZE] = size
    return size


def _refuse_too_many(item: pytest.Item, size: int) -> None:
    """Raise UsageError for a mark that asks for more ranks than mpi-pytest's variable allows."""
    for name in _MOST_RANKS:
        most = os.environ.get(name, "") or str(size)
        if not most.isdecimal():
            raise pytest.UsageError(f"{name}={most} is not a number of ranks: correct or unset it")
        if size > int(most):
            raise pytest.UsageError(f"{item.nodeid}: {size} ranks are more than {name}={most}")


def read_class(item: TestCaseFunction) -> None:
    """Mark a method of a TestCase that says for testflo how many ranks its tests need."""
    if size := getattr(item.cls, N_PROCS, None):
        # `set_comm` passes it on.
        item.fixturenames.append("comm")
        if closest_mark(item) is None:
            item.add_marker(pytest.mark.parallel(**{N_PROCS: size}))


def set_comm(item: pytest.Item) -> None:
    """Set `self.comm` for a method of such a TestCase."""
    if isinstance(item, TestCaseFunction) and getattr(item.cls, N_PROCS, None):
        item.instance.comm = item.funcargs["comm"]


def refuse_if_late(item: pytest.Item, found: pytest.Mark) -> None:
    """Fail a running test whose closest mark came after its number of ranks was settled."""
    settled = item.stash.get(_SETTLED, None)
    if found is settled:
        return
    try:
        is_same = settled is not None and read_mark(found) == read_mark(settled)
    except BadMark as error:
        pytest.fail(str(error), pytrace=False)
    if not is_same:
        pytest.fail(
            f"{show_mark(found)} was added after the collection, and the test runs on the number "
            f"of ranks that it had before: add the mark in pytest_collection_modifyitems or "
            f"earlier",
            pytrace=False,
        )


def size_of(item: pytest.Item) -> int:
    """Return the number of ranks that was settled for a test."""
    return item.stash.get(_SIZE, 1)


def requirements_of(item: pytest.Item) -> SizeRequest:
    """Return what the mark of a test asks for."""
    return item.stash.get(_REQUIREMENTS, SizeRequest())


def mark_by_size(item: pytest.Item, available: int) -> None:
    """Let `-m "parallel[2]"` select tests by their number of ranks, as with mpi-pytest.

    `parallel[match]` are those on as many ranks as the run has.
    """
    size = size_of(item)
    for name in [f"parallel[{size}]", *["parallel[match]"] * (size == available)]:
        # Otherwise --strict-markers would refuse it.
        item.config.addinivalue_line("markers", f"{name}: tests on this number of ranks")
        item.add_marker(name)


def skip_if_impossible(
    item: pytest.Item, available: int, *, pool: bool, every_world: bool = False
) -> None:
    """Skip a test that cannot run here, or have it fail, with the numbers as reason."""
    size, requirements = size_of(item), requirements_of(item)
    ranks = "rank" if available == 1 else "ranks"
    start = "pytest --n-workers={}" if pool else "mpirun -np {} pytest"
    least = requirements.least
    reason = ""
    if size > available:
        how = start.format(size)
        reason = f"needs {size} ranks, has {available} {ranks}: run it with {how}"
    elif size < least:
        reason = f"needs at least {least} ranks, has {size}: run it with {start.format(least)}"
    elif pool and size * requirements.threads > available:
        reason = (
            f"needs {size} ranks with {requirements.threads} cores each, has {available} workers: "
            f"run it with pytest --n-workers={size * requirements.threads}"
        )
    elif not pool and (requirements.world or every_world) and size != available:
        reason = (
            f"needs a world of exactly {size} ranks, has {available} {ranks}: run it with pytest "
            f"--n-workers={max(size, available)}, which starts worlds of any size"
        )
    if reason:
        if item.config.getoption("too_few") == "error":
            item.stash[_TOO_FEW] = reason
        else:
            # In front of the other marks, so that its reason is the one that is shown.
            item.add_marker(pytest.mark.skip(reason=reason), append=False)
        item.stash[_SIZE] = 1
        item.stash[_REQUIREMENTS] = SizeRequest()


def fail_if_impossible(item: pytest.Item) -> None:
    """Fail a test that cannot run here, with --too-few=error."""
    if _TOO_FEW in item.stash:
        pytest.fail(item.stash[_TOO_FEW], pytrace=False)
