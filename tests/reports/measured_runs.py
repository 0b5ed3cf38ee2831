"""Runs with measurements, put into a store as an engine would."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from rankwise.plan import ANALYSIS, Plan, Process, Task
from rankwise.store import Outcome, State, Store
from rankwise.store.samples import Sample

BEGUN = 1_700_000_000.0
_SIZES = tuple(2**power for power in range(0, 23, 2))


def sweep_task(key: str, tags: Mapping[str, str]) -> Task:
    """Return one case of a sweep."""
    process = Process(name="worker-0", role="worker", command=f"./bench --case '{key}'")
    return Task(key=key, processes=(process,), folder="/home/me/src", tags=tags)


def make_sweep(store: Store, *, cases: list[Task], name: str = "sweep", kind: str = "Sweep") -> str:
    """Store a run of these cases."""
    plan = Plan(
        name=name,
        kind=kind,
        tasks=tuple(cases),
        experiment="network",
        source=str(Path("sweep.yaml").absolute()),
        tags={"git.commit": "3f2a91c0d4e5", "git.branch": "main"},
    )
    return store.create_run(plan, f"type: Sweep\nname: {name}\n", now=BEGUN)


def run_case(
    store: Store,
    run: str,
    key: str,
    *,
    state: State = State.PASSED,
    reason: str = "",
    output: str = "done\n",
    seconds: float = 1.0,
    at: float = 0.0,
) -> None:
    """Run one case to its end."""
    folder = store.run_folder(run) / key.replace("/", "_")[:100] / "1"
    place = folder / "processes" / "worker-0"
    if output:
        place.mkdir(parents=True)
        (place / "output.log").write_text(output)
    started = BEGUN + at
    store.begin_attempt(run, key, marker=f"{run}/{key}/1", folder=folder, now=started)
    store.attempt_heard(run, key, 1, has_started=True, now=started)
    code = 0 if state.is_green else 1
    outcome = Outcome(
        state=state, ended=started + seconds, exit_code=code, culprit="worker-0", reason=reason
    )
    store.attempt_ended(run, key, 1, outcome, ())
    store.task_over(run, key, state, reason=reason, exit_code=code, now=started + seconds)


def analysed_run(
    store: Store, files: Mapping[str, bytes], state: State = State.PASSED, name: str = "analysed"
) -> str:
    """Store a run whose analysis has written these files; `stdout` is what it has printed."""
    task = Task(key=ANALYSIS, processes=(Process(name=ANALYSIS, role=ANALYSIS, command="x"),))
    run = store.create_run(Plan(name=name, kind="Sweep", tasks=(task,)), "", now=1.0)
    folder = store.run_folder(run) / ANALYSIS / "1"
    store.begin_attempt(run, ANALYSIS, marker=run, folder=folder, now=1.0)
    outcome = Outcome(state=state, ended=2.0, exit_code=0, reason="it <failed>")
    store.attempt_ended(run, ANALYSIS, 1, outcome, ())
    store.task_over(run, ANALYSIS, state, reason="it <failed>", exit_code=0, now=2.0)
    places = {"stdout": folder / "processes" / ANALYSIS / "stdout.log"}
    for file, content in files.items():
        place = places.get(file, folder / ANALYSIS / file)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    store.run_ended(run, state, exit_code=0, now=3.0)
    return run


def osu_sweep(store: Store, *, seed: int = 1, factor: float = 1.0, trials: int = 5) -> str:
    """Store a run that has measured latency and bandwidth over sizes, and a solver over ranks."""
    with store.together():
        return _osu_sweep(store, seed, factor, trials)


def _osu_sweep(store: Store, seed: int, factor: float, trials: int) -> str:
    chance = random.Random(seed)
    cases = [
        sweep_task(f"osu-{mpi}-{trial}", {"mpi": mpi, "trial": str(trial)})
        for mpi in ("mpich", "openmpi", "intel")
        for trial in range(trials)
    ]
    cases += [
        sweep_task(
            f"solver-{ranks}-{grid}-{trial}",
            {"ranks": str(ranks), "grid": str(grid), "trial": str(trial)},
        )
        for ranks in (1, 2, 4, 8, 16)
        for grid in (64, 128, 256)
        for trial in range(2)
    ]
    run = make_sweep(store, cases=cases)
    store.run_started(run, now=BEGUN)
    for number, task in enumerate(cases):
        is_bad = task.key in ("solver-16-64-1", "osu-intel-4")
        run_case(
            store,
            run,
            task.key,
            state=State.CRASHED if is_bad else State.PASSED,
            reason="worker 0 was ended by signal 11 (SIGSEGV)" if is_bad else "",
            output="step 1\n\x1b[31mSegmentation fault\x1b[0m at 0x0\n" if is_bad else "done\n",
            seconds=chance.uniform(0.5, 9),
            at=number * 2.0,
        )
        if is_bad:
            continue
        tags = dict(task.tags)
        trial = int(tags.pop("trial"))
        samples = (
            _solver(chance, tags, factor) if "ranks" in tags else _network(chance, tags, factor)
        )
        case = " ".join(f"{name}={value}" for name, value in tags.items())
        conditions = {
            "host": "n1",
            "cpu": "8 cores of a machine",
            "load": round(chance.random() / 2, 1),
        }
        store.add_samples(run, task.key, 1, samples, case=case, trial=trial, conditions=conditions)
    store.run_ended(run, State.FAILED, exit_code=1, now=BEGUN + 95)
    return run


def _network(chance: random.Random, tags: Mapping[str, str], factor: float) -> list[Sample]:
    start = {"mpich": 0.9, "openmpi": 1.1, "intel": 0.7}[tags["mpi"]]
    found = []
    for size in _SIZES:
        noise = chance.lognormvariate(0, 0.08)
        latency = (start + size / 9000) * noise * factor
        found.append(
            Sample(metric="latency", value=latency, unit="us", better="lower", point={"size": size})
        )
        found.append(
            Sample(
                metric="bandwidth",
                value=size / latency,
                unit="MB/s",
                better="higher",
                point={"size": size},
            )
        )
    return found


def _solver(chance: random.Random, tags: Mapping[str, str], factor: float) -> list[Sample]:
    ranks, grid = int(tags["ranks"]), int(tags["grid"])
    work = (grid / 64) ** 3
    seconds = (work / ranks + 0.03 * ranks) * chance.lognormvariate(0, 0.03) * factor
    return [Sample(metric="solve_time", value=seconds, unit="s", better="lower")]


HOSTILE = (
    "</style></script><script>alert(document.cookie)</script><img src=x onerror=alert(1)>"
    "#import \"x\" $ & ]] \x1b[31m\x1b[2J\x07 \u202e \x00 ``` =cmd|' /C calc'!A0"
)


def hostile_run(store: Store, *, log_bytes: int = 0) -> str:
    """Store a run in which every name, text and number is chosen to do harm."""
    tags = {HOSTILE: HOSTILE, "=1+1": "=1+1", "ranks": "NaN"}
    cases = [sweep_task(f"case-{number}{HOSTILE}", tags) for number in range(3)]
    run = make_sweep(store, cases=cases, name="hostile", kind=HOSTILE)
    store.run_started(run, now=BEGUN)
    outputs = [HOSTILE + "\n", "", "x" * 79 + "\n"]
    outputs[2] *= max(1, log_bytes // 80)
    for task, output in zip(cases, outputs, strict=True):
        run_case(store, run, task.key, state=State.FAILED, reason=HOSTILE, output=output)
        samples = [
            Sample(metric=HOSTILE, value=value, unit=HOSTILE, better="lower", point={"size": size})
            for size, value in ((1, 1e308), (2, -1e308), (3, float("inf")), (4, 5e-324), (0, 0.0))
        ]
        store.add_samples(run, task.key, 1, samples, case=HOSTILE, conditions={HOSTILE: HOSTILE})
    store.run_ended(run, State.FAILED, exit_code=1, reason=HOSTILE, now=BEGUN + 9)
    return run


def many_cases(store: Store, count: int, *, more: Mapping[str, str] | None = None) -> str:
    """Store a run of many cases, of which every tenth has failed; `more` parameters for each."""
    with store.together():
        return _many_cases(store, count, more or {})


def _many_cases(store: Store, count: int, more: Mapping[str, str]) -> str:
    cases = [
        sweep_task(
            f"ranks-{2 ** (number % 6)}.size-{number}{''.join(f'.{one}' for one in more)}.t1",
            {
                "ranks": str(2 ** (number % 6)),
                "size": str(number),
                "trial": "1",
                **{name: f"{value}-{number % 3}" for name, value in more.items()},
            },
        )
        for number in range(count)
    ]
    run = make_sweep(store, cases=cases, name="many")
    store.run_started(run, now=BEGUN)
    for number, task in enumerate(cases):
        is_bad = number % 10 == 0
        run_case(
            store,
            run,
            task.key,
            state=State.FAILED if is_bad else State.PASSED,
            reason=f"worker 0 exited with code {number % 7 + 1}" if is_bad else "",
            output="Traceback (most recent call last):\n" + "  a line of it\n" * 40
            if is_bad
            else "",
            at=number * 0.1,
        )
        if not is_bad:
            tags = {name: value for name, value in task.tags.items() if name != "trial"}
            case = " ".join(f"{name}={value}" for name, value in tags.items())
            sample = Sample(metric="latency", value=1.0 + number, unit="us", better="lower")
            store.add_samples(run, task.key, 1, [sample], case=case, trial=1)
    store.run_ended(run, State.FAILED, exit_code=1, now=BEGUN + count)
    return run
