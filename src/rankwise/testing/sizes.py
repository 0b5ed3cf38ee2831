"""The number of ranks of each test: from its mark, the command line and the ranks at hand."""

from __future__ import annotations

import pytest

from rankwise.testing.mark import BadMark, SizeRequest, read_marks

SIZE_FIXTURE = "mpi_ranks"
_SIZE = pytest.StashKey[int]()
_WISHES = pytest.StashKey[SizeRequest]()


def requested_sizes(request: SizeRequest, *, override: int | None, available: int) -> list[int]:
    """Give the sizes that a test is to be run with."""
    if override is not None:
        return [override]
    if request.from_context:
        return [available]
    return list(request.sizes)


def parametrize(metafunc: pytest.Metafunc, *, override: int | None, available: int) -> None:
    """Make one test of each size of a list; the test need not take an argument for it.

    Raises a collection error that names the test when its mark makes no sense.
    """
    try:
        request = read_marks(metafunc.definition)
    except BadMark as error:
        where = f"{metafunc.definition.nodeid}: {error}"
        raise pytest.Collector.CollectError(where) from None
    if request is not None and request.is_list:
        if SIZE_FIXTURE not in metafunc.fixturenames:
            metafunc.fixturenames.append(SIZE_FIXTURE)
        sizes = requested_sizes(request, override=override, available=available)
        metafunc.parametrize(SIZE_FIXTURE, sizes, indirect=True, ids=[str(size) for size in sizes])


def settle_size(item: pytest.Item, *, override: int | None, available: int) -> int:
    """Find how many ranks a collected test needs, and remember it on the test.

    Raises UsageError for what cannot be parametrised, such as methods of `unittest.TestCase`.
    """
    try:
        request = read_marks(item)
    except BadMark as error:
        raise pytest.UsageError(f"{item.nodeid}: {error}") from None
    item.stash[_WISHES] = request or SizeRequest()
    callspec = getattr(item, "callspec", None)
    if callspec is not None and SIZE_FIXTURE in callspec.params:
        size = int(callspec.params[SIZE_FIXTURE])
    elif request is None:
        size = 1
    elif request.is_list and override is None:
        raise pytest.UsageError(
            f"{item.nodeid}: a list of numbers of ranks cannot be used here, because this "
            f"kind of test cannot be parametrised; give one number"
        )
    else:
        size = requested_sizes(request, override=override, available=available)[0]
    item.stash[_SIZE] = size
    return size


def size_of(item: pytest.Item) -> int:
    """Give the number of ranks that was settled for a test."""
    return item.stash.get(_SIZE, 1)


def wishes_of(item: pytest.Item) -> SizeRequest:
    """Give what the mark of a test asks for beside a number of ranks."""
    return item.stash.get(_WISHES, SizeRequest())


def mark_by_size(item: pytest.Item, available: int) -> None:
    """Let `-m "parallel[2]"` select tests by their number of ranks, as with mpi-pytest.

    `parallel[match]` are those on as many ranks as the run has.
    """
    size = size_of(item)
    names = [f"parallel[{size}]"]
    if size == available:
        names.append("parallel[match]")
    for name in names:
        item.config.addinivalue_line("markers", f"{name}: tests on so many ranks")
        item.add_marker(name)


def skip_if_impossible(
    item: pytest.Item, available: int, *, pool: bool, every_world: bool = False
) -> None:
    """Let a test that cannot run here be skipped, with the numbers as reason."""
    size, wishes = size_of(item), wishes_of(item)
    ranks = "rank" if available == 1 else "ranks"
    reason = ""
    if size > available:
        how = f"pytest --n-workers={size}" if pool else f"mpirun -np {size} pytest"
        reason = f"needs {size} ranks, has {available} {ranks}: run it with {how}"
    elif pool and size * wishes.threads > available:
        reason = (
            f"needs {size} ranks with {wishes.threads} cores each, has {available} workers: run it "
            f"with pytest --n-workers={size * wishes.threads}"
        )
    elif not pool and (wishes.world or every_world) and size != available:
        reason = (
            f"needs a world of exactly {size} ranks, has {available} {ranks}: run it with pytest "
            f"--n-workers={max(size, available)}, which starts worlds of any size"
        )
    if reason:
        item.add_marker(pytest.mark.skip(reason=reason), append=False)
        item.stash[_SIZE] = 1
        item.stash[_WISHES] = SizeRequest()
