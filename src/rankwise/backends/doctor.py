"""`rankwise doctor`: whether the backends of the site file can be used, and what to do if not."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from rankwise.backends.base import Attempt, Submission, Updates
from rankwise.backends.batch import system as batch
from rankwise.backends.batch.slurm import Slurm, is_accounting_on
from rankwise.backends.batch.system import BatchSystem
from rankwise.backends.cloud import fill, new_name
from rankwise.backends.kubernetes.backend import KubernetesBackend
from rankwise.backends.kubernetes.client import ApiClient
from rankwise.backends.kubernetes.objects import resources_of
from rankwise.backends.remote.connection import exchange
from rankwise.backends.remote.tracked import FOLDER, Tracked
from rankwise.backends.ssh import machine_at
from rankwise.documents import site_models as site_file
from rankwise.documents.site import Site
from rankwise.documents.site_models import BatchConfig, ComputeConfig, SlurmConfig
from rankwise.errors import ComputeFailure, InputError, RankwiseError
from rankwise.plan import Process, Resources, Task
from rankwise.records import AttemptEnd
from rankwise.runtimes.base import PreparedRuntime
from rankwise.store import State


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked."""

    what: str
    remedy: str = ""
    is_well: bool = True
    is_needed: bool = True
    """Whether nothing can run without it."""


def fault(what: str, remedy: str = "") -> Finding:
    """Return a finding without whose remedy nothing can run."""
    return Finding(what, remedy, is_well=False)


def hint(what: str, remedy: str = "") -> Finding:
    """Return a finding that only some tasks need to be otherwise."""
    return Finding(what, remedy, is_well=False, is_needed=False)


def check_compute(name: str, site: Site, store: Path) -> list[Finding]:
    """Check one backend of the site file."""
    try:
        choice = site.compute(name)
    except InputError as error:
        return [fault(str(error))]
    if not choice.is_mapped:
        remedy = f'write [compute.{name}] there, with backend = "slurm" or "local"'
        return [fault(f"{name} is not in {site.file}", remedy)]
    if choice.backend == site_file.SSH:
        return list(check_hosts(choice))
    if choice.backend == site_file.COMMAND:
        return list(check_provider(choice, Tracked(store / FOLDER)))
    if choice.backend == site_file.KUBERNETES:
        return list(check_kubernetes(choice))
    if not choice.is_batch:
        return [Finding("it is this machine")]
    return list(check_batch(choice, store))


# What must be allowed in the namespace, as in the Role of the docs: verbs and resource.
_NEEDED = (
    ("create get list patch delete", "jobs", "batch"),
    ("create get", "configmaps", ""),
    ("create get", "secrets", ""),
    ("create get", "services", ""),
    ("list watch", "pods", ""),
    ("get", "pods/log", ""),
)
_GOOD_TO_HAVE = (("list", "events", ""),)
# The image may have to be pulled before the task can begin.
_POD_TRIAL_SECONDS, _POD_END_SECONDS = 120.0, 5.0


def check_kubernetes(choice: ComputeConfig) -> Iterator[Finding]:
    """Check access and permissions, and run a small task."""
    cluster = ApiClient(choice.kubernetes)
    try:
        server = cluster.version()
        yield Finding(f"{server} answers, namespace {cluster.namespace}")
        yield _permissions(cluster)
        yield _nodes(cluster, choice)
    except ComputeFailure as failure:
        remedy = "`kubectl get jobs` must work with the same kubeconfig and context"
        yield fault(f"the cluster does not answer: {failure}", remedy)
        return
    finally:
        cluster.forget()
    if choice.kubernetes.image:
        yield from _trial_of_pod(choice)
    else:
        remedy = 'write image = "…", for tasks whose environment is no image'
        yield hint("no image is set, so no task was tried", remedy)


