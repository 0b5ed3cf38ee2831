"""Plain pytest with the plugin installed and nothing for it to do."""

from __future__ import annotations

from pathlib import Path

from bench import suites
from bench.environment import NO_RANKWISE, NO_XDIST, pytest
from bench.measure import Contestant, median, take_turns
from bench.table import Table, judge

# The difference is a hundredth of what is measured, so it needs more than a few rounds.
_LEAST_REPETITIONS = 20
_TARGET_MILLISECONDS = 10.0


def run(folder: Path, repetitions: int) -> Table:
    suite = suites.write_serial(folder / "startup", 1)
    without = Contestant(
        name="pytest -p no:rankwise",
        command=pytest(*NO_XDIST, *NO_RANKWISE),
        folder=suite,
        shows="1 passed",
    )
    installed = Contestant(name="pytest", command=pytest(*NO_XDIST), folder=suite, shows="1 passed")
    rounds = max(repetitions, _LEAST_REPETITIONS)
    samples = take_turns([without, installed], rounds)
    table = Table(
        title=f"One trivial test, plugin installed and unused; medians of {rounds}",
        headings=("wall ms", "fastest", "CPU ms"),
    )
    for contestant in (without, installed):
        wall = [1000 * sample.wall for sample in samples[contestant.name]]
        cpu = [1000 * sample.cpu for sample in samples[contestant.name]]
        table.rows.append(
            (contestant.name, f"{median(wall):.1f}", f"{min(wall):.1f}", f"{median(cpu):.1f}")
        )
    pairs = list(zip(samples[installed.name], samples[without.name], strict=True))
    later = median([1000 * (own.wall - other.wall) for own, other in pairs])
    more_cpu = median([1000 * (own.cpu - other.cpu) for own, other in pairs])
    fastest = 1000 * (min(own.wall for own, _ in pairs) - min(other.wall for _, other in pairs))
    table.rows.append(("later by", f"{later:+.1f}", f"{fastest:+.1f}", f"{more_cpu:+.1f}"))
    table.remarks.append(f"wall ms: {judge(later, _TARGET_MILLISECONDS)}")
    return table
