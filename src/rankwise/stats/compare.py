"""What two groups of trials say: improved, regressed, unchanged, or that nobody can know.

The rules, of which docs/is-it-slower.md says more:

- Fewer than five trials in a group, or noise: inconclusive.
- Regressed or improved: Mann and Whitney's test says that it is no chance, corrected for that many
  were asked at once; the median has moved by more than the threshold; and even the near end of its
  interval by half of that.
- Unchanged: the whole interval is within the threshold.
- Inconclusive: everything else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rankwise.stats.medians import bootstrap, median, quantiles
from rankwise.stats.ranks import adjusted, cliffs_delta, least_p, mann_whitney

LEAST_TRIALS = 5
THRESHOLD = 0.05
"""By how much a median may move, if nobody says otherwise."""
_SIGNIFICANT = 0.05
_TAIL = 0.025
_NEAR_END = 0.5
# More than this nobody would run to find out.
_MOST_TRIALS = 1000


class Verdict(StrEnum):
    """What came of a comparison; the worst comes first."""

    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    IMPROVED = "improved"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """The values of one side, each from a trial of its own."""

    values: Sequence[float]
    noisy: int = 0
    """How many were left out because of noise."""
    noise: Sequence[str] = ()
    """Why, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two sides of one series."""

    before: Trials
    after: Trials
    better: str = "lower"
    """`lower` or `higher`; empty: nobody knows."""
    threshold: float = THRESHOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What came of a pair."""

    verdict: Verdict
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


def compare(pairs: Sequence[Pair]) -> list[Comparison]:
    """Compare all pairs at once: the more there are, the surer each must be."""
    measured = [_measure(pair) for pair in pairs]
    asked = [each for each in measured if each is not None]
    corrected = iter(adjusted([each.p for each in asked]))
    return [
        _shy(pair) if each is None else _judge(pair, each, next(corrected), len(asked))
        for pair, each in zip(pairs, measured, strict=True)
    ]


def _measure(pair: Pair) -> _Measured | None:
    """Look at one pair; None: there is too little to look at."""
    first, second = pair.before.values, pair.after.values
    if min(len(first), len(second)) < LEAST_TRIALS:
        return None
    change = _share(median(first), median(second))
    if change is None:
        return None
    weighted = [
        (moved, weight * other)
        for before, weight in bootstrap(first)
        for after, other in bootstrap(second)
        if (moved := _share(before, after)) is not None
    ]
    low, high = quantiles(weighted, _TAIL, 1 - _TAIL)
    return _Measured(change=change, low=low, high=high, p=mann_whitney(first, second))


def _share(before: float, after: float) -> float | None:
    """Give by which share something has moved; None if that cannot be said."""
    if before == after:
        return 0.0
    share = after / abs(before) - math.copysign(1, before) if before else math.inf
    return share if math.isfinite(share) else None


def _shy(pair: Pair) -> Comparison:
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
        verdict=Verdict.INCONCLUSIVE,
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
        interval=(found.low, found.high),
        p=p,
        delta=cliffs_delta(first, second),
    )


def _verdict(pair: Pair, found: _Measured, p: float, many: int) -> tuple[Verdict, str]:
    threshold = pair.threshold
    if -threshold <= found.low and found.high <= threshold:
        return Verdict.UNCHANGED, f"within {threshold:.1%}"
    near = min(abs(found.low), abs(found.high)) if found.low * found.high > 0 else 0.0
    if abs(found.change) <= threshold or near < _NEAR_END * threshold:
        return Verdict.INCONCLUSIVE, _too_wide(pair, found)
    if p > _SIGNIFICANT:
        return Verdict.INCONCLUSIVE, _may_be_chance(pair, p, many)
    if not pair.better:
        return Verdict.INCONCLUSIVE, "it has changed, but `better` does not say what is good"
    is_worse = (found.change > 0) == (pair.better == "lower")
    verdict = Verdict.REGRESSED if is_worse else Verdict.IMPROVED
    return verdict, f"by more than {threshold:.1%}"


def _too_wide(pair: Pair, found: _Measured) -> str:
    """Say that the interval does not decide it, and how many trials may."""
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