def _permissions(cluster: ApiClient) -> Finding:
    try:
        missing, wanted = _denied(cluster, _NEEDED), _denied(cluster, _GOOD_TO_HAVE)
    except ComputeFailure as failure:
        return Finding(f"permissions could not be checked: {failure}")
    if missing:
        remedy = "apply the Role of the documentation (Kubernetes, what must be allowed)"
        return fault(f"not allowed: {missing}", remedy)
    if wanted:
        remedy = "without it, the reason why a quota holds pods back is not shown"
        return hint(f"all required permissions granted, but not {wanted}", remedy)
    return Finding("all required permissions granted")


def _denied(cluster: ApiClient, rights: Iterable[tuple[str, str, str]]) -> str:
    """Return what of these is not allowed, for people."""
    return ", ".join(
        f"{verb} {resource}"
        for verbs, resource, group in rights
        for verb in verbs.split()
        if not cluster.may(verb, resource, group)
    )


def _nodes(cluster: ApiClient, choice: ComputeConfig) -> Finding:
    try:
        nodes = cluster.nodes()
    except ComputeFailure:
        return Finding("nodes may not be listed: tasks that do not fit wait for the scheduler")
    # Of all nodes together: a single task may fit on none of them.
    found = sum((resources_of(one, choice.kubernetes.gpu_resource) for one in nodes), Resources())
    size = f"{found.cores:g} cores, {found.memory / 2**30:.1f} GiB of memory, {found.gpus} GPUs"
    return Finding(f"{len(nodes)} nodes: {size}")


def _trial_of_pod(choice: ComputeConfig) -> Iterator[Finding]:
    """Run a small task in the backend's image."""
    image = choice.kubernetes.image
    with tempfile.TemporaryDirectory(prefix="rankwise-doctor-") as folder:
        begun = time.monotonic()
        try:
            end = _run(choice, Path(folder))
        except ComputeFailure as failure:
            yield fault(f"a task was refused: {failure}")
            return
        took = time.monotonic() - begun
    if end is None:
        remedy = "the cluster is busy, or will never run it: `kubectl get events` says more"
        yield hint(f"a task has not run within {_POD_TRIAL_SECONDS:g} s", remedy)
    elif end.outcome == State.PASSED:
        yield Finding(f"a task ran in {image}, and was back after {took:.0f} s")
    else:
        yield fault(
            f"a task in {image} ended as {end.outcome}: {end.reason}",
            "the nodes must be able to pull the image, with /bin/sh and Python 3.10 or newer in it",
        )


def _run(choice: ComputeConfig, folder: Path) -> AttemptEnd | None:
    (folder / "code").mkdir()
    # As real attempts have: other clients of the namespace must not find it.
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
    backend = KubernetesBackend(choice, updates)
    try:
        backend.submit(Submission(attempt=attempt, task=task, runtime=PreparedRuntime()))
        end = _end_among(updates, _POD_TRIAL_SECONDS)
        if end is None:
            backend.cancel(attempt)
            # `close` removes the Job only once its end was noted.
            _end_among(updates, _POD_END_SECONDS)
        return end
    finally:
        backend.close()


def _end_among(updates: Updates, seconds: float) -> AttemptEnd | None:
    """Wait for the end of an attempt; None: there is none in so many seconds."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(Empty):
        while (left := deadline - time.monotonic()) > 0:
            if (end := updates.get(timeout=left).end) is not None:
                return end
    return None


_LIST_SECONDS = 120.0


def check_provider(choice: ComputeConfig, tracked: Tracked) -> Iterator[Finding]:
    """Check that the provider's programs are installed, and that no instance was left."""
    command = choice.command
    # One installation check for each program, however many templates call it.
    templates = (getattr(command, name) for name in site_file.TEMPLATES)
    for program in sorted({words[0] for words in templates if words}):
        if place := shutil.which(program):
            yield Finding(f"{program} is {place}")
        else:
            remedy = "install the provider's command line, or name it with its folder"
            yield fault(f"{program} is not on PATH", remedy)
            return
    yield _list_of(choice)
    if left := list(tracked.entries(compute=choice.name)):
        remedy = "rankwise clean --list  shows them;  rankwise clean  deletes those not in use"
        yield hint(f"{len(left)} instances are recorded in {FOLDER} as not yet deleted", remedy)


