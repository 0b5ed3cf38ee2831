"""`rankwise doctor`: whether the backends of the site file can be used, and what to do if not."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from rankwise.backends.base import Attempt, Submission, Updates
from rankwise.backends.batch.slurm import Slurm, is_accounting_on
from rankwise.backends.batch.system import (
    BatchJob,
    BatchSystem,
    Ending,
    JobState,
    Needs,
    open_system,
)
from rankwise.backends.cloud import fill, new_name
from rankwise.backends.kubernetes.backend import KubernetesBackend
from rankwise.backends.kubernetes.client import ApiClient
from rankwise.backends.kubernetes.objects import resources_of
from rankwise.backends.remote.connection import exchange, last_words
from rankwise.backends.remote.tracked import FOLDER, Tracked
from rankwise.backends.ssh import machine_at
from rankwise.documents.site import Site
from rankwise.documents.site_models import (
    COMMAND,
    KUBERNETES,
    SSH,
    TEMPLATES,
    BatchConfig,
    ComputeConfig,
    SlurmConfig,
)
from rankwise.errors import ComputeFailure, InputError, RankwiseError
from rankwise.plan import Process, Resources, Task
from rankwise.records import AttemptEnd
from rankwise.runtimes.base import PreparedRuntime
from rankwise.store import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    what: str
    is_well: bool = True
    is_needed: bool = True
    """Whether nothing can run without it; what is only good to know is not."""
    remedy: str = ""


def check_compute(name: str, site: Site, store: Path) -> list[Finding]:
    """Look at one compute of the site file."""
    try:
        choice = site.compute(name)
    except InputError as error:
        return [Finding(what=str(error), is_well=False)]
    if not choice.is_mapped:
        return [
            Finding(
                what=f"{name} is not in {site.file}",
                is_well=False,
                remedy=f'write [compute.{name}] there, with backend = "slurm" or "local"',
            )
        ]
    if choice.backend == SSH:
        return list(check_hosts(choice))
    if choice.backend == COMMAND:
        return list(check_provider(choice, Tracked(store / FOLDER)))
    if choice.backend == KUBERNETES:
        return list(check_kubernetes(choice))
    if not choice.is_batch:
        return [Finding(what="it is this machine")]
    return list(check_batch(choice, store))


NEEDED = (
    ("create", "jobs", "batch"),
    ("get", "jobs", "batch"),
    ("list", "jobs", "batch"),
    ("patch", "jobs", "batch"),
    ("delete", "jobs", "batch"),
    ("create", "configmaps", ""),
    ("get", "configmaps", ""),
    ("create", "secrets", ""),
    ("get", "secrets", ""),
    ("create", "services", ""),
    ("get", "services", ""),
    ("list", "pods", ""),
    ("watch", "pods", ""),
    ("get", "pods/log", ""),
)
"""What must be allowed in the namespace: verb, resource and group, as in the Role of the docs."""
_GOOD_TO_HAVE = (("list", "events", ""),)
_POD_TRIAL_SECONDS, _POD_END_SECONDS = 120.0, 5.0


def check_kubernetes(choice: ComputeConfig) -> Iterator[Finding]:
    """Look at everything, up to a small task of our own."""
    cluster = ApiClient(choice.kubernetes)
    try:
        yield from _check(cluster, choice)
    finally:
        cluster.forget()


def _check(cluster: ApiClient, choice: ComputeConfig) -> Iterator[Finding]:
    try:
        server = cluster.version()
    except ComputeFailure as failure:
        yield Finding(
            what=f"the cluster does not answer: {failure}",
            is_well=False,
            remedy="`kubectl get jobs` must work with the same kubeconfig and context",
        )
        return
    yield Finding(what=f"{server} answers, namespace {cluster.namespace}")
    yield _permissions(cluster)
    yield _nodes(cluster, choice)
    if choice.kubernetes.image:
        yield from _trial_of_pod(choice)
    else:
        yield Finding(
            what="there is no image of its own, so nothing was tried",
            is_well=False,
            is_needed=False,
            remedy='write image = "…", for tasks whose environment is no image',
        )


def _permissions(cluster: ApiClient) -> Finding:
    try:
        missing = [one for one in NEEDED if not cluster.may(*one)]
        wanted = [one for one in _GOOD_TO_HAVE if not cluster.may(*one)]
    except ComputeFailure as failure:
        return Finding(what=f"what is allowed is not told: {failure}", is_needed=False)
    if missing:
        return Finding(
            what=f"not allowed: {_listed(missing)}",
            is_well=False,
            remedy="apply the Role of the documentation (Kubernetes, what must be allowed)",
        )
    if wanted:
        return Finding(
            what=f"all that is needed is allowed, but not {_listed(wanted)}",
            is_well=False,
            is_needed=False,
            remedy="without it, why a quota keeps pods away is not told",
        )
    return Finding(what="all that is needed is allowed")


def _listed(wanted: list[tuple[str, str, str]]) -> str:
    return ", ".join(f"{verb} {resource}" for verb, resource, _ in wanted)


def _nodes(cluster: ApiClient, choice: ComputeConfig) -> Finding:
    try:
        nodes = cluster.nodes()
    except ComputeFailure:
        return Finding(
            what="how many nodes there are is not told: what does not fit waits for the scheduler",
            is_needed=False,
        )
    found = sum((resources_of(one, choice.kubernetes.gpu_resource) for one in nodes), Resources())
    size = f"{found.cores:g} cores, {found.memory / 2**30:.1f} GiB of memory, {found.gpus} GPUs"
    return Finding(what=f"{len(nodes)} nodes: {size}")


def _trial_of_pod(choice: ComputeConfig) -> Iterator[Finding]:
    """Run a small task in the image of the compute."""
    image = choice.kubernetes.image
    with tempfile.TemporaryDirectory(prefix="rankwise-doctor-") as folder:
        begun = time.monotonic()
        try:
            end = _run(choice, Path(folder))
        except ComputeFailure as failure:
            yield Finding(what=f"a task was refused: {failure}", is_well=False)
            return
        took = time.monotonic() - begun
    if end is None:
        yield Finding(
            what=f"a task has not run within {_POD_TRIAL_SECONDS:g} s",
            is_well=False,
            is_needed=False,
            remedy="the cluster is busy, or will never run it: `kubectl get events` says more",
        )
    elif end.outcome == State.PASSED:
        yield Finding(what=f"a task ran in {image}, and was back after {took:.0f} s")
    else:
        yield Finding(
            what=f"a task in {image} ended as {end.outcome}: {end.reason}",
            is_well=False,
            remedy="the image must be there for the nodes, with /bin/sh and Python 3.10 or newer",
        )


def _run(choice: ComputeConfig, folder: Path) -> AttemptEnd | None:
    (folder / "code").mkdir()
    marker = f"rw-{secrets.token_hex(8)}"
    attempt = Attempt(label=f"doctor-{marker}/trial/1", marker=marker, folder=folder / "attempt")
    attempt.folder.mkdir()
    task = Task(
        key="trial",
        processes=(Process(name="worker-0", role="worker", command="true"),),
        code=str(folder / "code"),
        folder=str(folder),
        compute=choice.name,
    )
    updates: Updates = SimpleQueue()
    compute = KubernetesBackend(choice, updates)
    try:
        compute.submit(Submission(attempt=attempt, task=task, runtime=PreparedRuntime()))
        end = _end_among(updates, _POD_TRIAL_SECONDS)
        if end is None:
            compute.cancel(attempt)
            _end_among(updates, _POD_END_SECONDS)
        return end
    finally:
        compute.close()


def _end_among(updates: Updates, seconds: float) -> AttemptEnd | None:
    """Wait for the end of an attempt; None: there is none in so many seconds."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(Empty):
        while (left := deadline - time.monotonic()) > 0:
            if (end := updates.get(timeout=left).end) is not None:
                return end
    return None


