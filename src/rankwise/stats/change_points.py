"""Where a history has changed for good: E-divisive means, on the median of each run.

A history is cut in two where its parts differ most, by the distances between all their values
(Matteson and James 2014). Whether that is more than chance is asked of what is left when both
levels are taken away, in other orders: how strong is the strongest cut that chance makes of it? If
the cut is stronger, each part is looked at in turn.

Needs numpy, which is in the extra `measure`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rankwise.errors import InputError
from rankwise.stats.comparison import median

LEAST_RUNS = 3
"""A level that fewer runs have had may be a spell of bad weather."""
LEAST_CHANGE = 0.01
"""What has moved less than this is no change that anybody would look for."""
# Who has gone so much of the way from one level to the other has left the first one.
_LEFT = 0.25
# So many places are tried: two runs in a row that went wrong must not hide a change elsewhere.
_CANDIDATES = 10
_SIGNIFICANT = 0.004
_ORDERS = 1999
# Looked at so many at a time: if the first ones say that it is chance, the rest can be spared.
_BATCH = 200
_SEED = 20140301
# Values further from their level count as if they were so far, in standard deviations: what has
# gone wrong once must not hide or make a change. The first is for where to cut, the other for
# whether to.
_FAR = 4.0
_FAR_FROM_LEVEL = 3.0
# From the median distance to a standard deviation.
_SCALE = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange:
    """A place where the level has changed."""

    at: int
    """The first value of the new level."""
    before: float
    """The level from the change before, or from the beginning, up to here."""
    after: float
    p: float
    """How probable as much is by chance."""

    @property
    def share(self) -> float:
        """By how much it has moved, as a share of what it was; infinite if that was 0."""
        # A level may be negative: the share then goes by its size, and keeps the direction.
        if self.before:
            return self.after / abs(self.before) - (1 if self.before > 0 else -1)
        return float("inf") if self.after else 0.0


def find_changes(values: Sequence[float]) -> list[LevelChange]:
    """Find all changes of a history, in the order in which they came; it is the same every time.

    Raises InputError if numpy is not there.
    """
    if len(values) < 2 * LEAST_RUNS:
        return []
    numpy = _numpy()
    # So that nothing becomes infinite that is squared.
    scale = max(map(abs, values)) or 1.0
    scaled = numpy.asarray(values, dtype=float) / scale
    found = dict(_cuts(numpy, scaled, 0, numpy.random.default_rng(_SEED)))
    while True:
        changes = _with_levels(values, found)
        small = [change for change in changes if abs(change.share) < LEAST_CHANGE]
        if not small:
            return changes
        # Without it the levels beside it are others: the smallest goes first.
        del found[min(small, key=lambda change: abs(change.share)).at]


def _cuts(numpy: Any, values: Any, start: int, chance: Any) -> Iterator[tuple[int, float]]:
    """Return all places to cut at, with the probability that it is chance."""
    if len(values) < 2 * LEAST_RUNS:
        return
    at = _best_cut(numpy, values)
    p = 1.0 if at is None else _probability(numpy, values, at, chance)
    if at is None or p > _SIGNIFICANT:
        return
    # The strongest cut first splits the history; weaker ones show in the parts, where it is gone.
    yield from _cuts(numpy, values[:at], start, chance)
    yield start + at, p
    yield from _cuts(numpy, values[at:], start + at, chance)


def _best_cut(numpy: Any, values: Any) -> int | None:
    """Say where the two parts differ most; None: nowhere enough runs have a level of their own."""
    strengths = _energies(numpy, values)[LEAST_RUNS - 1 : len(values) - LEAST_RUNS]
    # Next to a real step, a neighbour can be a little stronger by chance: some are tried.
    best = (-strengths).argsort()[:_CANDIDATES] + LEAST_RUNS
    return next((int(at) for at in best if _has_two_levels(numpy, values, int(at))), None)


def _has_two_levels(numpy: Any, values: Any, at: int) -> bool:
    """Return whether on both sides there are enough that have left the level of the other side."""
    levels = [float(numpy.median(part)) for part in (values[:at], values[at:])]
    # A few slow runs can move a mean, but not enough values past the middle of the step.
    step = levels[1] - levels[0]
    first = (levels[1] - values[:at]) * numpy.sign(step)
    second = (values[at:] - levels[0]) * numpy.sign(step)
    return all((side > _LEFT * abs(step)).sum() >= LEAST_RUNS for side in (first, second))


def _energies(numpy: Any, values: Any) -> Any:
    """Say for each place how far what is left and right of it differs, by the energy distance."""
    number = len(values)
    # One value that is far off would outweigh a step: the energy distance adds up distances.
    middle = numpy.median(values)
    if usual := _usual(numpy, values - middle):
        values = numpy.clip(values, middle - _FAR * usual, middle + _FAR * usual)
    distances = numpy.abs(values[:, None] - values[None, :])
    earlier = numpy.tril(distances).sum(axis=1)
    later = distances.sum(axis=1) - earlier
    # The sums of all distances within what is left of a place, and within what is right of it.
    left = earlier.cumsum()[:-1]
    right = later[::-1].cumsum()[::-1][1:]
    between = earlier.sum() - left - right
    first = numpy.arange(1, number)
    second = number - first
    energy = 2 * between / (first * second) - 2 * left / first**2 - 2 * right / second**2
    return energy * first * second / number


def _probability(numpy: Any, values: Any, at: int, chance: Any) -> float:
    """Say how often chance makes a cut as strong of what is left without the two levels."""
    number = len(values)
    levels = numpy.where(
        numpy.arange(number) < at, numpy.median(values[:at]), numpy.median(values[at:])
    )
    rest = values - levels
    if usual := _usual(numpy, rest) * number / (number - 2):
        rest = numpy.clip(rest, -_FAR_FROM_LEVEL * usual, _FAR_FROM_LEVEL * usual)
    strength = _strengths(numpy, (levels + rest)[None, :])[0, at - LEAST_RUNS]
    for part in (slice(None, at), slice(at, None)):
        rest[part] -= rest[part].mean()
    if not rest.any():
        # Two levels and no noise at all: no order of nothing is as strong.
        return 1.0 if levels[0] == levels[-1] else 1 / (_ORDERS + 1)
    as_strong, seen = 0, 0
    while seen < _ORDERS and as_strong < _SIGNIFICANT * (_ORDERS + 1):
        many = min(_BATCH, _ORDERS - seen)
        orders = chance.permuted(numpy.tile(rest, (many, 1)), axis=1)
        as_strong += int((_strengths(numpy, orders).max(axis=1) >= strength).sum())
        seen += many
    return (as_strong + 1) / (seen + 1)


def _strengths(numpy: Any, rows: Any) -> Any:
    """Say for each row and each place how far the means of both sides differ, beside the noise."""
    number = rows.shape[1]
    inside = slice(LEAST_RUNS - 1, number - LEAST_RUNS)
    first = numpy.arange(1, number)[inside]
    second = number - first
    total = rows.sum(axis=1)[:, None]
    left = rows.cumsum(axis=1)[:, :-1][:, inside]
    explained = (left / first - (total - left) / second) ** 2 * first * second / number
    everything = ((rows - total / number) ** 2).sum(axis=1)[:, None]
    with numpy.errstate(divide="ignore", invalid="ignore"):
        return numpy.nan_to_num(explained / numpy.maximum(everything - explained, 0.0))


def _usual(numpy: Any, rest: Any) -> float:
    """Return the standard deviation of what is usual: single values far off do not count."""
    distances = numpy.abs(rest)
    # If more than half of all are equal, that of the others is better than none.
    return _SCALE * float(numpy.median(distances)) or float(distances.mean())


def _with_levels(values: Sequence[float], found: dict[int, float]) -> list[LevelChange]:
    edges = [0, *sorted(found), len(values)]
    levels = [median(values[first:last]) for first, last in pairwise(edges)]
    return [
        LevelChange(at=at, before=before, after=after, p=found[at])
        for at, before, after in zip(edges[1:-1], levels, levels[1:], strict=False)
    ]


def _numpy() -> Any:
    try:
        return importlib.import_module("numpy")
    except ImportError:
        why = "To find changes, numpy is needed: pip install 'rankwise[measure]'"
        raise InputError(why) from None