def _list_of(choice: ComputeConfig) -> Finding:
    """Try `list`, which creates nothing and shows whether we are logged in."""
    if not choice.command.list:
        remedy = "write how to list instances, with their names"
        return hint("there is no `list`: an instance whose id was lost cannot be found", remedy)
    answer = exchange(fill(choice.command.list, {"name": new_name()}), seconds=_LIST_SECONDS)
    if answer.exit_code:
        return fault(f"`list` fails: {answer.last_line}", "log in to the provider")
    return Finding("`list` works")


_JOB_TRIAL_SECONDS = 60.0


def check_batch(choice: ComputeConfig, store: Path) -> Iterator[Finding]:
    """Check the batch system, and run a small job."""
    # Facts of Slurm first: without slurmctld, a trial would only wait.
    system = batch.open_system(choice)
    if isinstance(system, Slurm) and isinstance(choice.batch, SlurmConfig):
        controller, settings = _controller(system)
        yield controller
        if not controller.is_well:
            return
        yield _nodes_of(system, choice)
        yield _accounting(settings)
        yield _plugins(system, choice.batch)
    else:
        for finding in (*_said_by(system), _nodes_of(system, choice)):
            yield finding
            if finding.is_needed and not finding.is_well:
                return
    yield from _trial_of_job(system, choice, store)


def _said_by(system: BatchSystem) -> Iterator[Finding]:
    """Yield what a batch system finds out about itself."""
    try:
        for what, remedy in system.check():
            yield hint(what, remedy) if remedy else Finding(what)
    except ComputeFailure as failure:
        what, _, remedy = str(failure).partition("; ")
        yield fault(what, remedy)


def _controller(system: Slurm) -> tuple[Finding, dict[str, str]]:
    """Check that slurmctld answers, and return how it is configured."""
    if shutil.which("sbatch") is None:
        remedy = "log in to the cluster and call rankwise there, or load the module of Slurm"
        return fault("sbatch is not on PATH: this machine has no Slurm", remedy), {}
    try:
        settings = system.configuration()
    except ComputeFailure as failure:
        remedy = "ask with `scontrol ping` whether it is up; SLURM_CONF must name your cluster"
        return fault(f"slurmctld does not answer: {failure}", remedy), {}
    version = settings.get("SLURM_VERSION", "of an unknown version")
    name = settings.get("ClusterName", "?")
    return Finding(f"slurmctld of {name} answers: Slurm {version}"), settings


def _nodes_of(system: BatchSystem, choice: ComputeConfig) -> Finding:
    try:
        nodes = system.nodes()
    except ComputeFailure as failure:
        return fault(f"{system.title}: {failure}")
    name, remedy = system.title, ""
    if isinstance(choice.batch, SlurmConfig):
        partition = choice.batch.partition
        name = f"partition {partition}" if partition else "the default partition"
        remedy = "`sinfo` lists partitions; write one of them as partition = …"
    if not nodes:
        return fault(f"{name} has no nodes, or does not exist", remedy)
    cores, gpus = sum(one.cores for one in nodes), sum(one.gpus for one in nodes)
    return Finding(f"{name}: {len(nodes)} nodes, {cores} cores, {gpus} GPUs")


def _accounting(settings: dict[str, str]) -> Finding:
    if is_accounting_on(settings):
        return Finding("accounting is on: sacct knows jobs that slurmctld has forgotten")
    age = settings.get("MinJobAge", "an unknown time")
    remedy = "nothing to do: the runner's own files keep how a job ended"
    return hint(f"accounting is off: Slurm knows how a job ended for {age} after its end", remedy)


def _plugins(system: Slurm, choice: SlurmConfig) -> Finding:
    try:
        offered = system.mpi_types()
    except ComputeFailure as failure:
        return hint(f"srun --mpi=list: {failure}")
    what = f'MPI plugins of srun: {", ".join(offered) or "none"}; mpi = "{choice.mpi}"'
    wanted = choice.mpi.partition("-")[2]
    if wanted and wanted not in offered:
        remedy = f'there is no {wanted}: write mpi = "mpirun", or srun- with one of those'
        return fault(what, remedy)
    return Finding(what)