_LIST_SECONDS = 120.0


def check_provider(choice: ComputeConfig, ledger: Tracked) -> Iterator[Finding]:
    """See whether its programs are there, and whether something was left."""
    command = choice.command
    programs = {getattr(command, name)[0] for name in TEMPLATES if getattr(command, name)}
    for program in sorted(programs):
        if place := shutil.which(program):
            yield Finding(what=f"{program} is {place}")
        else:
            remedy = "install the provider's command line, or name it with its folder"
            yield Finding(what=f"{program} is not on PATH", is_well=False, remedy=remedy)
            return
    yield _list_of(choice)
    left = list(ledger.entries(compute=choice.name))
    if left:
        yield Finding(
            what=f"{len(left)} instances are recorded in {FOLDER} as not yet deleted",
            is_well=False,
            is_needed=False,
            remedy="rankwise clean --list  shows them;  rankwise clean  deletes those not in use",
        )


def _list_of(choice: ComputeConfig) -> Finding:
    """Try `list`, which makes nothing and tells whether we are logged in."""
    if not choice.command.list:
        return Finding(
            what="there is no `list`: an instance whose id was never heard cannot be found",
            is_well=False,
            is_needed=False,
            remedy="write how to list instances, with their names",
        )
    said = exchange(fill(choice.command.list, {"name": new_name()}), seconds=_LIST_SECONDS)
    if said is not None and said.exit_code == 0:
        return Finding(what="`list` works")
    why = last_words(said) if said is not None else "no answer"
    return Finding(what=f"`list` fails: {why}", is_well=False, remedy="log in to the provider")


