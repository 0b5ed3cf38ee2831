"""What a site file says of computes and runtimes. Plain data, no effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankwise.plan import Resources, RuntimeChoice

LOCAL = "local"
"""The compute that is always there."""
SLURM = "slurm"
"""The backend of a cluster with Slurm."""
KUBERNETES = "kubernetes"
"""The backend of a cluster with Kubernetes."""
SSH = "ssh"
"""The backend of hosts with a login."""
COMMAND = "command"
"""The backend of instances that a provider's command line makes."""
CURRENT = "current"
"""The runtime that is always there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmChoice:
    """What a site file says of a Slurm cluster; what is empty is left to Slurm."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    time: str = ""
    """The limit of a job, as sbatch takes it: `30`, `1:30:00`, `2-0`."""
    options: tuple[str, ...] = ()
    """More options of sbatch."""
    modules: tuple[str, ...] = ()
    init: tuple[str, ...] = ()
    """Lines of shell to run before anything else, after the modules."""
    mpi: str = "mpirun"
    """`mpirun` (inside the allocation), or `srun` with or without a plugin: `srun-pmi2`."""
    shared: str = ""
    """A folder that all nodes have; empty: where the store is, and the documents are."""
    python: str = ""
    """What runs our part on the nodes; empty: the interpreter of rankwise."""
    mode: str = "job"
    """`job`: a job for each task; `pilot`: one that many tasks share."""
    max_queued: int | None = None
    """How many of our jobs may be in the queue or run at a time; None: as many as Slurm takes."""
    pilot_nodes: int = 1
    pilot_idle: float = 30.0
    """For how many seconds a pilot without tasks stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesChoice:
    """What a site file says of a Kubernetes cluster; what is empty is left to the cluster."""

    kubeconfig: str = ""
    """The file; empty: KUBECONFIG, ~/.kube/config, or the account of the pod that we are in."""
    context: str = ""
    namespace: str = ""
    image: str = ""
    """For tasks whose runtime is no image."""
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    service_account: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    priority_class: str = ""
    runtime_class: str = ""
    host_network: bool = False
    user: int | None = 1000
    """Who runs in the containers; None: as the image says."""
    python: str = ""
    """What runs our part in the image; empty: the first that is found."""
    code: str = "configmap"
    """How code gets into pods: `configmap`, `image` (it is there) or `claim` (a volume has it)."""
    code_path: str = ""
    """Where code is in the image or in the claim."""
    claims: Mapping[str, str] = field(default_factory=dict)
    """Persistent volume claims, and where pods have them."""
    host_paths: Mapping[str, str] = field(default_factory=dict)
    """Folders of the nodes, and where pods have them."""
    mpi: str = ""
    """Whose mpirun the images have: `openmpi4`, `openmpi5`, `mpich` or `intel`; empty: any."""
    gpu_resource: str = "nvidia.com/gpu"
    mount: str = "/rankwise"
    """The folder in pods under which our own files are."""
    port: int = 28967
    """Where the first pod of a task listens for the others."""
    autoscale: bool = False
    """Whether nodes come when they are needed: then those that are there are no limit."""
    max_parallel: int | None = None
    """How many tasks of ours may be there at a time; None: any number."""
    pending_limit: float | None = None
    """After how many seconds without a node a task is given up; None: never."""
    keep_seconds: int = 86400
    """For how long the cluster keeps what nobody has fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshChoice:
    """What a site file says of hosts with a login; what is empty is left to ssh."""

    hosts: tuple[str, ...] = ()
    """As ssh has them: `gpu1`, `user@gpu2`, `ssh://user@gpu3:2222`, or a name of its config."""
    options: tuple[str, ...] = ()
    """More options of ssh."""
    config: str = ""
    """A file in place of ~/.ssh/config."""
    folder: str = "~/.cache/rankwise/remote"
    """Where our files go over there."""
    python: str = ""
    """What runs our part there, and what commands find as `python`; empty: its python3."""
    init: tuple[str, ...] = ()
    """Lines of shell to run before anything else."""
    shared: bool = False
    """Whether hosts see the files of this machine, under the same names."""
    patience: float = 600.0
    """For how many seconds a host may be silent before what ran there is taken for lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandChoice:
    """What a site file says of a provider's command line; `${{NAME}}` is filled in."""

    create: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()
    """Ends with 0 once an instance can be used; empty: as soon as it is created."""
    run: tuple[str, ...] = ()
    """Runs `${{command}}`, a line for the shell, in an instance."""
    send: tuple[str, ...] = ()
    """Copies a file there; empty: `run` hands on its standard input."""
    fetch: tuple[str, ...] = ()
    """Copies a file from there; empty: `run` hands on what the line writes."""
    delete: tuple[str, ...] = ()
    list: tuple[str, ...] = ()
    """Says what there is, to find an instance by its name."""
    capture: tuple[tuple[str, str], ...] = ()
    """What to find in the output of `create`, and of `list`: name, and path or pattern."""
    instances: int = 1
    """How many there may be at a time."""
    reuse: bool = True
    """Whether an instance serves several tasks."""
    folder: str = "/tmp/rankwise"
    python: str = ""
    init: tuple[str, ...] = ()
    patience: float = 600.0
    create_seconds: float = 1800.0
    ready_seconds: float = 1800.0
    look_seconds: float = 0.4
    """How long an instance may wait for news before it answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeChoice:
    """Where tasks run, and what that place is said to have; None: what is found there."""

    name: str = LOCAL
    """As the document calls it."""
    backend: str = LOCAL
    cores: float | None = None
    memory: int | None = None
    """In bytes."""
    gpus: int | None = None
    oversubscribe: bool = False
    """Whether tasks may run at once that need more than there is."""
    features: tuple[str, ...] = ()
    """What matrices may need, as words or such as `mem>=64`."""
    slurm: SlurmChoice = SlurmChoice()
    ssh: SshChoice = SshChoice()
    command: CommandChoice = CommandChoice()
    kubernetes: KubernetesChoice = field(default_factory=KubernetesChoice)
    is_mapped: bool = True
    """False: no site file has the name, and this machine stands in."""
    place: str = ""
    """Where it is written: `rankwise.toml:3`."""

    def capacity(self, found: Resources) -> Resources:
        """Put what was told over what was found."""
        return Resources(
            cores=found.cores if self.cores is None else self.cores,
            memory=found.memory if self.memory is None else self.memory,
            gpus=found.gpus if self.gpus is None else self.gpus,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MailChoice:
    """Whom to send mail, and by which server."""

    name: str
    host: str = ""
    port: int = 0
    security: str = "starttls"
    """`starttls`, `tls` from the first word on, or `none`."""
    user: str = ""
    password_secret: str = ""
    """The name of the variable that has the password."""
    sender: str = ""
    to: tuple[str, ...] = ()
    ca: str = ""
    """A file with the certificates to trust; empty: those that this machine trusts."""
    when: str = "always"
    """`always`, or only if a run has `failed`."""
    place: str = ""
    """Where it is written: `rankwise.toml:3`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookChoice:
    """An address of a chat that takes messages."""

    name: str
    url: str = ""
    url_secret: str = ""
    """The name of the variable that has the address: who knows it can write into the chat."""
    style: str = "slack"
    """`slack`, `teams` or plain `json`."""
    ca: str = ""
    when: str = "always"
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one site file says; names may end in `*`."""

    file: Path
    computes: Mapping[str, ComputeChoice] = field(default_factory=dict)
    runtimes: Mapping[str, RuntimeChoice] = field(default_factory=dict)
    notified: Mapping[str, MailChoice | WebhookChoice] = field(default_factory=dict)
    """Whom to tell what became of runs."""
    default_compute: str = ""
    default_runtime: str = ""
