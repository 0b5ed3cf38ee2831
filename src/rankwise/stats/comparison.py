"""Whether two sets of trials differ: medians, ranks, verdicts."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, product

# The rarest results, so much of all probability together, change no interval that is looked at.
_NEGLIGIBLE = 1e-3
# So many samples are enough for any interval; of more, some in even distances are taken.
_ENOUGH = 201

Weighted = list[tuple[float, float]]
"""Values, each with its probability."""


def median(values: Sequence[float]) -> float:
    """Return the median; numbers at the edge of what there is do not become infinite."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    # Halves are added, not a sum halved: the sum of two very large numbers is infinite.
    return ordered[middle - 1] / 2 + ordered[middle] / 2


def bootstrap(values: Sequence[float]) -> Weighted:
    """Return what the median of a bootstrap sample may be, and how probable that is."""
    ordered = _thinned(sorted(values))
    number = len(ordered)
    # The median of an odd number of draws is at most the value of a rank if more than half of the
    # draws are. So all resamples are counted, not drawn: no seed, the same result every time.
    if number % 2:
        below = [_at_least(number, number // 2 + 1, rank) for rank in range(number + 1)]
        found = [(value, below[rank + 1] - below[rank]) for rank, value in enumerate(ordered)]
    else:
        found = list(_even(ordered))
    return _likely(found)


def quantiles(weighted: Weighted, *shares: float) -> list[float]:
    """Return the values below which some shares of the probability are."""
    ordered = sorted(weighted)
    sums = list(accumulate(weight for _, weight in ordered))
    # Rounding can leave the last sum just below the share that is wanted.
    places = (min(bisect_left(sums, share * sums[-1]), len(sums) - 1) for share in shares)
    return [ordered[place][0] for place in places]


def _thinned(ordered: Sequence[float]) -> Sequence[float]:
    # Evenly spaced values have the same quantiles, and an even number of values makes pairs of all.
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
    """Return the medians of an even number: means of the two samples in the middle."""
    # Half of the draws are in the lower half. The two in the middle are the highest of that half
    # and the lowest of the other, which is the same question asked from above.
    number, half = len(ordered), len(ordered) // 2
    ways = math.comb(number, half)
    below = [_at_least(number, half, rank) for rank in range(number + 1)]

    def highest(rank: int) -> float:
        """Return how probable it is that of one half, this is the highest."""
        return (rank / number) ** half - ((rank - 1) / number) ** half

    for low in range(1, number + 1):
        rest = below[low] - below[low - 1]
        for high in range(low + 1, number + 1):
            weight = ways * highest(low) * highest(number - high + 1)
            rest -= weight
            yield ordered[low - 1] / 2 + ordered[high - 1] / 2, weight
        yield ordered[low - 1], max(0.0, rest)


def _at_least(number: int, wanted: int, rank: int) -> float:
    """Return how probable it is that as many of all draws are among the lowest `rank` samples."""
    share = rank / number
    return math.fsum(
        math.comb(number, hits) * share**hits * (1 - share) ** (number - hits)
        for hits in range(wanted, number + 1)
    )


# Up to so many samples in all, the test is exact.
_EXACT = 40


def cliffs_delta(first: Sequence[float], second: Sequence[float]) -> float:
    """Say how far the second group is above the first: 1 all of it, 0 not at all, -1 below it."""
    ordered = sorted(first)
    # Each pair counts 1, -1, or 0 where both are equal.
    above = sum(
        bisect_left(ordered, value) - (len(ordered) - bisect_right(ordered, value))
        for value in second
    )
    return above / (len(first) * len(second))


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """Return how probable it is that groups differ so much by chance, in whichever direction.

    It is exact for few samples, also where some are equal, and a normal approximation for many.
    """
    everything = sorted([*first, *second])
    observed, number, total = sum(_ranks(first, everything)), len(first), len(everything)
    middle = number * (total + 1)
    if total <= _EXACT:
        return _exact(everything, number, abs(observed - middle))
    # Equal values share a rank, and the sum of ranks then varies less.
    ties = sum(count**3 - count for count in Counter(everything).values())
    other = total - number
    spread = number * other / 12 * (total + 1 - ties / (total * (total - 1)))
    # All values are the same: no order to judge by.
    if not spread:
        return 1.0
    # Half a rank less: what is counted in whole ranks is compared with a smooth curve.
    away = max(0.0, abs(observed - middle) / 2 - 0.5)
    return math.erfc(away / math.sqrt(2 * spread))


def _ranks(values: Sequence[float], everything: Sequence[float]) -> list[int]:
    """Return twice the ranks: whole numbers also where several samples share one."""
    return [bisect_left(everything, one) + bisect_right(everything, one) + 1 for one in values]


def least_p(first: int, second: int) -> float:
    """Return the smallest result that the test can have with so many samples."""
    return 2 / math.comb(first + second, first)


def adjusted(probabilities: Sequence[float]) -> list[float]:
    """Correct for that many were asked at once, after Benjamini and Hochberg.

    If nothing has changed, an alarm anywhere is as improbable as it is for one question alone. If
    much has changed, it is found with few samples, which Holm's way does not do.
    """
    many = len(probabilities)
    # From the largest to the smallest: a result is never worse than that of a larger probability.
    order = sorted(range(many), key=lambda index: probabilities[index], reverse=True)
    found, least = [0.0] * many, 1.0
    for place, index in enumerate(order):
        least = min(least, probabilities[index] * many / (many - place))
        found[index] = least
    return found


def _exact(everything: Sequence[float], number: int, away: int) -> float:
    """Count the ways to choose the first group that are at least so far from the middle."""
    # By the number of samples that are chosen: how often each sum of ranks comes out.
    ways: list[Counter[int]] = [Counter() for _ in range(number + 1)]
    ways[0][0] = 1
    for rank in _ranks(everything, everything):
        for chosen in range(number, 0, -1):
            for total, count in ways[chosen - 1].items():
                ways[chosen][total + rank] += count
    middle = number * (len(everything) + 1)
    extreme = sum(count for total, count in ways[number].items() if abs(total - middle) >= away)
    return extreme / math.comb(len(everything), number)


LEAST_TRIALS = 5
THRESHOLD = 0.05
"""By how much a median may move, by default."""
_SIGNIFICANT = 0.05
_TAIL = 0.025
_NEAR_END = 0.5
# More trials than this are no useful advice.
_MOST_TRIALS = 1000


class ComparisonVerdict(StrEnum):
    """What came of a comparison; the worst comes first."""

    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    IMPROVED = "improved"
    UNCHANGED = "unchanged"


@dataclass(slots=True, kw_only=True)
class Trials:
    """The values of one side, each from a trial of its own."""

    values: list[float] = field(default_factory=list)
    noisy: int = 0
    """How many were left out because of noise."""
    noise: list[str] = field(default_factory=list)
    """Why, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two sides of one series."""

    before: Trials
    after: Trials
    better: str = "lower"
    """`lower` or `higher`; empty: unknown."""
    threshold: float = THRESHOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What came of a pair."""

    verdict: ComparisonVerdict
    reason: str
    """In words, why it is this one."""
    before: float | None = None
    """The median; None: there is none."""
    after: float | None = None
    trials: tuple[int, int] = (0, 0)
    change: float | None = None
    """By how much the median has moved, as a share of what it was; None: there is no such share."""
    interval: tuple[float, float] | None = None
    """Where that is with 95 % confidence, by bootstrap."""
    p: float | None = None
    """How probable such a difference is by chance, after correction."""
    delta: float | None = None
    """Cliff's: 1 if all of the second are above all of the first, -1 if below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What is known of a pair before the others are looked at."""

    change: float
    low: float
    high: float
    p: float

    @property
    def is_bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


def compare(pairs: Sequence[Pair]) -> list[Comparison]:
    """Compare all pairs at once: the more there are, the surer each must be."""
    measured = [_measure(pair) for pair in pairs]
    asked = [each for each in measured if each is not None]
    # Only what could be tested counts as asked: the others would make all less certain.
    corrected = iter(adjusted([each.p for each in asked]))
    return [
        _too_few_trials(pair) if each is None else _judge(pair, each, next(corrected), len(asked))
        for pair, each in zip(pairs, measured, strict=True)
    ]


def _measure(pair: Pair) -> _Measured | None:
    """Look at one pair; None: there is too little to look at."""
    first, second = pair.before.values, pair.after.values
    if min(len(first), len(second)) < LEAST_TRIALS:
        return None
    change = _moved(median(first), median(second))
    if not math.isfinite(change):
        return None
    # A resample whose median is 0 counts too: it says that the share may be anything.
    weighted = [
        (_moved(before, after), weight * other)
        for (before, weight), (after, other) in product(bootstrap(first), bootstrap(second))
    ]
    low, high = quantiles(weighted, _TAIL, 1 - _TAIL)
    return _Measured(change=change, low=low, high=high, p=mann_whitney(first, second))


def _moved(before: float, after: float) -> float:
    """Return by which share something has moved; infinite: out of all proportion."""
    if before == after:
        return 0.0
    if not before:
        return math.copysign(math.inf, after)
    return after / abs(before) - math.copysign(1, before)


def _too_few_trials(pair: Pair) -> Comparison:
    """Say why nothing can be said."""
    first, second = pair.before, pair.after
    trials = (len(first.values), len(second.values))
    least = min(trials)
    if least < LEAST_TRIALS and (first.noisy or second.noisy):
        noise = dict.fromkeys((*second.noise, *first.noise))
        reason = (
            f"{first.noisy + second.noisy} of {first.noisy + second.noisy + sum(trials)} trials "
            f"were measured under noise: {next(iter(noise), 'of an unknown kind')}"
        )
    elif least < LEAST_TRIALS:
        reason = _missing(trials)
    else:
        reason = "the median was 0 before, or is out of all proportion: there is no ratio"
    return Comparison(
        verdict=ComparisonVerdict.INCONCLUSIVE,
        reason=reason,
        before=median(first.values) if first.values else None,
        after=median(second.values) if second.values else None,
        trials=trials,
    )


def _missing(trials: tuple[int, int]) -> str:
    lacking = [(LEAST_TRIALS - number, side) for number, side in zip(trials, "AB", strict=True)]
    absent = [
        f"{number} more {'trial' if number == 1 else 'trials'} of {side}"
        for number, side in lacking
        if number > 0
    ]
    return f"{LEAST_TRIALS} trials are needed: {' and '.join(absent)}"


def _judge(pair: Pair, found: _Measured, p: float, many: int) -> Comparison:
    first, second = pair.before.values, pair.after.values
    verdict, reason = _verdict(pair, found, p, many)
    return Comparison(
        verdict=verdict,
        reason=reason,
        before=median(first),
        after=median(second),
        trials=(len(first), len(second)),
        change=found.change,
        interval=(found.low, found.high) if found.is_bounded else None,
        p=p,
        delta=cliffs_delta(first, second),
    )


def _verdict(pair: Pair, found: _Measured, p: float, many: int) -> tuple[ComparisonVerdict, str]:
    threshold = pair.threshold
    if -threshold <= found.low and found.high <= threshold:
        return ComparisonVerdict.UNCHANGED, f"within {threshold:.1%}"
    # The end of the interval that is nearer to no change at all; 0: it is inside.
    near = min(abs(found.low), abs(found.high)) if found.low * found.high > 0 else 0.0
    if abs(found.change) <= threshold or near < _NEAR_END * threshold:
        return ComparisonVerdict.INCONCLUSIVE, _too_wide(pair, found)
    if p > _SIGNIFICANT:
        return ComparisonVerdict.INCONCLUSIVE, _may_be_chance(pair, p, many)
    if not pair.better:
        unclear = "it has changed, but `better` does not say what is good"
        return ComparisonVerdict.INCONCLUSIVE, unclear
    is_worse = (found.change > 0) == (pair.better == "lower")
    verdict = ComparisonVerdict.REGRESSED if is_worse else ComparisonVerdict.IMPROVED
    return verdict, f"by more than {threshold:.1%}"


def _too_wide(pair: Pair, found: _Measured) -> str:
    """Say that the interval does not decide it, and how many trials may."""
    if not found.is_bounded:
        return "too many of the values are 0: the ratio may be anything"
    wide = (found.high - found.low) / 2
    # How far the middle is from where it would be decided.
    room = max(abs(abs(found.change) - pair.threshold), pair.threshold / 4)
    trials = min(len(pair.before.values), len(pair.after.values))
    wanted = math.ceil(trials * (wide / room) ** 2) if wide < room * _MOST_TRIALS else _MOST_TRIALS
    words = f"it may be anything from {found.low:+.1%} to {found.high:+.1%}"
    if trials < wanted < _MOST_TRIALS:
        words += f"; about {wanted} trials would tell"
    return words


def _may_be_chance(pair: Pair, p: float, many: int) -> str:
    """Say that chance may have done it, and whether more trials could exclude that."""
    words = f"chance may do as much (p = {p:.2g}"
    words += f", {many} comparisons)" if many > 1 else ")"
    trials = min(len(pair.before.values), len(pair.after.values))
    if least_p(trials, trials) * many > _SIGNIFICANT:
        wanted = next(
            number for number in range(trials, 60) if least_p(number, number) * many <= _SIGNIFICANT
        )
        words += f"; with so many, {wanted} trials are needed to be sure of one"
    return words
