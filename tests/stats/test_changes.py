"""Changes are found where they are; another program, Apache Otava, finds them as well."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest
from environments import EVERYTHING, why_unavailable

from rankwise.errors import InputError
from rankwise.stats.change_points import find_changes
from rankwise.stats.comparison import median


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


def test_what_nobody_would_look_for_is_left_out() -> None:
    values = history((1.0, 100), (1.004, 100), noise=0.001)
    assert find_changes(values) == []
    assert [c.at for c in find_changes(values, least_change=0.0)] == [100]


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
