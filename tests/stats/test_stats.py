"""Changes are found where they are; another program, Apache Otava, finds them as well."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence

import pytest
from environments import EVERYTHING, why_unavailable
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import InputError
from rankwise.stats import change_points
from rankwise.stats.change_points import find_changes
from rankwise.stats.comparison import (
    Comparison,
    ComparisonVerdict,
    Pair,
    Trials,
    adjusted,
    bootstrap,
    cliffs_delta,
    compare,
    least_p,
    mann_whitney,
    median,
    quantiles,
)


def history(*levels: tuple[float, int], noise: float = 0.02, seed: int = 1) -> list[float]:
    """Make the medians of five trials each, on some levels for some commits."""
    chance = random.Random(seed)
    return [
        median([level * (1 + chance.gauss(0, noise)) for _ in range(5)])
        for level, commits in levels
        for _ in range(commits)
    ]


def test_a_step_is_found_with_its_levels() -> None:
    (change,) = find_changes(history((1.0, 30), (1.2, 10)))
    assert change.at == 30
    assert change.before == pytest.approx(1.0, abs=0.02)
    assert change.share == pytest.approx(0.2, abs=0.03)
    assert change.p < 0.005


def test_several_steps_are_found_in_order_also_when_they_cancel_out() -> None:
    found = find_changes(history((1.0, 25), (10.0, 15), (1.0, 15), (0.8, 20)))
    assert [change.at for change in found] == [25, 40, 55]
    assert [change.share for change in found] == pytest.approx([9.0, -0.9, -0.2], rel=0.1)


def test_the_last_three_runs_can_be_a_change_and_the_last_two_cannot() -> None:
    assert [c.at for c in find_changes(history((1.0, 40), (1.5, 3)))] == [40]
    two_last = [find_changes(history((1.0, 40), (1.5, 2), seed=seed)) for seed in range(30)]
    assert sum(map(bool, two_last)) <= 3
    assert [c.at for c in find_changes(history((1.0, 40), (1.2, 20), (3.0, 2)))] == [40]


def test_one_bad_day_is_no_change() -> None:
    values = history((1.0, 50))
    values[20], values[-1] = 5.0, 0.1
    assert find_changes(values) == []


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0] * 5,
        [0.0] * 50,
        [1.0] * 50,
        [1e308] * 30,
        [5e-324] * 30,
        [-1.0, 1.0] * 20,
        [1.0] * 29 + [2.0] + [1.0] * 20,
    ],
)
def test_where_there_is_no_change_none_is_found(values: list[float]) -> None:
    assert find_changes(values) == []


def test_levels_without_noise_are_changes() -> None:
    assert [c.at for c in find_changes([3.0] * 10 + [4.0] * 10)] == [10]
    assert [c.at for c in find_changes([1e-300] * 20 + [1e308] * 20)] == [20]
    (change,) = find_changes([0.0] * 10 + [4.0] * 10)
    assert change.share == float("inf")


def test_changes_that_are_too_small_to_matter_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = history((1.0, 100), (1.004, 100), noise=0.001)
    assert find_changes(values) == []
    monkeypatch.setattr(change_points, "LEAST_CHANGE", 0.0)
    assert [c.at for c in find_changes(values)] == [100]


def test_the_same_history_gives_the_same_changes() -> None:
    values = history((1.0, 30), (1.03, 30), noise=0.03)
    assert find_changes(values) == find_changes(values)


def test_false_alarms_are_rare_and_changes_are_found() -> None:
    quiet = [history((1.0, 60), noise=0.05, seed=seed) for seed in range(100)]
    assert sum(bool(find_changes(values)) for values in quiet) <= 3
    steps = [history((1.0, 57), (1.1, 3), noise=0.05, seed=seed) for seed in range(100)]
    assert sum(bool(find_changes(values)) for values in steps) >= 90


def test_without_numpy_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(InputError, match=r"pip install 'rankwise\[measure\]'"):
        find_changes([1.0] * 10)


ORACLE = """
import json, sys
from otava.analysis import compute_change_points
for series in json.load(sys.stdin):
    found, _ = compute_change_points(series, window_len=50, max_pvalue=0.001, min_magnitude=0.05)
    print(json.dumps([int(point.index) for point in found]))
