"""A store with many queued tasks: how soon it says how a run stands, and what driving one takes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.contestants import Contestant
from bench.environment import BENCH, program, python, variables
from bench.measure import BenchError, Result, take_turns
from bench.table import Table, judge

_TASKS = 10_000
_TARGET_SECONDS = 0.3
_TARGET_MEGABYTES = 150.0
_MOST_SECONDS = 600.0
_LOOK_SECONDS = 0.02

_STORE = """
import sys, time
from pathlib import Path
from rankwise.plan import Plan, Process, Task
from rankwise.store import Store

here = str(Path.cwd())
process = Process(name="worker-0", role="worker", command="true")
tasks = [
    Task(key=f"task-{number}", folder=here, processes=(process,))
    for number in range(int(sys.argv[1]))
]
plan = Plan(name="queued", kind="command", tasks=tuple(tasks), source=f"{here}/none.yaml")
with Store.open(Path(".rankwise")) as store:
    store.create_run(plan, "", now=time.time())
"""


def run(folder: Path, repetitions: int) -> Table:
    table = Table(
        title=f"A run of {_TASKS:,} queued tasks; medians of {repetitions}",
        headings=("wall s", "fastest", "CPU s", "peak MB", "wall target", "memory target"),
    )
    stored = python("-c", _STORE, str(_TASKS))
    subprocess.run(stored, cwd=folder, env=variables(BENCH), check=True)
    commands = ("status", "list", "explain")
    for result in take_turns([_asks(folder, verb) for verb in commands], repetitions):
        _add_row(table, result)
    engine = _Engine(folder)
    with engine.at_work():
        while_driven = take_turns([_asks(folder, "status", " while it is driven")], repetitions)
    _add_row(table, while_driven[0])
    for name, seconds in engine.seconds.items():
        peak = engine.peak if name == _Engine.ENDED else None
        shown = ("", "") if peak is None else (f"{peak:.0f}", judge(peak, _TARGET_MEGABYTES))
        table.rows.append((name, f"{seconds:.2f}", "", "", shown[0], "", shown[1]))
    table.remarks.append("What the engine does is measured once. Its peak is that until its end.")
    return table


def _asks(folder: Path, verb: str, suffix: str = "") -> Contestant:
    shows = "queued-1" if verb != "explain" else ""
    name = f"rankwise {verb}{suffix}"
    return Contestant(name=name, command=program("rankwise", verb), folder=folder, shows=shows)


def _add_row(table: Table, result: Result) -> None:
    megabytes = result.memory / 1e6
    table.rows.append(
        (
            result.contestant.name,
            f"{result.wall:.3f}",
            f"{result.fastest:.3f}",
            f"{result.cpu:.3f}",
            f"{megabytes:.0f}",
            judge(result.wall, _TARGET_SECONDS) if "status" in result.contestant.name else "",
            judge(megabytes, _TARGET_MEGABYTES),
        )
    )


class _Engine:
    """A `rankwise resume` that is ended before it is done."""

    STARTED = "rankwise resume, until its first task has started"
    ENDED = "rankwise resume, from SIGTERM to its end"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seconds: dict[str, float] = {}
        self.peak = 0.0
        """In megabytes."""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Have it drive the run meanwhile."""
        begun = time.perf_counter()
        process = subprocess.Popen(
            program("rankwise", "resume", "--quiet"),
            cwd=self._folder,
            env=variables(BENCH),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._wait_for_start(process)
            self.seconds[self.STARTED] = time.perf_counter() - begun
            yield
            begun = time.perf_counter()
            process.send_signal(signal.SIGTERM)
            _, _, usage = os.wait4(process.pid, 0)
            process.returncode = 0
            self.seconds[self.ENDED] = time.perf_counter() - begun
            self.peak = usage.ru_maxrss * 1024 / 1e6
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()

    def _wait_for_start(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _MOST_SECONDS
        while not any(self._folder.glob(".rankwise/runs/queued-1/*/1/processes/*/start.json")):
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"rankwise resume has started nothing: {process.returncode}")
            time.sleep(_LOOK_SECONDS)
