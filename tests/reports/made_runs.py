"""Runs in a store as an engine would have left them, without one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rankwise.plan import Plan, Process, Task
from rankwise.store import Outcome, ProcessRow, State, Store

BEGUN = 1_700_000_000.0


def one_task(key: str = "train", *, ranks: int = 2) -> Task:
    """Return a task with workers, and a node for each."""
    workers = tuple(
        Process(
            name=f"worker-{number}",
            role="worker",
            node=number,
            command="python train.py",
            rank=number,
        )
        for number in range(ranks)
    )
    return Task(key=key, processes=workers, nodes=ranks, code="/home/me/src")


def make_run(store: Store, *tasks: Task, name: str = "job") -> str:
    """Store a run that was not started yet."""
    plan = Plan(
        name=name,
        kind="PytorchJob",
        tasks=tasks or (one_task(),),
        experiment="mnist",
        source=str(Path("job.yaml").absolute()),
        notices=("compute gpu-cluster is not known here: local is taken",),
    )
    return store.create_run(plan, "type: PytorchJob\n", now=BEGUN)


def begin(store: Store, run: str, key: str = "train", *, logs: Mapping[str, str]) -> Path:
    """Start an attempt, whose processes have written something already."""
    store.run_started(run, now=BEGUN)
    number = store.task_row(run, key).attempts + 1
    folder = store.folder / "runs" / run / key / str(number)
    for name, text in logs.items():
        place = folder / "processes" / name
        place.mkdir(parents=True)
        (place / "output.log").write_text(text)
    store.begin_attempt(run, key, marker=f"{run}/{key}/{number}", folder=folder, now=BEGUN)
    store.attempt_heard(run, key, number, has_started=True, now=BEGUN + 1)
    return folder


def end(
    store: Store,
    run: str,
    key: str = "train",
    *,
    state: State = State.PASSED,
    exit_code: int = 0,
    culprit: str | None = None,
    reason: str = "",
    after: float = 3.5,
    processes: tuple[ProcessRow, ...] = (),
    is_over: bool = True,
) -> None:
    """End the last attempt, and the task with it."""
    number = store.task_row(run, key).attempts
    ended = BEGUN + after
    outcome = Outcome(state=state, ended=ended, exit_code=exit_code, culprit=culprit, reason=reason)
    store.attempt_ended(run, key, number, outcome, processes)
    if is_over:
        store.task_over(run, key, state, reason=reason, exit_code=exit_code, now=ended)


def worker(
    number: int,
    exit_code: int | None = 0,
    *,
    signal: int | None = None,
    by_us: bool = False,
) -> ProcessRow:
    """Return the record of a worker that has ended."""
    return ProcessRow(
        name=f"worker-{number}",
        role="worker",
        node=number,
        rank=number,
        pid=4000 + number,
        started=BEGUN + 1,
        ended=BEGUN + 3,
        exit_code=exit_code,
        signal=signal,
        peak_memory=200 << 20,
        cpu_seconds=1.5,
        by_us=by_us,
    )


def failed_run(store: Store) -> str:
    """Store a run whose worker 1 has failed with exit code 7."""
    run = make_run(store)
    begin(store, run, logs={"worker-0": "step 1\n", "worker-1": "step 1\nValueError: no\n"})
    end(
        store,
        run,
        state=State.FAILED,
        exit_code=7,
        culprit="worker-1",
        reason="worker 1 exited with code 7",
        processes=(worker(0, None, signal=15, by_us=True), worker(1, 7)),
    )
    store.run_ended(run, State.FAILED, exit_code=7, now=BEGUN + 4)
    return run


def passed_run(store: Store, name: str = "job") -> str:
    """Store a run that has passed."""
    run = make_run(store, name=name)
    begin(store, run, logs={"worker-0": "zero\n", "worker-1": "one\n"})
    end(store, run, processes=(worker(0), worker(1)))
    store.run_ended(run, State.PASSED, exit_code=0, now=BEGUN + 4)
    return run
