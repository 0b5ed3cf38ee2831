"""The number of ranks of each test: from its mark, the command line and the ranks at hand."""

from __future__ import annotations

import pytest

from rankwise.testing.mark import BadMark, SizeRequest, read_marks

SIZE_FIXTURE = "mpi_ranks"
_SIZE = pytest.StashKey[int]()


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
    callspec = getattr(item, "callspec", None)
    if callspec is not None and SIZE_FIXTURE in callspec.params:
        size = int(callspec.params[SIZE_FIXTURE])
    else:
        try:
            request = read_marks(item)
        except BadMark as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from None
        if request is None:
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


def skip_if_too_large(item: pytest.Item, available: int) -> None:
    """Let a test that needs more ranks than there are be skipped, with the numbers as reason."""
    size = size_of(item)
    if size > available:
        ranks = "rank" if available == 1 else "ranks"
        reason = (
            f"needs {size} ranks, has {available} {ranks}: run it with mpirun -np {size} pytest"
        )
        item.add_marker(pytest.mark.skip(reason=reason), append=False)
        item.stash[_SIZE] = 1
