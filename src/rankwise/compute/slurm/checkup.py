"""What a Slurm cluster needs to take our tasks, checked one by one."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rankwise.compute.finding import Finding
from rankwise.errors import ComputeFailure
from rankwise.site import ComputeChoice
from rankwise.site.choices import SlurmChoice
from rankwise.slurm import answers, commands

_TRIAL_SECONDS = 60.0


def check_slurm(choice: ComputeChoice, store: Path) -> Iterator[Finding]:
    """Look at everything, up to a small job of our own."""
    if shutil.which("sbatch") is None:
        yield Finding(
            what="sbatch is not on PATH: this machine has no Slurm",
            is_well=False,
            remedy="log in to the cluster and call rankwise there, or load the module of Slurm",
        )
        return
    try:
        settings = commands.settings()
    except ComputeFailure as failure:
        yield Finding(
            what=f"slurmctld does not answer: {failure}",
            is_well=False,
            remedy="ask with `scontrol ping` whether it is up; SLURM_CONF must name your cluster",
        )
        return
    version = settings.get("SLURM_VERSION", "of an unknown version")
    yield Finding(what=f"slurmctld of {settings.get('ClusterName', '?')} answers: Slurm {version}")
    yield _partition(choice.slurm)
    yield _accounting(settings)
    yield _plugins(choice.slurm)
    yield from _trial(choice, store)


def _partition(choice: SlurmChoice) -> Finding:
    try:
        nodes = commands.nodes(choice.partition)
    except ComputeFailure as failure:
        return Finding(what=f"sinfo: {failure}", is_well=False)
    name = f"partition {choice.partition}" if choice.partition else "the default partition"
    if not nodes:
        return Finding(
            what=f"{name} has no nodes, or is not there",
            is_well=False,
            remedy="`sinfo` lists partitions; write one of them as partition = …",
        )
    cores, gpus = sum(one.cores for one in nodes), sum(one.gpus for one in nodes)
    return Finding(what=f"{name}: {len(nodes)} nodes, {cores} cores, {gpus} GPUs")


def _accounting(settings: dict[str, str]) -> Finding:
    if answers.is_accounting_on(settings):
        return Finding(what="accounting is on: sacct knows jobs that slurmctld has forgotten")
    age = settings.get("MinJobAge", "an unknown time")
    return Finding(
        what=f"accounting is off: what became of a job is known for {age} after its end",
        is_well=False,
        is_needed=False,
        remedy="nothing to do: the runner's own files say how a job ended, for good",
    )


def _plugins(choice: SlurmChoice) -> Finding:
    try:
        said = commands.call(["srun", "--mpi=list"])
    except ComputeFailure as failure:
        return Finding(what=f"srun --mpi=list: {failure}", is_well=False, is_needed=False)
    words = said.replace(",", " ").split()
    known = [word for word in words if word.startswith(("pmi", "cray")) and word[-1:].isalnum()]
    has = ", ".join(dict.fromkeys(word for word in known if word != "pmix_v")) or "none"
    what = f'MPI plugins of srun: {has}; mpi = "{choice.mpi}"'
    wanted = choice.mpi.partition("-")[2]
    if wanted and wanted not in words:
        return Finding(
            what=what,
            is_well=False,
            remedy=f'there is no {wanted}: write mpi = "mpirun", or srun- with one of those',
        )
    return Finding(what=what)


def _trial(choice: ComputeChoice, store: Path) -> Iterator[Finding]:
    """Send a small job that writes into the folder which is said to be shared."""
    folder = Path(choice.slurm.shared) if choice.slurm.shared else store
    place = folder / f".doctor-{secrets.token_hex(4)}"
    remedy = 'write shared = "FOLDER" with one that all nodes have, as your home or scratch'
    try:
        place.mkdir(parents=True)
    except OSError as error:
        yield Finding(what=f"{folder}: {error.strerror}", is_well=False, remedy=remedy)
        return
    try:
        yield from _send_trial(choice.slurm, folder, place, remedy)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _send_trial(choice: SlurmChoice, folder: Path, place: Path, remedy: str) -> Iterator[Finding]:
    from rankwise.compute.slurm.script import Needs, options_of, script_text

    python = choice.python or sys.executable
    word = "import sys; open(sys.argv[1], 'w').write(sys.version.split()[0])"
    script = script_text(choice, "doctor", [python, "-I", "-S", "-c", word, str(place / "seen")])
    options = [*options_of(choice, Needs()), "--job-name=rankwise-doctor", f"--output={place}/log"]
    try:
        job = commands.submit(script + "\n", options, environment=commands.plain_environment())
    except ComputeFailure as failure:
        hint = "the partition, account, qos or options of the site file are not right here"
        yield Finding(what=f"a job was refused: {failure}", is_well=False, remedy=hint)
        return
    state = _end_of(job, place / "seen")
    if (place / "seen").exists():
        version = (place / "seen").read_text()
        yield Finding(what=f"a job ran, with Python {version}, and {folder} is shared")
    elif state is None or not state.is_over:
        with contextlib.suppress(ComputeFailure):
            commands.cancel(job)
        why = f": {state.reason}" if state is not None and state.reason else ""
        yield Finding(
            what=f"a job has not run within {_TRIAL_SECONDS:g} s{why}",
            is_well=False,
            is_needed=False,
            remedy="the cluster is busy, or will never run it: squeue says more",
        )
    elif (place / "log").exists():
        said = (place / "log").read_text(errors="replace").strip().splitlines()
        yield Finding(
            what=f"a job ended as {state.state}: {said[-1] if said else 'without a word'}",
            is_well=False,
            remedy=f"modules, init and python of the site file must work there ({python})",
        )
    else:
        yield Finding(
            what=f"a job ended as {state.state}, and left nothing in {folder}",
            is_well=False,
            remedy=remedy,
        )


def _end_of(job: str, seen: Path) -> answers.JobState | None:
    deadline = time.monotonic() + _TRIAL_SECONDS
    state = None
    while time.monotonic() < deadline and not seen.exists():
        with contextlib.suppress(ComputeFailure):
            state = commands.states([job]).get(job)
            if state is None or state.is_over:
                time.sleep(1.0)  # Files of another machine may take a while to be seen.
                return state
        time.sleep(0.3)
    return state