def _trial_of_job(system: BatchSystem, choice: ComputeConfig, store: Path) -> Iterator[Finding]:
    """Submit a small job that writes into the folder that should be shared."""
    folder = Path(choice.batch.shared) if choice.batch.shared else store
    # Hidden, and with a name that no other doctor uses at the same time.
    place = folder / f".doctor-{secrets.token_hex(4)}"
    remedy = 'write shared = "FOLDER" with one that all nodes have, as your home or scratch'
    try:
        place.mkdir(parents=True)
    except OSError as error:
        yield fault(f"{folder}: {error.strerror}", remedy)
        return
    try:
        yield _send_trial(system, choice.batch, place, remedy)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _send_trial(system: BatchSystem, settings: BatchConfig, place: Path, remedy: str) -> Finding:
    from rankwise.backends.batch.submitting import script_text

    seen, log = place / "seen", place / "log"
    python = settings.python or sys.executable
    program = "import sys; open(sys.argv[1], 'w').write(sys.version.split()[0])"
    # As the runner is started: without variables and packages of the user.
    script = script_text(settings, "doctor", [python, "-I", "-S", "-c", program, str(seen)])
    trial = batch.BatchJob(
        name="rankwise-doctor",
        script=f"{script}\n",
        options=system.options(batch.Needs()),
        output=log,
        environment=system.plain_environment(),
    )
    try:
        job = system.submit(trial)
    except ComputeFailure as failure:
        remedy = "the partition, account, qos or options of the site file are not right here"
        return fault(f"a job was refused: {failure}", remedy)
    state = _end_of(system, job, seen)
    if seen.exists():
        return Finding(f"a job ran, with Python {seen.read_text()}, and {place.parent} is shared")
    if state is None or not state.is_over:
        with contextlib.suppress(ComputeFailure):
            system.cancel(job, batch.Ending.NOW)
        why = f": {state.reason}" if state is not None and state.reason else ""
        remedy = "the cluster is busy, or will never run it: look at its queue"
        return hint(f"a job has not run within {_JOB_TRIAL_SECONDS:g} s{why}", remedy)
    if log.exists():
        lines = log.read_text(errors="replace").strip().splitlines()
        said = lines[-1] if lines else "it wrote nothing"
        remedy = f"modules, init and python of the site file must work there ({python})"
        return fault(f"a job ended as {state.word}: {said}", remedy)
    return fault(f"a job ended as {state.word}, and left nothing in {place.parent}", remedy)


def _end_of(system: BatchSystem, job: str, seen: Path) -> batch.JobState | None:
    """Wait until a job is over or has written its file; None: the system forgot the job."""
    deadline = time.monotonic() + _JOB_TRIAL_SECONDS
    state = None
    while time.monotonic() < deadline and not seen.exists():
        with contextlib.suppress(ComputeFailure):
            state = system.states([job]).get(job)
            if state is None or state.is_over:
                time.sleep(1.0)  # On network file systems, new files are seen later.
                return state
        time.sleep(0.3)
    return state


def check_hosts(choice: ComputeConfig) -> Iterator[Finding]:
    """Check that each host can be reached and has what is needed."""
    for host in choice.ssh.hosts:
        try:
            machine = machine_at(choice, host)
            found = machine.reach()
        except RankwiseError as failure:
            what, _, remedy = str(failure).partition("; ")
            yield fault(what, remedy)
            continue
        has = f"{found.cores:g} cores, {found.memory / 2**30:.1f} GiB, {len(found.gpus)} GPUs"
        yield Finding(f"{host} answers: {has}; Python {found.version} at {found.python}")
        yield Finding(f"{host}: files go to {found.root}")
        tools = ", ".join([*(["uv"] if found.uv else []), *found.engines]) or "none"
        yield Finding(f"{host}: for runtimes, beside its Python: {tools}")
        machine.line.close()
