"""Marks: how they are read, and on how many ranks a test runs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import rankwise
from rankwise.pytest_plugin.marks import (
    BadMark,
    SizeRequest,
    read_mark,
    requested_sizes,
    requirements_of,
    settle_size,
    size_of,
    skip_if_impossible,
)
from rankwise.pytest_plugin.options import MARKERS, closest_mark
from tests.pytest_plugin.conftest import ALONE


def read(*marks: pytest.MarkDecorator) -> SizeRequest | None:
    """Read the marks of a test, the closest one first."""
    node: Any = SimpleNamespace(iter_markers=lambda: iter([mark.mark for mark in marks]))
    found = closest_mark(node)
    return None if found is None else read_mark(found)


class _Whole:
    """Like an integer of numpy."""

    def __index__(self) -> int:
        return 3


def test_a_test_without_marks_asks_for_nothing() -> None:
    assert read() is None
    assert read(pytest.mark.skip, pytest.mark.usefixtures("comm")) is None


@pytest.mark.parametrize(
    "mark",
    [
        rankwise.mark.parallel(3),
        pytest.mark.parallel(3),
        pytest.mark.parallel(n_procs=3),
        pytest.mark.parallel(nprocs=3),
        pytest.mark.parallel(_Whole()),
        pytest.mark.parallel,
        pytest.mark.parallel(),
        pytest.mark.mpi(ranks=3),
        pytest.mark.mpi(ranks=3, timeout=5, unit="s"),
    ],
    ids=lambda mark: str(mark.mark)[5:60],
)
def test_all_spellings_of_three_ranks_mean_the_same(mark: pytest.MarkDecorator) -> None:
    assert read(mark) == SizeRequest(sizes=(3,))


@pytest.mark.parametrize(
    "mark",
    [
        rankwise.mark.parallel([2, 4]),
        pytest.mark.parallel((2, 4)),
        pytest.mark.parallel(range(2, 5, 2)),
        pytest.mark.parallel(nprocs=[2, 4]),
        pytest.mark.mpi(ranks=[2, 4]),
    ],
    ids=lambda mark: str(mark.mark)[5:60],
)
def test_a_list_of_numbers_asks_for_each_of_them(mark: pytest.MarkDecorator) -> None:
    assert read(mark) == SizeRequest(sizes=(2, 4), is_list=True)


@pytest.mark.parametrize("mark", [rankwise.mark.parallel_from_context, pytest.mark.mpi])
def test_as_many_ranks_as_there_are_can_be_asked_for(mark: pytest.MarkDecorator) -> None:
    assert read(mark) == SizeRequest(from_context=True)


def test_the_closest_mark_wins() -> None:
    near, far = pytest.mark.parallel(2), pytest.mark.parallel(4)
    assert read(pytest.mark.skip, near, far) == SizeRequest(sizes=(2,))


def test_a_closer_mark_of_another_kind_wins_too() -> None:
    assert read(pytest.mark.mpi(ranks=2), rankwise.mark.parallel(4)) == SizeRequest(sizes=(2,))


@pytest.mark.parametrize(
    "value", [0, -1, 1.0, 2.5, "2", b"2", None, True, {}, object, [2, 0], [2, "x"], ["2"]], ids=repr
)
def test_what_is_no_positive_whole_number_is_refused(value: object) -> None:
    for mark in (pytest.mark.parallel, pytest.mark.mpi):
        with pytest.raises(BadMark):
            read(mark(ranks=value) if mark is pytest.mark.mpi else mark(n_procs=value))


def test_a_refusal_shows_the_mark_and_the_value() -> None:
    with pytest.raises(BadMark) as caught:
        read(pytest.mark.parallel([2, "x"]))
    assert "@mark.parallel([2, 'x'])" in str(caught.value)
    assert "positive whole number, not 'x'" in str(caught.value)


@pytest.mark.parametrize("empty", [[], (), range(0)])
def test_an_empty_list_is_refused(empty: object) -> None:
    with pytest.raises(BadMark, match="empty list"):
        read(pytest.mark.parallel(empty))


@pytest.mark.parametrize(
    ("mark", "names"),
    [
        (pytest.mark.parallel(2, size=3), ["`size`"]),
        (pytest.mark.parallel(2, 3), ["3"]),
        (pytest.mark.parallel(ranks=2), ["`ranks`"]),
        (pytest.mark.parallel(2, a=1, b=2), ["`a`", "`b`"]),
        (pytest.mark.mpi(2), ["2"]),
        (pytest.mark.mpi(ranks=2, min_size=1), ["`min_size`"]),
        (pytest.mark.parallel_from_context(2), ["2"]),
        (pytest.mark.parallel_from_context(n=2), ["`n`"]),
    ],
    ids=lambda value: str(getattr(value, "mark", ""))[5:60],
)
def test_unknown_arguments_are_refused_by_name(
    mark: pytest.MarkDecorator, names: list[str]
) -> None:
    with pytest.raises(BadMark) as caught:
        read(mark)
    assert f"unknown arguments: {', '.join(names)};" in str(caught.value)


def test_a_number_given_twice_is_refused() -> None:
    with pytest.raises(BadMark, match="more than once"):
        read(pytest.mark.parallel(2, nprocs=3))


def test_every_mark_is_declared_for_strict_markers() -> None:
    declared = {line.partition("(")[0].partition(":")[0] for line in MARKERS}
    of_pytest_mpi = {"mpi_skip", "mpi_break", "mpi_xfail"}
    assert declared == {"parallel", "parallel_from_context", "mpi", "timeout"} | of_pytest_mpi


# What a test asks for beside a number of ranks


@pytest.mark.parametrize(
    ("mark", "expected"),
    [
        (pytest.mark.parallel(2, world=True), SizeRequest(sizes=(2,), world=True)),
        (pytest.mark.parallel(2, world=False), SizeRequest(sizes=(2,))),
        (pytest.mark.parallel(2, threads=4), SizeRequest(sizes=(2,), threads=4)),
        (pytest.mark.parallel(2, threads=_Whole()), SizeRequest(sizes=(2,), threads=3)),
        (pytest.mark.parallel(2, exclusive="numa"), SizeRequest(sizes=(2,), exclusive="numa")),
        (pytest.mark.parallel(2, exclusive="node"), SizeRequest(sizes=(2,), exclusive="node")),
        (pytest.mark.parallel(2, exclusive=None), SizeRequest(sizes=(2,))),
        (pytest.mark.parallel(world=True), SizeRequest(sizes=(3,), world=True)),
        (pytest.mark.mpi(ranks=3, threads=2), SizeRequest(sizes=(3,), threads=2)),
        (
            pytest.mark.parallel(nprocs=[1, 2], world=True, threads=2, exclusive="node"),
            SizeRequest(sizes=(1, 2), is_list=True, world=True, threads=2, exclusive="node"),
        ),
    ],
    ids=lambda value: str(getattr(value, "mark", ""))[5:70],
)
def test_wishes_are_read_beside_the_number_of_ranks(
    mark: pytest.MarkDecorator, expected: SizeRequest
) -> None:
    assert read(mark) == expected


def test_our_own_mark_carries_only_what_was_wished_for() -> None:
    """So that another plugin that knows `parallel` meets none of our words."""
    assert rankwise.mark.parallel(2).kwargs == {}
    assert rankwise.mark.parallel(2, world=False, threads=1, exclusive=None).kwargs == {}
    wished = rankwise.mark.parallel(2, world=True, threads=2, exclusive="numa")
    assert wished.kwargs == {"world": True, "threads": 2, "exclusive": "numa"}
    assert read(wished) == SizeRequest(sizes=(2,), world=True, threads=2, exclusive="numa")


@pytest.mark.parametrize(
    ("mark", "complaint"),
    [
        (pytest.mark.parallel(2, world=1), "`world` must be True or False, not 1"),
        (pytest.mark.parallel(2, world="yes"), "`world` must be True or False, not 'yes'"),
        (
            pytest.mark.parallel(2, exclusive="cores"),
            '"core", "l3", "numa", "socket", "node", or "cpu" (the same as "numa"), not \'cores\'',
        ),
        (pytest.mark.parallel(2, exclusive=True), "not True"),
        (pytest.mark.parallel(2, exclusive="l3", exclusive_numa_domain="die"), "not 'die'"),
        (pytest.mark.parallel(2, threads=0), "threads of a rank must be a positive whole number"),
        (pytest.mark.parallel(2, threads=True), "threads of a rank must be a positive whole"),
        (pytest.mark.parallel(2, threads=[2]), "threads of a rank must be a positive whole"),
        (pytest.mark.mpi(ranks=2, threads=-1), "threads of a rank must be a positive whole"),
        (pytest.mark.mpi(ranks=2, world=True), "unknown arguments: `world`"),
    ],
    ids=lambda value: str(getattr(value, "mark", ""))[5:70],
)
def test_wishes_that_make_no_sense_are_refused(mark: pytest.MarkDecorator, complaint: str) -> None:
    with pytest.raises(BadMark) as caught:
        read(mark)
    assert complaint in str(caught.value)


# From marks to tests with a size: what is collected, under which name, on how many ranks

# Others that are installed beside the plugin must not reorder what is collected.


def collected(pytester: pytest.Pytester, source: str, *options: str) -> Sequence[pytest.Item]:
    pytester.makepyfile(test_it=source)
    items, _ = pytester.inline_genitems(*ALONE, *options)
    return items


def sizes(items: Sequence[pytest.Item]) -> dict[str, int]:
    """Return name and size of tests, as marked: with a rank for each that they could ask for."""
    return {item.name: settle_size(item, override=None, available=8) for item in items}


def test_an_unmarked_test_has_one_rank(pytester: pytest.Pytester) -> None:
    assert sizes(collected(pytester, "def test_it(): pass")) == {"test_it": 1}


def test_one_number_leaves_the_name_as_it_is(pytester: pytest.Pytester) -> None:
    source = """
        import rankwise
        @rankwise.mark.parallel(2)
        def test_it(comm): pass
    """
    assert sizes(collected(pytester, source)) == {"test_it": 2}


def test_a_list_makes_a_test_of_each_number_with_the_number_in_its_name(
    pytester: pytest.Pytester,
) -> None:
    source = """
        import rankwise
        @rankwise.mark.parallel([2, 4])
        def test_it(comm): pass
        @rankwise.mark.parallel([3])
        def test_without_arguments(): pass
    """
    assert sizes(collected(pytester, source)) == {
        "test_it[2]": 2,
        "test_it[4]": 4,
        "test_without_arguments[3]": 3,
    }


def test_a_list_combines_with_parameters(pytester: pytest.Pytester) -> None:
    source = """
        import pytest, rankwise
        @rankwise.mark.parallel([1, 2])
        @pytest.mark.parametrize("letter", "ab")
        def test_it(comm, letter): pass
    """
    found = sizes(collected(pytester, source))
    assert sorted(found.values()) == [1, 1, 2, 2]
    assert all(str(size) in name for name, size in found.items())
    assert len({name for name in found if "a" in name.partition("[")[2]}) == 2


def test_marks_of_class_and_module_count_and_the_closest_wins(pytester: pytest.Pytester) -> None:
    source = """
        import pytest
        pytestmark = pytest.mark.parallel(2)
        def test_of_module(): pass
        @pytest.mark.parallel(3)
        class TestIt:
            def test_of_class(self): pass
            @pytest.mark.mpi(ranks=4)
            def test_of_function(self): pass
            @pytest.mark.parallel_from_context
            def test_of_context(self): pass
    """
    assert sizes(collected(pytester, source)) == {
        "test_of_module": 2,
        "test_of_class": 3,
        "test_of_function": 4,
        "test_of_context": 8,
    }


def test_a_class_with_a_list_makes_tests_of_each_of_its_methods(pytester: pytest.Pytester) -> None:
    source = """
        import pytest
        @pytest.mark.parallel([1, 2])
        class TestIt:
            def test_a(self): pass
            def test_b(self, comm): pass
    """
    assert sizes(collected(pytester, source)) == {
        "test_a[1]": 1,
        "test_a[2]": 2,
        "test_b[1]": 1,
        "test_b[2]": 2,
    }


def test_a_test_can_ask_for_the_number_of_its_ranks(pytester: pytest.Pytester) -> None:
    source = """
        import pytest
        @pytest.mark.parallel(1)
        def test_one(mpi_ranks): assert mpi_ranks == 1
        @pytest.mark.parallel([1])
        def test_list(mpi_ranks): assert mpi_ranks == 1
        def test_unmarked(mpi_ranks): assert mpi_ranks == 1
    """
    pytester.makepyfile(source)
    pytester.inline_run(*ALONE).assertoutcome(passed=3)


@pytest.mark.parametrize("option", ["--nprocs=1", "--nprocs=5"])
def test_the_command_line_overrides_every_marked_size_and_no_other(
    pytester: pytest.Pytester, option: str
) -> None:
    source = """
        import pytest
        @pytest.mark.parallel(2)
        def test_one(): pass
        @pytest.mark.parallel([2, 3])
        def test_list(): pass
        @pytest.mark.parallel_from_context
        def test_context(): pass
        def test_unmarked(): pass
    """
    number = int(option.partition("=")[2])
    items = collected(pytester, source, option)
    found = {item.name: settle_size(item, override=number, available=8) for item in items}
    assert found == {
        "test_one": number,
        f"test_list[{number}]": number,
        "test_context": number,
        "test_unmarked": 1,
    }


@pytest.mark.parametrize("number", ["0", "-2", "two", "1.5"])
def test_the_command_line_takes_positive_whole_numbers_only(
    pytester: pytest.Pytester, number: str
) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess(*ALONE, f"--nprocs={number}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--nprocs*"])


@pytest.mark.parametrize(
    "mark", ["parallel(0)", "parallel([2, -1])", "parallel('2')", "parallel(2, size=3)"]
)
def test_a_mark_that_makes_no_sense_is_a_collection_error_that_names_the_test(
    pytester: pytest.Pytester, mark: str
) -> None:
    source = f"""
        import pytest
        @pytest.mark.{mark}
        def test_it(): pass
    """
    pytester.makepyfile(test_it=source)
    result = pytester.runpytest_inprocess(*ALONE)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"*test_it.py::test_it: @mark.{mark.partition('(')[0]}(*"])


def test_a_list_where_nothing_can_be_parametrised_is_refused_by_name(
    pytester: pytest.Pytester,
) -> None:
    source = """
        import unittest, pytest
        @pytest.mark.parallel([1, 2])
        class TestIt(unittest.TestCase):
            def test_it(self): pass
    """
    pytester.makepyfile(test_it=source)
    result = pytester.runpytest_inprocess(*ALONE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*TestIt::test_it: @mark.parallel([[]1, 2]) has a list*give one number*"]
    )


# What comes of a size


@pytest.mark.parametrize(
    ("request_", "override", "expected"),
    [
        (SizeRequest(sizes=(2, 4)), None, [2, 4]),
        (SizeRequest(sizes=(2, 4)), 3, [3]),
        (SizeRequest(from_context=True), None, [6]),
        (SizeRequest(from_context=True), 3, [3]),
    ],
)
def test_the_command_line_comes_first_then_the_context_then_the_mark(
    request_: SizeRequest, override: int | None, expected: list[int]
) -> None:
    assert requested_sizes(request_, override=override, available=6) == expected


@pytest.mark.parametrize(
    ("available", "reason"), [(1, "needs 4 ranks, has 1 rank:"), (3, "needs 4 ranks, has 3 ranks:")]
)
def test_a_test_that_is_too_large_is_skipped_with_both_numbers_and_the_command(
    pytester: pytest.Pytester, available: int, reason: str
) -> None:
    source = "import pytest\n@pytest.mark.parallel(4)\ndef test_it(): pass"
    (item,) = collected(pytester, source)
    settle_size(item, override=None, available=available)
    skip_if_impossible(item, available, pool=False)
    mark = item.get_closest_marker("skip")
    assert mark is not None
    assert mark.kwargs["reason"].startswith(reason)
    assert "mpirun -np 4" in mark.kwargs["reason"]
    assert size_of(item) == 1, "skipping takes one rank"


def test_a_test_that_fits_is_not_skipped(pytester: pytest.Pytester) -> None:
    source = "import pytest\n@pytest.mark.parallel(4)\ndef test_it(): pass"
    (item,) = collected(pytester, source, "--nprocs=1")
    settle_size(item, override=None, available=4)
    skip_if_impossible(item, 4, pool=False)
    assert item.get_closest_marker("skip") is None
    assert size_of(item) == 4


def reason_to_skip(
    pytester: pytest.Pytester,
    mark: str,
    available: int,
    *,
    pool: bool,
    every_world: bool = False,
) -> str:
    """Return why a test with this mark cannot run; empty if it can."""
    source = f"import pytest\n@pytest.mark.{mark}\ndef test_it(): pass"
    (item,) = collected(pytester, source, "--nprocs=1")
    settle_size(item, override=None, available=available)
    requirements = requirements_of(item)
    skip_if_impossible(item, available, pool=pool, every_world=every_world)
    skip = item.get_closest_marker("skip")
    if skip is None:
        assert requirements_of(item) == requirements
        return ""
    assert (size_of(item), requirements_of(item)) == (1, SizeRequest()), "skipping takes one rank"
    return str(skip.kwargs["reason"])


def test_a_pool_that_is_too_small_is_told_how_many_workers_a_test_needs(
    pytester: pytest.Pytester,
) -> None:
    reason = reason_to_skip(pytester, "parallel(4)", 2, pool=True)
    assert reason == "needs 4 ranks, has 2 ranks: run it with pytest --n-workers=4"


@pytest.mark.parametrize("available", [5, 6])
def test_a_worker_of_a_pool_is_a_core_and_threads_need_as_many(
    pytester: pytest.Pytester, available: int
) -> None:
    reason = reason_to_skip(pytester, "parallel(2, threads=3)", available, pool=True)
    if available == 5:
        assert reason.startswith("needs 2 ranks with 3 cores each, has 5 workers:")
        assert reason.endswith("pytest --n-workers=6")
    else:
        assert not reason


def test_threads_are_not_counted_against_the_ranks_of_mpirun(pytester: pytest.Pytester) -> None:
    assert not reason_to_skip(pytester, "parallel(2, threads=3)", 2, pool=False)


@pytest.mark.parametrize(("mark", "every_world"), [("2, world=True", False), ("2", True)])
def test_under_mpirun_the_world_has_the_size_that_it_has(
    pytester: pytest.Pytester, mark: str, every_world: bool
) -> None:
    reason = reason_to_skip(pytester, f"parallel({mark})", 3, pool=False, every_world=every_world)
    assert reason.startswith("needs a world of exactly 2 ranks, has 3 ranks:")
    assert "pytest --n-workers=3" in reason
    assert not reason_to_skip(pytester, f"parallel({mark})", 2, pool=False, every_world=every_world)


@pytest.mark.parametrize(("mark", "every_world"), [("2, world=True", False), ("2", True)])
def test_a_pool_has_worlds_of_every_size(
    pytester: pytest.Pytester, mark: str, every_world: bool
) -> None:
    reason = reason_to_skip(pytester, f"parallel({mark})", 3, pool=True, every_world=every_world)
    assert not reason


def test_wishes_are_remembered_on_the_test(pytester: pytest.Pytester) -> None:
    source = """
        import pytest
        @pytest.mark.parallel(2, world=True, threads=2, exclusive="numa")
        def test_it(): pass
        def test_plain(): pass
    """
    wishing, plain = collected(pytester, source)
    assert requirements_of(wishing) == requirements_of(plain) == SizeRequest(), (
        "nothing is settled yet"
    )
    for item in (wishing, plain):
        settle_size(item, override=None, available=8)
    found = requirements_of(wishing)
    assert (found.world, found.threads, found.exclusive) == (True, 2, "numa")
    assert requirements_of(plain) == SizeRequest()


def test_a_test_that_takes_all_ranks_may_need_a_least_number(pytester: pytest.Pytester) -> None:
    source = """
        import pytest
        @pytest.mark.mpi(min_size=2)
        def test_it(): pass
    """
    (item,) = collected(pytester, source)
    assert settle_size(item, override=None, available=3) == 3
    skip_if_impossible(item, 3, pool=True)
    assert size_of(item) == 3
    settle_size(item, override=None, available=1)
    skip_if_impossible(item, 1, pool=True)
    (skip,) = [mark for mark in item.iter_markers("skip") if "n-workers" in mark.kwargs["reason"]]
    assert skip.kwargs["reason"].startswith("needs at least 2 ranks, has 1")
