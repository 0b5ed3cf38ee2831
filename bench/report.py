"""A report of a thousand cases: how soon it is written, and how large it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench.contestants import Contestant
from bench.environment import BENCH, program, python, variables
from bench.measure import BenchError, Result, take_turns
from bench.table import Table, judge

_CASES = 1000
_TARGET_SECONDS = 3.0
_TARGET_MEGABYTES = 1.0
_FILE = "report.html"

_STORE = """
import sys, time
from pathlib import Path
from rankwise.plan import Plan, Process, Task
from rankwise.store import Outcome, State, Store
from rankwise.store.samples import Sample

number = int(sys.argv[1])
here = Path.cwd()
process = Process(name="worker-0", role="worker", command="./measure")
cases = [{"ranks": str(2 ** (one % 6)), "size": str(one), "trial": "1"} for one in range(number)]
tasks = [
    Task(key=f"case-{one}", folder=str(here), processes=(process,), tags=tags)
    for one, tags in enumerate(cases)
]
plan = Plan(name="many", kind="Sweep", tasks=tuple(tasks), source=f"{here}/none.yaml")
# Two runs: one to report, and one to compare it with.
for factor in (1.0, 1.1):
    with Store.open(Path(".rankwise")) as store:
        run = store.create_run(plan, "type: Sweep\\n", now=time.time())
        store.run_started(run, now=time.time())
        for one, task in enumerate(tasks):
            folder = store.run_folder(run) / task.key / "1"
            place = folder / "processes" / "worker-0"
            place.mkdir(parents=True)
            (place / "output.log").write_text("a line of it\\n" * 100)
            now, is_bad = time.time(), one % 10 == 0
            store.begin_attempt(run, task.key, marker=f"{run}/{one}", folder=folder, now=now)
            store.attempt_heard(run, task.key, 1, has_started=True, now=now)
            state = State.FAILED if is_bad else State.PASSED
            why = f"worker 0 exited with code {one % 7}" if is_bad else ""
            ended = Outcome(state=state, ended=now + 1, culprit="worker-0", reason=why)
            store.attempt_ended(run, task.key, 1, ended, ())
            store.task_over(run, task.key, state, reason=why, exit_code=0, now=now + 1)
            sample = Sample(metric="latency", value=factor * (1 + one), unit="us", better="lower")
            case = f"ranks={task.tags['ranks']} size={one}"
            store.add_samples(run, task.key, 1, [sample], case=case, trial=1)
        store.run_ended(run, State.FAILED, exit_code=1, now=time.time())
"""


def run(folder: Path, repetitions: int) -> Table:
    table = Table(
        title=f"A report of {_CASES:,} cases; medians of {repetitions}",
        headings=("wall s", "fastest", "CPU s", "peak MB", "wall target", "file MB", "file target"),
    )
    stored = python("-c", _STORE, str(_CASES))
    subprocess.run(stored, cwd=folder, env=variables(BENCH), check=True)
    report = program("rankwise", "report", "--html", _FILE)
    contestant = Contestant(
        name="rankwise report --html", command=report, folder=folder, shows=_FILE
    )
    [result] = take_turns([contestant], repetitions)
    _add_row(table, result, folder / _FILE)
    return table


def _add_row(table: Table, result: Result, file: Path) -> None:
    if result.obstacle is not None:
        raise BenchError(result.obstacle)
    megabytes = file.stat().st_size / 1e6
    table.rows.append(
        (
            result.contestant.name,
            f"{result.wall:.2f}",
            f"{result.fastest:.2f}",
            f"{result.cpu:.2f}",
            f"{result.memory / 1e6:.0f}",
            judge(result.wall, _TARGET_SECONDS),
            f"{megabytes:.2f}",
            judge(megabytes, _TARGET_MEGABYTES),
        )
    )