"""


def test_otava_finds_the_same_changes() -> None:
    otava = EVERYTHING["otava"]
    if reason := why_unavailable(otava):
        pytest.skip(reason)
    series = [
        history((1.0, 40), (1.2, 30), seed=3),
        history((1.0, 30), (0.7, 30), (1.0, 30), seed=4),
        history((5.0, 60), (5.6, 8), seed=5),
        history((2.0, 80), seed=6),
        history((1.0, 20), (1.3, 20), (1.6, 20), (1.3, 20), seed=7),
    ]
    done = subprocess.run(
        [otava.python, "-c", ORACLE],
        input=json.dumps(series),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    theirs = [json.loads(line) for line in done.stdout.splitlines()]
    ours = [[change.at for change in find_changes(values)] for values in series]
    assert [len(each) for each in ours] == [1, 2, 1, 0, 3]
    for mine, other in zip(ours, theirs, strict=True):
        assert len(mine) == len(other)
        assert all(abs(a - b) <= 1 for a, b in zip(mine, other, strict=True)), (mine, other)


# Verdicts are right, on made-up samples whose truth is known

scipy_stats = importlib.import_module("scipy.stats")


def one(
    before: Sequence[float], after: Sequence[float], better: str = "lower", threshold: float = 0.05
) -> Comparison:
    return compare(
        [
            Pair(
                before=Trials(values=list(before)),
                after=Trials(values=list(after)),
                better=better,
                threshold=threshold,
            )
        ]
    )[0]


def drawn(chance: random.Random, number: int, level: float, noise: float = 0.02) -> list[float]:
    return [level * (1 + chance.gauss(0, noise)) for _ in range(number)]


STEADY = [1.0, 1.01, 0.99, 1.005, 0.995]


def test_what_is_clear_is_said() -> None:
    slower = [2 * value for value in STEADY]
    found = one(STEADY, slower)
    assert (found.verdict, found.change, found.delta) == (ComparisonVerdict.REGRESSED, 1.0, 1.0)
    assert found.interval is not None
    assert 0.9 < found.interval[0] < 1.0 < found.interval[1] < 1.1
    assert one(slower, STEADY).verdict is ComparisonVerdict.IMPROVED
    assert one(STEADY, slower, better="higher").verdict is ComparisonVerdict.IMPROVED
    assert one(STEADY, STEADY).verdict is ComparisonVerdict.UNCHANGED
    unknown = one(STEADY, slower, better="")
    assert (unknown.verdict, "`better`" in unknown.reason) == (ComparisonVerdict.INCONCLUSIVE, True)


def test_thresholds_decide_what_counts() -> None:
    slower = [1.08 * value for value in STEADY]
    assert one(STEADY, slower, threshold=0.05).verdict is ComparisonVerdict.REGRESSED
    assert one(STEADY, slower, threshold=0.2).verdict is ComparisonVerdict.UNCHANGED
    between = one(STEADY, slower, threshold=0.09)
    assert (between.verdict, "may be anything" in between.reason) == (
        ComparisonVerdict.INCONCLUSIVE,
        True,
    )


def test_too_few_trials_are_inconclusive() -> None:
    found = one(STEADY[:4], [9.0] * 2)
    assert found.verdict is ComparisonVerdict.INCONCLUSIVE
    assert found.reason == "5 trials are needed: 1 more trial of A and 3 more trials of B"
    assert (found.before, found.after, found.trials) == (median(STEADY[:4]), 9.0, (4, 2))
    assert one([], []).before is None


def test_noise_is_inconclusive() -> None:
    noisy = Trials(values=[9.0], noisy=4, noise=["the load was 6.1 on 2 cores"])
    found = compare([Pair(before=Trials(values=STEADY), after=noisy)])[0]
    assert found.verdict is ComparisonVerdict.INCONCLUSIVE
    assert found.reason == "4 of 10 trials were measured under noise: the load was 6.1 on 2 cores"


def test_wide_intervals_are_inconclusive_and_say_what_would_help() -> None:
    chance = random.Random(1)
    found = one(drawn(chance, 5, 1.0, 0.1), drawn(chance, 5, 1.0, 0.1))
    assert found.verdict is ComparisonVerdict.INCONCLUSIVE
    assert "trials would tell" in found.reason


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([0.0] * 5, [1.0] * 5),
        ([1e308] * 6, [1e-308] * 6),
        ([1e-308] * 6, [1e308] * 6),
        ([5e-324] * 5, [1.0] * 5),
        ([-1e308] * 5, [1e308] * 5),
        ([0.0, 0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0, 1.0]),
    ],
)
def test_numbers_at_the_edge_do_no_harm(before: list[float], after: list[float]) -> None:
    found = one(before, after)
    numbers = [found.change, found.p, found.delta, *(found.interval or ())]
    assert all(number is None or math.isfinite(number) for number in numbers)
    assert one([0.0] * 5, [0.0] * 5).verdict is ComparisonVerdict.UNCHANGED
    assert one([-2.0] * 5, [-1.0] * 5).verdict is ComparisonVerdict.REGRESSED


def verdicts(
    change: float, trials: int, many: int = 1, rounds: int = 400, noise: float = 0.02
) -> Counter[ComparisonVerdict]:
    """Compare made-up samples again and again; every 20th sample is a spike."""
    chance = random.Random(f"{change} {trials} {many}")

    def group(level: float) -> Trials:
        values = drawn(chance, trials, level, noise)
        return Trials(values=[v * (1.5 if chance.random() < 0.05 else 1) for v in values])

    found: Counter[ComparisonVerdict] = Counter()
    for _ in range(rounds):
        pairs = [Pair(before=group(1), after=group(1 + change)) for _ in range(many)]
        found[
            min((each.verdict for each in compare(pairs)), key=list(ComparisonVerdict).index)
        ] += 1
    return found


def test_false_alarms_are_rare() -> None:
    assert verdicts(0.0, 5, noise=0.05)[ComparisonVerdict.REGRESSED] <= 4
    assert verdicts(0.0, 7, noise=0.05)[ComparisonVerdict.REGRESSED] <= 4
    # The worst of ten.
    assert verdicts(0.0, 7, many=10, rounds=100, noise=0.05)[ComparisonVerdict.REGRESSED] <= 2


def test_real_changes_are_found_and_equal_things_are_unchanged() -> None:
    assert verdicts(0.1, 5)[ComparisonVerdict.REGRESSED] >= 0.7 * 400
    assert verdicts(0.1, 7)[ComparisonVerdict.REGRESSED] >= 0.9 * 400
    assert verdicts(-0.1, 7)[ComparisonVerdict.IMPROVED] >= 0.85 * 400
    assert verdicts(0.0, 7)[ComparisonVerdict.UNCHANGED] >= 0.7 * 400


def test_five_trials_find_what_changed_in_many_series_at_once() -> None:
    slower = [1.5 * value for value in STEADY]
    steady, changed = Trials(values=STEADY), Trials(values=slower)
    pairs = [Pair(before=steady, after=changed)] * 8 + [Pair(before=steady, after=steady)] * 12
    found = [each.verdict for each in compare(pairs)]
    assert found == [ComparisonVerdict.REGRESSED] * 8 + [ComparisonVerdict.UNCHANGED] * 12
    alone = compare([pairs[0], *pairs[8:]])[0]
    assert alone.verdict is ComparisonVerdict.INCONCLUSIVE
    assert alone.reason.endswith("with so many, 6 trials are needed to be sure of one")


# The parts, against others' results.

SAMPLES = st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=9)


@given(SAMPLES, SAMPLES)
@settings(max_examples=40, deadline=None)
def test_the_exact_test_counts_all_ways(first: list[float], second: list[float]) -> None:
    if len(first) + len(second) > 11:
        first, second = first[:5], second[:5]
    everything = [*first, *second]
    ranks = scipy_stats.rankdata(everything)
    middle = len(first) * (len(everything) + 1) / 2
    away = abs(sum(ranks[: len(first)]) - middle)
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, len(first))]
    expected = sum(abs(total - middle) >= away - 1e-9 for total in sums) / len(sums)
    assert mann_whitney(first, second) == pytest.approx(expected)


@pytest.mark.parametrize("sizes", [(5, 5), (7, 12), (30, 25), (200, 150)])
def test_the_test_agrees_with_scipy(sizes: tuple[int, int]) -> None:
    chance = random.Random(sum(sizes))
    first, second = drawn(chance, sizes[0], 1.0), drawn(chance, sizes[1], 1.01)
    method = "exact" if sum(sizes) <= 40 else "asymptotic"
    expected = scipy_stats.mannwhitneyu(first, second, method=method).pvalue
    assert mann_whitney(first, second) == pytest.approx(expected)
    if method == "asymptotic":
        rounded = [round(value, 2) for value in first], [round(value, 2) for value in second]
        expected = scipy_stats.mannwhitneyu(*rounded, method=method).pvalue
        assert mann_whitney(*rounded) == pytest.approx(expected)


def test_equal_samples_are_no_difference() -> None:
    assert mann_whitney([1.0] * 5, [1.0] * 5) == 1.0
    assert mann_whitney([1.0] * 50, [1.0] * 50) == 1.0
    assert mann_whitney(STEADY, [9.0] * 5) == least_p(5, 5) == pytest.approx(2 / 252)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_corrections_agree_with_scipy(probabilities: list[float]) -> None:
    expected = scipy_stats.false_discovery_control(probabilities)
    assert adjusted(probabilities) == pytest.approx(list(expected))


@given(SAMPLES, SAMPLES)
def test_effect_sizes(first: list[float], second: list[float]) -> None:
    pairs = [(a, b) for a in first for b in second]
    expected = sum((b > a) - (b < a) for a, b in pairs) / len(pairs)
    assert cliffs_delta(first, second) == pytest.approx(expected)


@pytest.mark.parametrize("number", [1, 2, 5, 6])
def test_the_bootstrap_is_that_of_all_draws(number: int) -> None:
    chance = random.Random(number)
    values = [chance.random() for _ in range(number)]
    every = Counter(round(median(draw), 9) for draw in itertools.product(values, repeat=number))
    found: Counter[float] = Counter()
    for value, weight in bootstrap(values):
        found[round(value, 9)] += weight  # type: ignore[assignment]
    for value, count in every.items():
        assert found[value] == pytest.approx(count / number**number, abs=1e-3)


@pytest.mark.parametrize("number", [4, 5, 12, 31, 500])
def test_intervals_are_those_of_drawing(number: int) -> None:
    chance = random.Random(number)
    values = [chance.gauss(0, 1) for _ in range(number)]
    medians = sorted(median(chance.choices(values, k=number)) for _ in range(2000))
    low, high = quantiles(bootstrap(values), 0.025, 0.975)
    assert low == pytest.approx(medians[50], abs=0.15)
    assert high == pytest.approx(medians[1950], abs=0.15)


def test_resamples_with_a_median_of_zero_count() -> None:
    """Three of seven were 0 before: what the ratio is, is anybody's guess, not 0 to +100 %."""
    before, after = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], [1.0] * 7
    found = one(before, after)
    assert found.verdict is ComparisonVerdict.INCONCLUSIVE
    assert found.interval is None
    assert "too many of the values are 0" in found.reason


def test_the_interval_is_that_of_95_percent() -> None:
    # Of 11 values, the median of a resample is below the third in 0.5 % of all cases, and below the
    # fourth in 4.2 %: 2.5 % are left out on each side.
    found = one([1.0] * 11, [float(value) for value in range(1, 12)])
    assert found.interval == (2.0, 8.0)
    low = sum(
        math.comb(11, hits) * (2 / 11) ** hits * (9 / 11) ** (11 - hits) for hits in range(6, 12)
    )
    next_one = sum(
        math.comb(11, hits) * (3 / 11) ** hits * (8 / 11) ** (11 - hits) for hits in range(6, 12)
    )
    assert low < 0.025 < next_one < 0.1


def test_many_trials_are_compared_at_once() -> None:
    values = [float(number % 97) + 100 for number in range(200)]
    began = time.monotonic()
    compare([Pair(before=Trials(values=values), after=Trials(values=values[::-1]))])
    assert time.monotonic() - began < 5
