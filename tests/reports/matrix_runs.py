"""A matrix in a store, as an engine and its runners would have left it, without them."""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankwise.plan import Plan, Process, Task
from rankwise.store import State, Store
from tests.reports.made_runs import BEGUN, begin, end

OLD = {"numpy": "1.26.4", "pandas": "1.5.3", "matplotlib": "3.7.5", "pip": "24.0", "six": "1.16.0"}
NEW = {
    "numpy": "2.3.1",
    "pandas": "2.3.0",
    "matplotlib": "3.10.3",
    "pip": "24.0",
    "tzdata": "2025.2",
}
PACKAGES = {"old": OLD, "new": NEW, "torch": {**NEW, "torch": "2.13.0", "sympy": "1.14.0"}}
PYTHONS = {"old": "3.9.18", "new": "3.12.1", "torch": "3.12.1"}
EPYC = {"model": "AMD EPYC 7763", "count": 2, "usable": 2, "flags": ["avx", "avx2", "fma"]}
XEON = {
    "model": "Intel Xeon Platinum 8480+",
    "count": 112,
    "usable": 16,
    "flags": ["amx_tile", "avx", "avx2", "avx512f", "avx512_vnni", "fma"],
}
GPU = {"name": "NVIDIA A100", "driver": "570.86", "cuda": "12.8", "memory": 40 << 30}
MACHINES = {"laptop": EPYC, "cluster": XEON, "gpu": XEON}
BROKEN = """\
Traceback (most recent call last):
  File "analysis.ipynb", cell 4, line 2
    values = np.float_(frame.numbers)
AttributeError: `np.float_` was removed in the NumPy 2.0 release; numpy says: use `np.float64`
"""


def environment(runtime: str, machine: str) -> dict[str, Any]:
    """Return what `surroundings.py` would say there."""
    return {
        "version": 1,
        "python": {"version": PYTHONS.get(runtime, "3.12.1"), "implementation": "CPython"},
        "packages": PACKAGES.get(runtime, NEW),
        "system": {"distribution": "Debian 12", "kernel": "6.1.0", "libc": "glibc 2.36"},
        "cpu": MACHINES.get(machine, EPYC),
        "memory": (16 << 30) if machine == "laptop" else (512 << 30),
        "gpus": [GPU] if machine == "gpu" else [],
        "variables": ["OMP_NUM_THREADS"],
    }


@dataclass(frozen=True, kw_only=True)
class Done:
    """What became of one test in one cell."""

    state: State = State.PASSED
    log: str = "all is well\n"
    reason: str = ""
    took: float = 3.0
    is_soft: bool = False
    is_left_out: bool = False
    pictures: Sequence[bytes] = ()
    environment: Mapping[str, Any] | None = field(default=None)


def tags_of(runtime: str, machine: str, test: str, *, soft: bool = False) -> dict[str, str]:
    """Return the tags that a plan gives to a test of a cell."""
    part = "environment" if test == "environment" else "test"
    tags = {"runtime": runtime, "machine": machine, "test": test, "part": part}
    return {**tags, "soft_fail": "true"} if soft else tags


def make_matrix(
    store: Store, cells: Mapping[tuple[str, str, str], Done], name: str = "grid"
) -> str:
    """Store a matrix in which that became of every test, by runtime, machine and test."""
    tasks = [
        Task(
            key=f"{number}-{''.join(one for one in test if one.isalnum())}",
            processes=(Process(name="main", role="main", command=f"run {test}"),),
            tags=tags_of(runtime, machine, test, soft=done.is_soft),
            is_soft=done.is_soft,
            skip=done.reason if done.is_left_out else "",
        )
        for number, ((runtime, machine, test), done) in enumerate(cells.items())
    ]
    plan = Plan(
        name=name, kind="Matrix", tasks=tuple(tasks), source=str(Path("grid.yaml").absolute())
    )
    run = store.create_run(plan, "type: Matrix\n", now=BEGUN)
    store.run_started(run, now=BEGUN)
    for task, done in zip(tasks, cells.values(), strict=True):
        _become(store, run, task.key, done)
    states = {done.state for done in cells.values() if not done.is_soft}
    if all(state.is_over for state in states):
        is_well = all(state.is_green for state in states)
        store.run_ended(
            run,
            State.PASSED if is_well else State.FAILED,
            exit_code=0 if is_well else 1,
            now=BEGUN + 60,
        )
    return run