_JOB_TRIAL_SECONDS = 60.0


def check_batch(choice: ComputeConfig, store: Path) -> Iterator[Finding]:
    """Look at everything, up to a small job of our own."""
    system = open_system(choice)
    if isinstance(system, Slurm) and isinstance(choice.batch, SlurmConfig):
        controller, settings = _controller(system)
        yield controller
        if not controller.is_well:
            return
        yield _nodes_of(system, choice)
        yield _accounting(settings)
        yield _plugins(system, choice.batch)
    else:
        yield _nodes_of(system, choice)
    yield from _trial_of_job(system, choice, store)


def _controller(system: Slurm) -> tuple[Finding, dict[str, str]]:
    """Find out whether slurmctld answers, and how it is configured."""
    if shutil.which("sbatch") is None:
        return Finding(
            what="sbatch is not on PATH: this machine has no Slurm",
            is_well=False,
            remedy="log in to the cluster and call rankwise there, or load the module of Slurm",
        ), {}
    try:
        settings = system.configuration()
    except ComputeFailure as failure:
        return Finding(
            what=f"slurmctld does not answer: {failure}",
            is_well=False,
            remedy="ask with `scontrol ping` whether it is up; SLURM_CONF must name your cluster",
        ), {}
    version = settings.get("SLURM_VERSION", "of an unknown version")
    name = settings.get("ClusterName", "?")
    return Finding(what=f"slurmctld of {name} answers: Slurm {version}"), settings


def _nodes_of(system: BatchSystem, choice: ComputeConfig) -> Finding:
    partition = choice.batch.partition if isinstance(choice.batch, SlurmConfig) else ""
    try:
        nodes = system.nodes()
    except ComputeFailure as failure:
        return Finding(what=f"{system.title}: {failure}", is_well=False)
    name = f"partition {partition}" if partition else "the default partition"
    name = name if isinstance(system, Slurm) else system.title
    if not nodes:
        return Finding(
            what=f"{name} has no nodes, or is not there",
            is_well=False,
            remedy="`sinfo` lists partitions; write one of them as partition = …",
        )
    cores, gpus = sum(one.cores for one in nodes), sum(one.gpus for one in nodes)
    return Finding(what=f"{name}: {len(nodes)} nodes, {cores} cores, {gpus} GPUs")


def _accounting(settings: dict[str, str]) -> Finding:
    if is_accounting_on(settings):
        return Finding(what="accounting is on: sacct knows jobs that slurmctld has forgotten")
    age = settings.get("MinJobAge", "an unknown time")
    return Finding(
        what=f"accounting is off: what became of a job is known for {age} after its end",
        is_well=False,
        is_needed=False,
        remedy="nothing to do: the runner's own files say how a job ended, for good",
    )


