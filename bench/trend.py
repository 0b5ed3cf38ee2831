"""A store with many samples: how soon it gives the history of a metric."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from bench.contestants import Contestant
from bench.environment import program
from bench.measure import median, take_turns
from bench.table import Table, judge
from rankwise.plan import Plan, Process, Task
from rankwise.reports.measurements import LAST_RUNS, history_of
from rankwise.store import Store
from rankwise.store.samples import Sample

_SIZES = 100
_RUNS = 400
_TRIALS = 5
_TARGET_MILLISECONDS = 50.0
_SEED = 3


def run(folder: Path, repetitions: int) -> Table:
    place = folder / ".rankwise"
    begun = time.perf_counter()
    with Store.open(place) as store:
        _fill(store)
    filled = time.perf_counter() - begun
    table = Table(
        title=f"A store of {_SIZES * _RUNS * _TRIALS:,} samples: {_RUNS} runs, {_SIZES} series, "
        f"{_TRIALS} trials; medians of {repetitions}",
        headings=("ms", "fastest", "CPU ms", "target"),
    )
    with Store.open(place, read_only=True) as store:
        series = next(each for each in store.series(metric="latency") if each.point["size"] == 50)
        store.history(series.id, last_runs=1)
        asked = _milliseconds(lambda: store.history(series.id, last_runs=LAST_RUNS), repetitions)
        name = f"history of a series, the last {LAST_RUNS} runs"
        table.rows.append(_row(name, asked, _TARGET_MILLISECONDS))
        asked = _milliseconds(lambda: store.history(series.id), repetitions)
        table.rows.append(_row("history of a series, all runs", asked, _TARGET_MILLISECONDS))
        trend = _milliseconds(lambda: history_of(store, series), repetitions)
        table.rows.append(_row(f"the last {LAST_RUNS} runs, with the changes found", trend, None))
    command = program("rankwise", "trend", "latency", "--case", "size=50")
    contestant = Contestant(name="rankwise trend", command=command, folder=folder, shows="latency")
    (whole,) = take_turns([contestant], repetitions)
    seconds = [(1000 * sample.wall, 1000 * sample.cpu) for sample in whole.samples]
    table.rows.append(_row("rankwise trend, the whole command", seconds, None))
    table.remarks.append(f"Filling the store took {filled:.0f} s.")
    return table


def _fill(store: Store) -> None:
    chance = random.Random(_SEED)
    task = Task(key="one", processes=(Process(name="a", role="a", command="true"),))
    for number in range(_RUNS):
        tags = {"git.commit": f"{number:040x}", "git.branch": "main"}
        plan = Plan(name="osu", kind="Sweep", tasks=(task,), tags=tags)
        run = store.create_run(plan, "", now=1e9 + number)
        for trial in range(1, _TRIALS + 1):
            samples = [
                Sample(
                    metric="latency",
                    value=chance.gauss(10, 0.5),
                    unit="us",
                    better="lower",
                    point={"size": size},
                )
                for size in range(_SIZES)
            ]
            store.add_samples(run, "one", trial, samples, case="ranks=2", trial=trial)


def _milliseconds(act: Callable[[], object], repetitions: int) -> list[tuple[float, float]]:
    """Measure something: the time that it took, and that of the CPU."""
    taken = []
    for _ in range(repetitions):
        begun, used = time.perf_counter(), time.process_time()
        act()
        spent = (time.perf_counter() - begun, time.process_time() - used)
        taken.append((1000 * spent[0], 1000 * spent[1]))
    return taken


def _row(name: str, taken: list[tuple[float, float]], target: float | None) -> tuple[str, ...]:
    wall, cpu = ([each[column] for each in taken] for column in (0, 1))
    shown = (f"{median(wall):.1f}", f"{min(wall):.1f}", f"{median(cpu):.1f}")
    return name, *shown, judge(median(wall), target)
