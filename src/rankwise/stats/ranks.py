"""Whether two groups of samples differ: Mann and Whitney's test, and Cliff's effect size."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence

# Up to so many samples in all, the test is exact.
_EXACT = 40


def cliffs_delta(first: Sequence[float], second: Sequence[float]) -> float:
    """Say how far the second group is above the first: 1 all of it, 0 not at all, -1 below it."""
    ordered = sorted(first)
    above = sum(
        bisect_left(ordered, value) - (len(ordered) - bisect_right(ordered, value))
        for value in second
    )
    return above / (len(first) * len(second))


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """Give how probable it is that groups differ so much by chance, in whichever direction.

    It is exact for few samples, also where some are equal, and a normal approximation for many.
    """
    everything = sorted([*first, *second])
    # Twice the rank, so that it is a whole number also where several samples share one.
    ranks = [
        bisect_left(everything, value) + bisect_right(everything, value) + 1 for value in first
    ]
    observed, number, total = sum(ranks), len(first), len(everything)
    middle = number * (total + 1)
    if total <= _EXACT:
        return _exact(everything, number, abs(observed - middle))
    ties = sum(count**3 - count for count in Counter(everything).values())
    other = total - number
    spread = number * other / 12 * (total + 1 - ties / (total * (total - 1)))
    if not spread:
        return 1.0
    # Half a rank less: what is counted in whole ranks is compared with a smooth curve.
    away = max(0.0, abs(observed - middle) / 2 - 0.5)
    return math.erfc(away / math.sqrt(2 * spread))


def least_p(first: int, second: int) -> float:
    """Give the smallest result that the test can have with so many samples."""
    return 2 / math.comb(first + second, first)


def adjusted(probabilities: Sequence[float]) -> list[float]:
    """Correct for that many were asked at once, after Benjamini and Hochberg.

    If nothing has changed, an alarm anywhere is as improbable as it is for one question alone. If
    much has changed, it is found with few samples, which Holm's way does not do.
    """
    many = len(probabilities)
    order = sorted(range(many), key=lambda index: probabilities[index], reverse=True)
    found, least = [0.0] * many, 1.0
    for place, index in enumerate(order):
        least = min(least, probabilities[index] * many / (many - place))
        found[index] = least
    return found


def _exact(everything: Sequence[float], number: int, away: int) -> float:
    """Count the ways to choose the first group that are at least so far from the middle."""
    ranks = [
        bisect_left(everything, value) + bisect_right(everything, value) + 1 for value in everything
    ]
    # By the number of samples that are chosen: how often each sum of ranks comes out.
    ways: list[Counter[int]] = [Counter() for _ in range(number + 1)]
    ways[0][0] = 1
    for rank in ranks:
        for chosen in range(number, 0, -1):
            for total, count in ways[chosen - 1].items():
                ways[chosen][total + rank] += count
    middle = number * (len(everything) + 1)
    extreme = sum(count for total, count in ways[number].items() if abs(total - middle) >= away)
    return extreme / math.comb(len(everything), number)
