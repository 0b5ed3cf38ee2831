"""What was measured is found again: by run, and over all runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.plan import Plan, Process, Task
from rankwise.store import Store
from rankwise.store.samples import Better, Sample


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path)


def _run(store: Store, name: str = "osu", **tags: str) -> str:
    task = Task(key="one", processes=(Process(name="a", role="a", command="true"),))
    return store.create_run(Plan(name=name, kind="Sweep", tasks=(task,), tags=tags), "", now=1.0)


def _latency(value: float, size: int = 8) -> Sample:
    return Sample(
        metric="latency", value=value, unit="us", better="lower", point={"size": size}, raw=(1, 2)
    )


def test_a_series_goes_over_all_runs(store: Store) -> None:
    first, second = _run(store), _run(store, **{"git.commit": "abc"})
    for run, value in ((first, 1.5), (second, 2.5)):
        for trial in (2, 1):
            samples = [_latency(value + trial), _latency(9.0, size=16)]
            store.add_samples(run, "one", trial, samples, case="ranks=2", trial=trial)
    small, large = store.series(metric="latency")
    assert (small.name, small.case, small.unit, small.better) == ("osu", "ranks=2", "us", "lower")
    assert (small.point, large.point) == ({"size": 8}, {"size": 16})
    history = store.history(small.id)
    assert [row.value for row in history] == [2.5, 3.5, 3.5, 4.5]
    assert [row.run for row in history] == [first, first, second, second]
    assert (history[-1].tags, history[-1].raw) == ({"git.commit": "abc"}, (1, 2))
    assert [row.run for row in store.history(small.id, last_runs=1)] == [second, second]
    assert len(store.samples_of_run(first)) == 4
    assert [row.value for row in store.history(large.id)][:2] == [9.0, 9.0]


def test_an_attempt_that_is_read_again_is_not_counted_twice(store: Store) -> None:
    run = _run(store)
    for _ in range(2):
        store.add_samples(run, "one", 1, [_latency(1.0)], conditions={"load": 0.5})
    assert len(store.samples_of_run(run)) == 1
    assert store.conditions(run) == {("one", 1): {"load": 0.5}}


def test_equal_metrics_in_other_units_or_documents_are_other_series(store: Store) -> None:
    store.add_samples(_run(store), "one", 1, [_latency(1.0)])
    store.add_samples(_run(store, "imb"), "one", 1, [_latency(1.0)])
    store.add_samples(_run(store), "one", 1, [Sample(metric="latency", value=1.0, unit="ms")])
    assert len(store.series(metric="latency")) == 3
    assert len(store.series(metric="latency", name="osu")) == 2


def test_what_is_better_is_what_the_document_says_now(store: Store) -> None:
    said: tuple[Better, ...] = ("lower", "higher")
    for number, better in enumerate(said, 1):
        sample = Sample(metric="bandwidth", value=1.0, unit="MB/s", better=better)
        store.add_samples(_run(store), "one", number, [sample])
        assert [one.better for one in store.series()] == [better]
