"""Runs to be looked at, put into a store as an engine would, without the hours that they take."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankwise.plan import Plan, Process, Resources, Task
from rankwise.store import Outcome, ProcessRow, ResultRow, State, Store
from rankwise.store.samples import Sample

_PYTEST = ("test_ring", "test_halo", "test_reduce", "test_scatter", "test_io", "test_restart")
_STAGES: Mapping[str, tuple[str, ...]] = {
    "checkout": (),
    "build-gcc": ("checkout",),
    "build-clang": ("checkout",),
    "unit-tests": ("build-gcc",),
    "mpi-tests": ("build-gcc", "build-clang"),
    "docs": ("checkout",),
    "package": ("unit-tests", "mpi-tests"),
    "benchmark": ("package",),
    "deploy": ("package", "docs"),
    "on-failure": ("mpi-tests",),
}
_FAILURE = (
    "mesh of 4096 cells on 4 ranks\n"
    "\x1b[32mstep 1\x1b[0m residual 3.1e-02\n"
    "\x1b[32mstep 2\x1b[0m residual 8.8e-03\n"
    "Traceback (most recent call last):\n"
    '  File "halo.py", line 41, in exchange\n'
    "    comm.Recv(ghost, source=left)\n"
    "\x1b[31mmpi4py.MPI.Exception: MPI_ERR_TRUNCATE: message truncated\x1b[0m\n"
)


def task(key: str, *, ranks: int = 1, **more: object) -> Task:
    """Return a task with so many ranks."""
    processes = tuple(
        Process(name=f"rank-{rank}", role="rank", command="python solve.py", rank=rank)
        for rank in range(ranks)
    )
    return Task(
        key=key,
        processes=processes,
        folder="/home/me/solver",
        resources=Resources(cores=ranks),
        **more,  # type: ignore[arg-type]  # of each its own
    )


def make_run(
    store: Store,
    name: str,
    kind: str,
    tasks: Sequence[Task],
    *,
    at: float,
    tags: Mapping[str, str] | None = None,
    source: str = "",
) -> str:
    """Store a run that has begun."""
    plan = Plan(
        name=name,
        kind=kind,
        tasks=tuple(tasks),
        experiment="solver",
        source=source or f"/home/me/solver/{name}.yaml",
        tags=tags or {"git.branch": "main", "git.commit": "3f2a91c0d4e5"},
    )
    run = store.create_run(plan, f"type: {kind}\nname: {name}\n", now=at)
    store.run_started(run, now=at)
    return run


def begin(store: Store, run: str, key: str, *, at: float, logs: Mapping[str, str]) -> Path:
    """Start an attempt whose processes have written something."""
    number = store.task_row(run, key).attempts + 1
    folder = store.run_folder(run) / key.replace("/", "_")[:80] / str(number)
    for name, text in logs.items():
        place = folder / "processes" / name
        place.mkdir(parents=True)
        (place / "output.log").write_bytes(text.encode(errors="surrogateescape"))
    store.begin_attempt(run, key, marker=f"{run}/{key}/{number}", folder=folder, now=at)
    store.attempt_heard(run, key, number, has_started=True, now=at)
    return folder


def end(
    store: Store,
    run: str,
    key: str,
    *,
    at: float,
    state: State = State.PASSED,
    reason: str = "",
    ranks: int = 1,
) -> None:
    """End the last attempt of a task, and the task."""
    number = store.task_row(run, key).attempts
    attempt = store.attempts(run, key)[-1]
    code = 0 if state.is_green else 1
    culprit = None if state.is_green else "rank-0"
    outcome = Outcome(state=state, ended=at, exit_code=code, culprit=culprit, reason=reason)
    rows = [
        ProcessRow(
            name=f"rank-{rank}",
            role="rank",
            rank=rank,
            started=attempt.started,
            ended=at,
            exit_code=code if rank == 0 else 0,
            peak_memory=(180 + 7 * rank) << 20,
            cpu_seconds=max(0.1, at - (attempt.started or at)) * 0.9,
            by_us=bool(code) and rank > 0,
        )
        for rank in range(ranks)
    ]
    store.attempt_ended(run, key, number, outcome, rows)
    store.task_over(run, key, state, reason=reason, exit_code=code, now=at)


def finish(store: Store, run: str, *, at: float) -> None:
    """End a run as its tasks say."""
    counts = store.counts(run)
    is_red = any(count for state, count in counts.items() if state.is_over and not state.is_green)
    state = State.FAILED if is_red else State.PASSED
    store.run_ended(run, state, exit_code=int(is_red), now=at)


def add_many(store: Store, *, tasks: int, done: int, at: float, name: str = "nightly") -> str:
    """Add a run of many tasks that is under way; one in 97 has failed."""
    with store.together():
        run = make_run(
            store, name, "Suite", [task(f"case-{number:05}") for number in range(tasks)], at=at
        )
        for number in range(done):
            key, start = f"case-{number:05}", at + number * 0.02
            logs = {"rank-0": f"case {number}\ndone\n"} if number < 20 else {}
            begin(store, run, key, at=start, logs=logs)
            is_bad = number % 97 == 41
            end(
                store,
                run,
                key,
                at=start + 0.02 + (number * 7919 % 100) / 400,
                state=State.FAILED if is_bad else State.PASSED,
                reason="rank 0 exited with code 1" if is_bad else "",
            )
    return run


def add_pipeline(store: Store, *, at: float) -> str:
    """Add a pipeline of which a stage has failed, and which goes on."""
    stages = [
        task(key, needs=needs, when="failed" if key == "on-failure" else "passed")
        for key, needs in _STAGES.items()
    ]
    run = make_run(store, "release", "Pipeline", stages, at=at)
    clock = at
    for key in ("checkout", "build-gcc", "build-clang", "unit-tests", "docs"):
        begin(store, run, key, at=clock, logs={"rank-0": f"{key}: done\n"})
        clock += 14.0 if key.startswith("build") else 3.0
        end(store, run, key, at=clock)
    begin(store, run, "mpi-tests", at=clock, logs={"rank-0": _FAILURE})
    reason = "rank 0 exited with code 1"
    end(store, run, "mpi-tests", at=clock + 9, state=State.FAILED, reason=reason)
    for key in ("package", "benchmark", "deploy"):
        store.task_over(run, key, State.NOT_RUN, reason="needs mpi-tests, failed", now=clock + 9)
    begin(store, run, "on-failure", at=clock + 9, logs={"rank-0": "collecting cores\n"})
    return run


def add_tests(store: Store, *, at: float) -> str:
    """Add a suite with ranks, single tests of pytest, and a failure."""
    sizes = {"unit": 1, "ring": 4, "halo": 4, "io": 2, "restart": 2, "scaling": 8}
    run = make_run(
        store, "checks", "Suite", [task(key, ranks=ranks) for key, ranks in sizes.items()], at=at
    )
    clock = at
    for number, (key, ranks) in enumerate(sizes.items()):
        is_bad = key == "halo"
        text = _FAILURE if is_bad else f"{key}: all is well\n"
        logs = {f"rank-{rank}": text if rank == 0 else f"rank {rank}\n" for rank in range(ranks)}
        begin(store, run, key, at=clock, logs=logs)
        clock += 2.0 + number
        results = [
            ResultRow(
                name=f"tests/{key}.py::{name}",
                state=State.FAILED if is_bad and place == 2 else State.PASSED,
                seconds=0.2 + 0.31 * place,
                message="E   assert 3 == 4" if is_bad and place == 2 else "",
            )
            for place, name in enumerate(_PYTEST)
        ]
        store.add_results(run, key, 1, results)
        end(
            store,
            run,
            key,
            at=clock,
            state=State.FAILED if is_bad else State.PASSED,
            reason="rank 0 exited with code 1" if is_bad else "",
            ranks=ranks,
        )
    finish(store, run, at=clock)
    return run


def add_matrix(store: Store, *, at: float) -> str:
    """Add a matrix of three runtimes on three machines."""
    places = [
        (runtime, machine, test)
        for runtime in ("py311-mpich", "py312-openmpi", "py313-intel")
        for machine in ("laptop", "cluster", "gpu-node")
        for test in ("smoke", "notebook")
    ]
    tasks = [
        task(f"{r}.{m}.{t}", tags={"runtime": r, "machine": m, "test": t}) for r, m, t in places
    ]
    run = make_run(store, "everywhere", "Matrix", tasks, at=at)
    for number, (runtime, machine, test) in enumerate(places):
        key, start = f"{runtime}.{machine}.{test}", at + 2 * number
        if runtime == "py313-intel" and machine == "gpu-node":
            store.task_over(run, key, State.NOT_RUN, reason="needs 1 GPU, found 0", now=start)
            continue
        is_bad = runtime == "py312-openmpi" and machine == "cluster" and test == "notebook"
        begin(store, run, key, at=start, logs={"rank-0": _FAILURE if is_bad else "fine\n"})
        reason = "cell 4 raised ModuleNotFoundError: No module named 'h5py'" if is_bad else ""
        state = State.FAILED if is_bad else State.PASSED
        end(store, run, key, at=start + 1.5, state=state, reason=reason)
    finish(store, run, at=at + 2 * len(places))
    return run


def add_history(store: Store, *, runs: int, at: float) -> list[str]:
    """Add runs of a benchmark that became slower at two thirds of them."""
    chance = random.Random(7)
    made = []
    for number in range(runs):
        when = at + 3600 * number
        commit = f"{number * 2654435761 % 2**40:010x}"
        tags = {"git.branch": "main", "git.commit": commit}
        run = make_run(
            store, "osu", "Sweep", [task("size=8"), task("size=65536")], at=when, tags=tags
        )
        for place, key in enumerate(("size=8", "size=65536")):
            begin(store, run, key, at=when + place, logs={})
            level = (1.3, 21.0)[place] * (1.22 if number >= 2 * runs // 3 else 1.0)
            values = [level * math.exp(chance.gauss(0, 0.02)) for _ in range(5)]
            samples = [
                Sample(metric="latency", value=one, unit="us", better="lower") for one in values
            ]
            store.add_samples(run, key, 1, samples, case=key)
            end(store, run, key, at=when + place + 0.9)
        finish(store, run, at=when + 2)
        made.append(run)
    return made