def _become(store: Store, run: str, key: str, done: Done) -> None:
    if done.state in (State.SKIPPED, State.NOT_RUN):
        store.task_over(run, key, done.state, reason=done.reason, exit_code=None, now=BEGUN)
        return
    if done.state is State.QUEUED:
        return
    log = done.log if done.environment is None else json.dumps(done.environment) + "\n"
    folder = begin(store, run, key, logs={"main": log})
    if done.took > 1:
        (folder / "usage.json").write_text(json.dumps(_usage(done.took)))
    if done.pictures:
        _write_notebook(folder / "notebook", done.pictures)
    if done.state.is_over:
        code = 0 if done.state is State.PASSED else 1
        end(
            store,
            run,
            key,
            state=done.state,
            exit_code=code,
            culprit=None if code == 0 else "main",
            reason=done.reason,
            after=1 + done.took,
        )


def _usage(seconds: float) -> dict[str, Any]:
    times = [0.5 * step for step in range(1, int(seconds * 2) + 1)]
    return {
        "version": 1,
        "began": BEGUN,
        "cores": 2,
        "time": times,
        "cpu": [round(1 + math.sin(one), 3) for one in times],
        "memory": [round(2e8 + 9e7 * one**0.5) for one in times],
        "cpu_seconds": seconds,
        "peak_memory": round(2e8 + 9e7 * times[-1] ** 0.5),
    }


def picture(shade: int, width: int = 160, height: int = 100) -> bytes:
    """Draw a PNG: a curve on paper."""
    rows = []
    for y in range(height):
        row = bytearray(b"\xff" * width)
        for x in range(width):
            if abs(y - height / 2 - 0.4 * height * math.sin(x / 12 + shade)) < 2:
                row[x] = shade
        rows.append(b"\0" + bytes(row))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b""))
    made = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def _write_notebook(folder: Path, pictures: Sequence[bytes]) -> None:
    outputs = [
        {"output_type": "display_data", "data": {"image/png": base64.b64encode(one).decode()}}
        for one in pictures
    ]
    cells = [{"cell_type": "code", "source": "plot()", "outputs": [one]} for one in outputs]
    folder.mkdir()
    (folder / "analysis.ipynb").write_text(json.dumps({"cells": cells}))
    (folder / "analysis.html").write_text("<p>analysis")


def typical() -> dict[tuple[str, str, str], Done]:
    """Return a matrix of five runtimes and three machines in which everything happens."""
    cells: dict[tuple[str, str, str], Done] = {}
    for number, runtime in enumerate(("old", "new", "torch")):
        for machine in ("laptop", "cluster", "gpu"):
            if machine == "gpu" and runtime != "torch":
                reason = "needs gpu, which it does not use" if runtime == "old" else "excluded"
                for test in ("smoke.sh", "analysis.ipynb", "modern.ipynb"):
                    cells[runtime, machine, test] = Done(state=State.SKIPPED, reason=reason)
                continue
            around = environment(runtime, machine)
            cells[runtime, machine, "environment"] = Done(environment=around, took=0.4)
            cells[runtime, machine, "smoke.sh"] = Done(took=0.2)
            drawn = picture(20 * number)
            own = "training.ipynb" if runtime == "torch" else "analysis.ipynb"
            cells[runtime, machine, own] = Done(pictures=[drawn], took=12.5)
            cells[runtime, machine, "modern.ipynb"] = Done(took=7.5)
    for machine in ("laptop", "cluster"):
        cells["new", machine, "analysis.ipynb"] = Done(
            state=State.FAILED, log=BROKEN, reason="cell 4: AttributeError", took=4.0
        )
        cells["old", machine, "modern.ipynb"] = Done(
            state=State.FAILED,
            log="ModuleNotFoundError: No module named 'tzdata'\n",
            reason="cell 1: ModuleNotFoundError",
        )
    cells["torch", "cluster", "modern.ipynb"] = Done(state=State.RUNNING, took=2.0)
    cells["torch", "laptop", "modern.ipynb"] = Done(
        state=State.TIMED_OUT, reason="the time limit of 60 s was reached", took=60.0, is_soft=True
    )
    pip = "ERROR: No matching distribution found for tensorflow==1.15\n"
    for machine in ("laptop", "cluster"):
        cells["ancient", machine, "environment"] = Done(
            state=State.FAILED, log=pip, reason="uv exited with code 1", took=2.0
        )
        for test in ("smoke.sh", "analysis.ipynb"):
            cells["ancient", machine, test] = Done(
                state=State.NOT_RUN, reason="needs its environment, which failed"
            )
    for test in ("smoke.sh", "analysis.ipynb"):
        cells["ancient", "gpu", test] = Done(
            state=State.NOT_RUN, reason="needs gpu, found none", is_left_out=True
        )
    cells["future", "laptop", "environment"] = Done(
        state=State.NOT_RUN, reason=f"its runtime could not be made:\n{pip}", is_soft=True
    )
    cells["future", "laptop", "smoke.sh"] = Done(
        state=State.NOT_RUN, reason=f"its runtime could not be made:\n{pip}"
    )
    return cells
