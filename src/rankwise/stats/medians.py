"""Medians, and how far they may be off: the bootstrap of a median, exactly and without chance.

A bootstrap draws samples again and again from those that there are. For a median, how often each
result comes out can be calculated, so nothing is drawn here: the same samples always give the same
interval, and a fast one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

# The rarest results, so much of all probability together, change no interval that is looked at.
_NEGLIGIBLE = 1e-3
# So many samples are enough for any interval; of more, some in even distances are taken.
_ENOUGH = 201

Weighted = list[tuple[float, float]]
"""Values, each with its probability."""


def median(values: Sequence[float]) -> float:
    """Give the median; numbers at the edge of what there is do not become infinite."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return ordered[middle - 1] / 2 + ordered[middle] / 2


def bootstrap(values: Sequence[float]) -> Weighted:
    """Give what the median of a bootstrap sample may be, and how probable that is."""
    ordered = _thinned(sorted(values))
    number = len(ordered)
    if number % 2:
        below = [_at_least(number, number // 2 + 1, rank) for rank in range(number + 1)]
        found = [(value, below[rank + 1] - below[rank]) for rank, value in enumerate(ordered)]
    else:
        found = list(_even(ordered))
    return _likely(found)


def quantiles(weighted: Weighted, *shares: float) -> list[float]:
    """Give the values below which some shares of the probability are."""
    ordered = sorted(weighted)
    sums = list(accumulate(weight for _, weight in ordered))
    found = []
    for share in shares:
        wanted = share * sums[-1]
        place = next((at for at, total in enumerate(sums) if total >= wanted), len(sums) - 1)
        found.append(ordered[place][0])
    return found


def _thinned(ordered: Sequence[float]) -> Sequence[float]:
    if len(ordered) <= _ENOUGH:
        return ordered
    last = len(ordered) - 1
    return [ordered[round(place * last / (_ENOUGH - 1))] for place in range(_ENOUGH)]


def _likely(weighted: Weighted) -> Weighted:
    """Leave out what is too rare to matter: there may be many of those."""
    ordered = sorted(weighted, key=lambda each: each[1])
    sums = accumulate(weight for _, weight in ordered)
    return [each for each, total in zip(ordered, sums, strict=True) if total > _NEGLIGIBLE]


def _even(ordered: Sequence[float]) -> Iterable[tuple[float, float]]:
    """Give the medians of an even number: means of the two samples in the middle."""
    number, half = len(ordered), len(ordered) // 2
    ways = math.comb(number, half)
    below = [_at_least(number, half, rank) for rank in range(number + 1)]

    def highest(rank: int) -> float:
        """Give how probable it is that of one half, this is the highest."""
        return (rank / number) ** half - ((rank - 1) / number) ** half

    for low in range(1, number + 1):
        rest = below[low] - below[low - 1]
        for high in range(low + 1, number + 1):
            weight = ways * highest(low) * highest(number - high + 1)
            rest -= weight
            yield ordered[low - 1] / 2 + ordered[high - 1] / 2, weight
        yield ordered[low - 1], max(0.0, rest)


def _at_least(number: int, wanted: int, rank: int) -> float:
    """Give how probable it is that as many of all draws are among the lowest `rank` samples."""
    share = rank / number
    return math.fsum(
        math.comb(number, hits) * share**hits * (1 - share) ** (number - hits)
        for hits in range(wanted, number + 1)
    )
