"""Marks as people write them, and what is read out of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import rankwise
from rankwise.pytest_plugin.marks import BadMark, SizeRequest, read_marks
from rankwise.pytest_plugin.options import MARKERS


def read(*marks: pytest.MarkDecorator) -> SizeRequest | None:
    """Read the marks of a test, the closest one first."""
    node: Any = SimpleNamespace(iter_markers=lambda: iter([mark.mark for mark in marks]))
    return read_marks(node)


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
    assert declared == {"parallel", "parallel_from_context", "mpi", "timeout"}


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
        (pytest.mark.parallel(2, exclusive="core"), '"numa" or "node", not \'core\''),
        (pytest.mark.parallel(2, exclusive=True), '"numa" or "node", not True'),
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
