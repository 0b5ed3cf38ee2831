"""Plans as people see them before anything runs."""

from __future__ import annotations

import io
import json

from rich.console import Console

from rankwise.plan import Plan, Process, Resources, Restart, RuntimeChoice, Task, later
from rankwise.reports.terminal.plan import plan_data, show_plan


def shown(plan: Plan, only: str = "", *, width: int = 1000) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, highlight=False)
    show_plan(console, plan, only=only)
    return stream.getvalue()


def worker(number: int) -> Process:
    return Process(
        name=f"worker-{number}",
        role="worker",
        node=number,
        command="python train.py",
        environment={"WORLD_SIZE": "4", "RANK": str(number)},
        rank=number,
    )


def plan(*tasks: Task, notices: tuple[str, ...] = ()) -> Plan:
    return Plan(name="job", kind="PytorchJob", tasks=tasks, experiment="mnist", notices=notices)


def test_a_plan_says_all_about_its_tasks() -> None:
    task = Task(
        key="train",
        processes=tuple(map(worker, range(4))),
        nodes=4,
        code="/home/me/src",
        needs=("prepare", "fetch"),
        environment={"MASTER_ADDR": later("address:0"), "MASTER_PORT": later("port:master@0")},
        files={"hostfile": f"{later('host:0')} slots=1\n{later('host:1')} slots=1\n"},
        secrets=("TOKEN",),
        resources=Resources(cores=4, memory=2 << 30, gpus=1),
        runtime=RuntimeChoice(name="azureml:pytorch-1.7:1"),
        timeout=90,
        restart=Restart(most=2, on_exit_codes=(1, 75)),
        notes=("1 process per node: nothing else is said",),
        tags={"team": "mine"},
    )
    assert (
        shown(plan(task, notices=("compute gpu-cluster is not known: local is taken",)))
        == """\
job: PytorchJob, 1 task, experiment mnist
note: compute gpu-cluster is not known: local is taken

train
  compute     local, 4 nodes, 4 processes
  runtime     azureml:pytorch-1.7:1: the interpreter of rankwise
  code        /home/me/src, copied for each node
  needs       prepare and fetch
  claims      1 GPU, 4 cores, 2 GiB of memory
  time limit  1 min 30 s
  restarts    up to 2, after exit code 1 and 75
  secrets     TOKEN (from the environment)
  tags        team=mine
  environment
    MASTER_ADDR=<address of node 0>
    MASTER_PORT=<free port master of node 0>
    WORLD_SIZE=4
  file hostfile
    <host of node 0> slots=1
    <host of node 1> slots=1
  worker 0-3 on node 0-3
    python train.py
    worker 0: RANK=0
    worker 1: RANK=1
    worker 2: RANK=2
    worker 3: RANK=3
  derived
    1 process per node: nothing else is said
"""
    )


def test_of_many_processes_the_first_and_the_last_are_listed() -> None:
    lines = shown(plan(Task(key="train", processes=tuple(map(worker, range(64)))))).splitlines()
    assert "  worker 0-63 on node 0-63" in lines
    assert [line.strip() for line in lines if "RANK=" in line or "..." in line] == [
        *(f"worker {number}: RANK={number}" for number in range(6)),
        "...",
        "worker 63: RANK=63",
    ]


def test_processes_that_are_not_waited_for_are_apart() -> None:
    server = Process(name="ps-0", role="ps", command=("python", "my server.py"), is_awaited=False)
    text = shown(plan(Task(key="train", processes=(server, worker(0)))))
    assert "  ps 0 on node 0, ended when the others are done\n    python 'my server.py'\n" in text


def test_many_tasks_have_a_line_each() -> None:
    tasks = [Task(key=f"task-{number}", processes=(worker(0),)) for number in range(30)]
    lines = shown(plan(*tasks)).splitlines()
    assert "  task-7   python train.py" in lines
    assert len(lines) == 33
    assert "--task task-0" in lines[-1]


def test_one_of_many_tasks_can_be_seen_in_full() -> None:
    tasks = [Task(key=f"task-{number}", processes=(worker(0),)) for number in range(30)]
    text = shown(plan(*tasks), only="task-7")
    assert "\ntask-7\n  compute" in text
    assert "task-8" not in text


def test_a_task_without_processes_or_needs_is_no_trouble() -> None:
    assert "compute  local, 1 node, 0 processes" in shown(plan(Task(key="empty", processes=())))


def test_notes_end_their_lines_between_words() -> None:
    note = "exceptions: `python` is run as `python -m mpi4py`, so that none waits for ever"
    text = shown(plan(Task(key="train", processes=(), notes=(note,))), width=40)
    lines = text[text.index("  derived\n") :].splitlines()[1:]
    assert len(lines) > 1
    assert " ".join(line.strip() for line in lines) == note
    assert all(line.startswith("    ") and len(line) <= 40 for line in lines)


def test_what_a_role_has_of_its_own_is_shown() -> None:
    own = RuntimeChoice(name="b", kind="python", python="/opt/b")
    server = Process(name="ps-0", role="ps", command="serve", runtime=own, code="/p/servers")
    text = shown(plan(Task(key="train", processes=(server,), code="/p/src")))
    assert "ps runs in   b: /opt/b" in text
    assert "ps has code  /p/servers" in text


def test_runtimes_are_told_apart() -> None:
    def line(choice: RuntimeChoice) -> str:
        text = shown(plan(Task(key="train", processes=(), runtime=choice)))
        return next(line for line in text.splitlines() if "runtime" in line).split("  ")[-1]

    assert line(RuntimeChoice()) == "the interpreter of rankwise"
    assert line(RuntimeChoice(name="mine", kind="python", python="/v")) == "mine: /v"
    made = RuntimeChoice(name="tf", kind="uv", python="3.11", requirements=("numpy", "keras"))
    assert line(made) == "tf: made by uv: numpy and keras, Python 3.11"
    image = RuntimeChoice(name="tf", kind="container", image="tf:2", engine="podman")
    assert line(image) == "tf: tf:2, podman"


def test_programs_get_all_of_it_with_marks_in_words() -> None:
    task = Task(key="train", processes=(worker(0),), environment={"A": later("address:0")})
    data = json.loads(json.dumps(plan_data(plan(task))))
    assert data["tasks"][0]["environment"] == {"A": "<address of node 0>"}
    assert data["tasks"][0]["processes"][0]["command"] == "python train.py"
