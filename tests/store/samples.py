"""Plans, outcomes and whole lives of tasks to test stores with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankwise.plan import Plan, Process, Resources, Restart, RuntimeChoice, Task, later
from rankwise.store.rows import Outcome, ProcessRow, State
from rankwise.store.store import Store

FOLDER = Path("/somewhere")

PASSED = Outcome(state=State.PASSED, exit_code=0, started=11.0, ended=12.0)
FAILED = Outcome(
    state=State.FAILED,
    exit_code=7,
    culprit="rank-1",
    reason="rank 1 exited with code 7",
    started=11.0,
    ended=12.0,
)
PROCESSES = (
    ProcessRow(
        name="rank-0",
        role="rank",
        node=0,
        rank=0,
        pid=100,
        started=11.0,
        ended=12.0,
        signal=15,
        peak_memory=5_000_000_000,
        cpu_seconds=0.25,
        by_us=True,
        log_lost=3,
    ),
    ProcessRow(name="rank-1", role="rank", node=1, rank=1, pid=101, exit_code=7),
)


def simple_task(key: str) -> Task:
    return Task(key=key, processes=(Process(name="main", role="main", command="true"),))


def rich_task(key: str) -> Task:
    """Return a task in which no field is what it is by default."""
    return Task(
        key=key,
        processes=(
            Process(
                name="worker-0",
                role="worker",
                node=1,
                command=("python", "train.py", later("port:main@0")),
                environment={"RANK": "0", "WHERE": later("address:0")},
                rank=0,
                is_awaited=False,
                is_vital=False,
                resources=Resources(cores=0.5, memory=2**40, gpus=1),
            ),
            Process(name="launcher", role="launcher", command="mpirun -np 2 ./a.out ✓"),
        ),
        nodes=2,
        needs=("before",),
        code="/code",
        folder="/folder",
        files={"hostfile": f"{later('host:0')} slots=2\n"},
        environment={"A": "b"},
        secrets=("TOKEN",),
        resources=Resources(cores=2),
        compute="cluster",
        runtime=RuntimeChoice(name="torch", kind="uv", python="3.12", requirements=("torch",)),
        timeout=1.5,
        restart=Restart(most=3, on_exit_codes=(75, 143)),
        notes=("derived",),
        tags={"size": "4"},
    )


def plan_of(*keys: str, name: str = "job", experiment: str = "") -> Plan:
    return Plan(
        name=name,
        kind="MpiJob",
        tasks=tuple(map(simple_task, keys)),
        experiment=experiment,
        source="job.yaml",
        notices=("gpu-cluster is not known here: local is used",),
        tags={"owner": "me"},
    )


def new_run(store: Store, *keys: str, name: str = "job") -> str:
    return store.create_run(plan_of(*(keys or ("a",)), name=name), "type: MpiJob\n", now=10.0)


def begin(store: Store, run: str, task: str = "a") -> int:
    """Begin an attempt with a marker that no other has."""
    marker = f"rw-{run}-{task}-{len(store.attempts(run, task))}"
    return store.begin_attempt(run, task, marker=marker, folder=FOLDER, now=10.5)


def live(
    store: Store,
    run: str,
    task: str = "a",
    *,
    outcome: Outcome = PASSED,
    processes: Sequence[ProcessRow] = PROCESSES,
) -> None:
    """Lead a task through its whole life."""
    number = begin(store, run, task)
    store.attempt_heard(run, task, number, job_id="4711", now=10.7)
    store.attempt_heard(run, task, number, has_started=True, now=11.0)
    store.attempt_ended(run, task, number, outcome, processes)
    store.task_over(run, task, outcome.state, exit_code=outcome.exit_code, now=12.5)