def _plugins(system: Slurm, choice: SlurmConfig) -> Finding:
    try:
        said = system.call(["srun", "--mpi=list"])
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


def _trial_of_job(system: BatchSystem, choice: ComputeConfig, store: Path) -> Iterator[Finding]:
    """Send a small job that writes into the folder which is said to be shared."""
    folder = Path(choice.batch.shared) if choice.batch.shared else store
    place = folder / f".doctor-{secrets.token_hex(4)}"
    remedy = 'write shared = "FOLDER" with one that all nodes have, as your home or scratch'
    try:
        place.mkdir(parents=True)
    except OSError as error:
        yield Finding(what=f"{folder}: {error.strerror}", is_well=False, remedy=remedy)
        return
    try:
        yield from _send_trial(system, choice.batch, place, remedy)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _send_trial(
    system: BatchSystem, choice: BatchConfig, place: Path, remedy: str
) -> Iterator[Finding]:
    from rankwise.backends.batch.submitting import script_text

    folder = place.parent
    python = choice.python or sys.executable
    word = "import sys; open(sys.argv[1], 'w').write(sys.version.split()[0])"
    script = script_text(choice, "doctor", [python, "-I", "-S", "-c", word, str(place / "seen")])
    trial = BatchJob(
        name="rankwise-doctor",
        script=f"{script}\n",
        options=system.options(Needs()),
        output=place / "log",
        environment=system.plain_environment(os.environ),
    )
    try:
        job = system.submit(trial)
    except ComputeFailure as failure:
        hint = "the partition, account, qos or options of the site file are not right here"
        yield Finding(what=f"a job was refused: {failure}", is_well=False, remedy=hint)
        return
    state = _end_of(system, job, place / "seen")
    if (place / "seen").exists():
        version = (place / "seen").read_text()
        yield Finding(what=f"a job ran, with Python {version}, and {folder} is shared")
    elif state is None or not state.is_over:
        with contextlib.suppress(ComputeFailure):
            system.cancel(job, Ending.NOW)
        why = f": {state.reason}" if state is not None and state.reason else ""
        yield Finding(
            what=f"a job has not run within {_JOB_TRIAL_SECONDS:g} s{why}",
            is_well=False,
            is_needed=False,
            remedy="the cluster is busy, or will never run it: look at its queue",
        )
    elif (place / "log").exists():
        said = (place / "log").read_text(errors="replace").strip().splitlines()
        yield Finding(
            what=f"a job ended as {state.word}: {said[-1] if said else 'without a word'}",
            is_well=False,
            remedy=f"modules, init and python of the site file must work there ({python})",
        )
    else:
        yield Finding(
            what=f"a job ended as {state.word}, and left nothing in {folder}",
            is_well=False,
            remedy=remedy,
        )


def _end_of(system: BatchSystem, job: str, seen: Path) -> JobState | None:
    deadline = time.monotonic() + _JOB_TRIAL_SECONDS
    state = None
    while time.monotonic() < deadline and not seen.exists():
        with contextlib.suppress(ComputeFailure):
            state = system.states([job]).get(job)
            if state is None or state.is_over:
                time.sleep(1.0)  # Files of another machine may take a while to be seen.
                return state
        time.sleep(0.3)
    return state


def check_hosts(choice: ComputeConfig) -> Iterator[Finding]:
    """See whether each can be reached and has what is needed."""
    for host in choice.ssh.hosts:
        try:
            machine = machine_at(choice, host)
            found = machine.reach()
        except RankwiseError as failure:
            what, _, remedy = str(failure).partition("; ")
            yield Finding(what=what, is_well=False, remedy=remedy)
            continue
        has = f"{found.cores:g} cores, {found.memory / 2**30:.1f} GiB, {len(found.gpus)} GPUs"
        yield Finding(what=f"{host} answers: {has}; Python {found.version} at {found.python}")
        yield Finding(what=f"{host}: files go to {found.root}")
        tools = ", ".join([*(["uv"] if found.uv else []), *found.engines]) or "none"
        yield Finding(what=f"{host}: for runtimes, beside its Python: {tools}")
        machine.line.close()
