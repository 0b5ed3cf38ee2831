"""How soon something is to be seen: `rankwise --help`, and the process that a runner starts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.contestants import Contestant
from bench.environment import BENCH, program, python, variables
from bench.measure import Result, median, take_turns
from bench.peers import Peer, version
from bench.table import Table, judge

# Milliseconds are measured here.
_LEAST_REPETITIONS = 20
_HELP_MILLISECONDS = 150.0
_RUNNER_MILLISECONDS = 30.0
# Some seconds each.
_PEER_ROUNDS = 3

# As the engine does it, with what it loads once for all tasks already there.
_RUNNERS = """
import json, os, sys, time
from pathlib import Path
from queue import SimpleQueue
from rankwise.backends.base import Attempt, Submission
from rankwise.backends.local import LocalBackend
from rankwise.plan import Process, Resources, Task
from rankwise.runtimes.base import PreparedRuntime

here = Path.cwd()
updates = SimpleQueue()
backend = LocalBackend(Resources(cores=1), updates)
process = Process(name="worker-0", role="worker", command=("true",))
task = Task(key="task", folder=str(here), processes=(process,))
found = []
for number in range(int(sys.argv[1])):
    folder = here / str(number)
    folder.mkdir()
    attempt = Attempt(label=f"bench/{number}", marker=f"rw-bench-{number}", folder=folder)
    before, begun = os.times(), time.time()
    backend.submit(Submission(attempt=attempt, task=task, runtime=PreparedRuntime()))
    while updates.get(timeout=60).end is None:
        pass
    ended, after = time.time(), os.times()
    started = json.loads((folder / "processes/worker-0/start.json").read_text())["started"]
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    found.append([started - begun, ended - begun, cpu])
backend.close()
print(json.dumps(found[1:]))
"""


def run(folder: Path, repetitions: int) -> Table:
    rounds = max(repetitions, _LEAST_REPETITIONS)
    table = Table(
        title=f"From a start to its first effect; medians of {rounds}",
        headings=("wall ms", "fastest", "CPU ms", "target"),
    )
    results = take_turns(
        [
            Contestant(name="python -c pass", command=_bare("-c"), folder=folder, shows=""),
            _help("rankwise", folder, "Usage: rankwise"),
            _help("snakemake", folder, "usage: snakemake", Peer.SNAKEMAKE),
            _help("reframe", folder, "usage: reframe", Peer.REFRAME),
            Contestant(
                name="python -I -S -c pass",
                command=_bare("-I", "-S", "-c"),
                folder=folder,
                shows="",
            ),
        ],
        rounds,
    )
    for result in results:
        is_ours = "rankwise" in result.contestant.name
        _add_result(table, result, _HELP_MILLISECONDS if is_ours else None)
    starts, ends, cpus = _runners(folder, rounds)
    _add_row(table, "runner, until its process starts", starts, (), _RUNNER_MILLISECONDS)
    _add_row(table, "runner, until it has ended", ends, cpus, None)
    table.remarks.append("The runner is that of a task that runs `true`, from submit on.")
    there = [one.contestant.peer for one in results if one.obstacle is None]
    table.remarks.append(
        f"Peers, in {_PEER_ROUNDS} rounds: "
        f"{', '.join(f'{peer} {version(peer)}' for peer in there if peer) or 'none'}."
    )
    return table


def _bare(*arguments: str) -> list[str]:
    return python(*arguments, "pass")


def _help(name: str, folder: Path, shows: str, peer: Peer | None = None) -> Contestant:
    return Contestant(
        name=f"{name} --help",
        command=program(name, "--help", environment=peer.environment if peer else BENCH),
        folder=folder,
        shows=shows,
        peer=peer,
        most_rounds=_PEER_ROUNDS if peer else None,
    )


def _runners(folder: Path, rounds: int) -> tuple[Sequence[float], ...]:
    """Start runners one after the other: when their processes start, when they end, their CPU."""
    done = subprocess.run(
        python("-c", _RUNNERS, str(rounds + 1)),
        cwd=folder,
        env=variables(BENCH),
        stdout=subprocess.PIPE,
        check=True,
    )
    return tuple(zip(*json.loads(done.stdout), strict=True))


def _add_result(table: Table, result: Result, target: float | None) -> None:
    name, samples = result.contestant.name, result.samples
    if result.obstacle is None:
        walls = [sample.wall for sample in samples]
        _add_row(table, name, walls, [sample.cpu for sample in samples], target)
    else:
        table.rows.append((name, *("-" for _ in table.headings)))
        table.remarks.append(f"{name} {result.obstacle}")


def _add_row(
    table: Table, name: str, walls: Sequence[float], cpus: Sequence[float], target: float | None
) -> None:
    wall, fastest = 1000 * median(walls), 1000 * min(walls)
    cpu = f"{1000 * median(cpus):.1f}" if cpus else ""
    table.rows.append((name, f"{wall:.1f}", f"{fastest:.1f}", cpu, judge(wall, target)))
