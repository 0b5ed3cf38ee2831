"""Plain pytest with the plugin installed and nothing for it to do."""

from __future__ import annotations

from pathlib import Path

from bench import spellings, suites
from bench.contestants import Contestant
from bench.environment import BENCH, NO_RANKWISE, PLUGINS, VirtualEnvironment, prepare, pytest
from bench.measure import median, take_turns
from bench.table import Table, judge

# The difference is a hundredth of what is measured, so it needs more than a few rounds.
_LEAST_REPETITIONS = 20
_TARGET_MILLISECONDS = 10.0


def run(folder: Path, repetitions: int) -> list[Table]:
    suite = suites.write(folder / "startup", 1, spellings.SERIAL)
    rounds = max(repetitions, _LEAST_REPETITIONS)
    prepare(PLUGINS)
    return [
        _measure(suite, rounds, BENCH, ""),
        _measure(suite, rounds, PLUGINS, ", beside the most common plugins of pytest"),
    ]


def _measure(suite: Path, rounds: int, environment: VirtualEnvironment, where: str) -> Table:
    without, installed = take_turns(
        [
            Contestant(
                name="pytest -p no:rankwise",
                command=pytest(*NO_RANKWISE, environment=environment),
                folder=suite,
                shows="1 passed",
                own_environment=environment,
            ),
            Contestant(
                name="pytest",
                command=pytest(environment=environment),
                folder=suite,
                shows="1 passed",
                own_environment=environment,
            ),
        ],
        rounds,
    )
    table = Table(
        title=f"One trivial test, plugin installed and unused{where}; medians of {rounds}",
        headings=("wall ms", "fastest", "CPU ms"),
    )
    for result in (without, installed):
        least = min(sample.wall for sample in result.samples)
        milliseconds = [f"{1000 * seconds:.1f}" for seconds in (result.wall, least, result.cpu)]
        table.rows.append((result.contestant.name, *milliseconds))
    pairs = list(zip(installed.samples, without.samples, strict=True))
    later = median([1000 * (own.wall - other.wall) for own, other in pairs])
    more_cpu = median([1000 * (own.cpu - other.cpu) for own, other in pairs])
    fastest = 1000 * (min(own.wall for own, _ in pairs) - min(other.wall for _, other in pairs))
    table.rows.append(("later by", f"{later:+.1f}", f"{fastest:+.1f}", f"{more_cpu:+.1f}"))
    table.remarks.append(f"wall ms: {judge(later, _TARGET_MILLISECONDS)}")
    return table
