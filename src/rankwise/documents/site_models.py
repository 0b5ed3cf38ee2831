"""What the site file says, as data.

Types in annotations are those of `values` and of `site_tables`, which makes models for pydantic of
these classes when there is a site file to read. Without one, pydantic is not loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankwise.plan import Resources, RuntimeChoice

if TYPE_CHECKING:
    from rankwise.documents import site_tables as tables
    from rankwise.documents import values

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
ELSEWHERE = (KUBERNETES, SSH, COMMAND)
"""Backends whose attempts leave their records on other machines, from which they are fetched."""
CURRENT = "current"
"""The runtime that is always there."""


# In the order in which an instance needs them.
TEMPLATES = ("create", "ready", "run", "send", "fetch", "delete", "list")
"""The command lines of a provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """What a site file says of any batch system; what is empty is left to the system."""

    options: values.Texts = ()
    """More options of the command that submits, each as one text."""
    modules: values.Texts = ()
    """Modules to load first, in a login shell."""
    init: values.Texts = ()
    """Lines of shell to run before anything else, after the modules."""
    shared: tables.FilePath = ""
    """A folder that all nodes have; empty: where the store is, and the documents are."""
    python: values.Text = ""
    """What runs our part on the nodes; empty: the interpreter of rankwise."""
    mode: Literal["job", "pilot"] = "job"
    """`job`: a job for each task; `pilot`: one that many tasks share."""
    max_queued: values.PositiveInt | None = None
    """How many of our jobs may be in the queue or run at a time; None: as many as it takes."""
    pilot_nodes: values.PositiveInt = 1
    """How many nodes a pilot takes, if no task needs more."""
    pilot_idle: tables.Idle = 30.0
    """For how many seconds a pilot without tasks stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmConfig(BatchConfig):
    """What a site file says of a Slurm cluster; what is empty is left to Slurm."""

    options: tables.SbatchOptions = ()
    """More options of sbatch, each as one text: `--mem=16G`."""
    partition: values.Text = ""
    account: values.Text = ""
    qos: values.Text = ""
    constraint: values.Text = ""
    time: tables.SbatchTime = ""
    """The limit of a job, as sbatch takes it: `30`, `1:30:00`, `2-0`."""
    mpi: tables.SlurmMpi = "mpirun"
    """`mpirun` (inside the allocation), or `srun` with or without a plugin: `srun-pmi2`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesConfig:
    """What a site file says of a Kubernetes cluster; what is empty is left to the cluster."""

    kubeconfig: tables.FilePath = ""
    """The file; empty: KUBECONFIG, ~/.kube/config, or the account of the pod that we are in."""
    context: values.Text = ""
    namespace: tables.Namespace = ""
    image: tables.Image = ""
    """For tasks whose runtime is no image."""
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    pull_secrets: values.Texts = ()
    service_account: values.Text = ""
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tables.Tolerations = ()
    labels: tables.Labels = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    priority_class: values.Text = ""
    runtime_class: values.Text = ""
    host_network: values.Bool = False
    user: tables.Account = 1000
    """Who runs in the containers: the number of a user, or `image`: as the image says (None)."""
    python: values.Text = ""
    """What runs our part in the image; empty: the first that is found."""
    code: Literal["configmap", "image", "claim"] = "configmap"
    """How code gets into pods: `configmap`, `image` (it is there) or `claim` (a volume has it)."""
    code_path: values.Text = ""
    """Where code is in the image or in the claim."""
    claims: dict[str, tables.PodFolder] = field(default_factory=dict)
    """Persistent volume claims, and where pods have them."""
    host_paths: dict[str, tables.PodFolder] = field(default_factory=dict)
    """Folders of the nodes, and where pods have them."""
    mpi: Literal["openmpi5", "openmpi4", "mpich", "intel", ""] = ""
    """Whose mpirun the images have: `openmpi4`, `openmpi5`, `mpich` or `intel`; empty: any."""
    gpu_resource: values.Text = "nvidia.com/gpu"
    mount: tables.Folder = "/rankwise"
    """The folder in pods under which our own files are."""
    port: tables.PodPort = 28967
    """Where the first pod of a task listens for the others."""
    autoscale: values.Bool = False
    """Whether nodes come when they are needed: then those that are there are no limit."""
    max_parallel: values.PositiveInt | None = None
    """How many tasks of ours may be there at a time; None: any number."""
    pending_limit: values.Seconds | None = None
    """After how many seconds without a node a task is given up; None: never."""
    keep_seconds: tables.KeepSeconds = 86400
    """For how long the cluster keeps records that are not fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshConfig:
    """What a site file says of hosts with a login; what is empty is left to ssh."""

    hosts: tables.Hosts = ()
    """As ssh has them: `gpu1`, `user@gpu2`, `ssh://user@gpu3:2222`, or a name of its config."""
    options: tables.SshOptions = ()
    """More options of ssh, each word as one text."""
    config: tables.FilePath = ""
    """A file in place of ~/.ssh/config."""
    folder: values.Text = "~/.cache/rankwise/remote"
    """Where our files go over there; only the user may be able to write into it."""
    python: values.Text = ""
    """What runs our part there, and what commands find as `python`; empty: its python3."""
    init: values.Texts = ()
    """Lines of shell to run before anything else."""
    shared: values.Bool = False
    """Whether hosts see the files of this machine, under the same names."""
    patience: values.Seconds = 600.0
    """For how many seconds a host may be silent before what was not sent there goes elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandConfig:
    """What a site file says of a provider's command line; `${{NAME}}` is filled in."""

    create: tables.CommandLine = ()
    ready: tables.CommandLine = ()
    """Ends with 0 once an instance can be used; empty: as soon as it is created."""
    run: tables.CommandLine = ()
    """Runs `${{command}}`, a line for the shell, in an instance."""
    send: tables.CommandLine = ()
    """Copies a file there; empty: `run` hands on its standard input."""
    fetch: tables.CommandLine = ()
    """Copies a file from there; empty: `run` hands on what the line writes."""
    delete: tables.CommandLine = ()
    list: tables.CommandLine = ()
    """Says what there is, to find an instance by its name."""
    capture: tables.Captures = ()
    """What to find in the output of `create`, and of `list`: name, and path or pattern."""
    instances: values.PositiveInt = 1
    """How many there may be at a time."""
    reuse: values.Bool = True
    """Whether an instance serves several tasks."""
    folder: values.Text = "~/.cache/rankwise/remote"
    """As for hosts."""
    python: values.Text = ""
    init: values.Texts = ()
    patience: values.Seconds = 600.0
    create_seconds: values.Seconds = 1800.0
    ready_seconds: values.Seconds = 1800.0
    look_seconds: values.Seconds = 0.4
    """How long an instance may wait for news before it answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeConfig:
    """Where tasks run, and what that place is said to have; None: what is found there."""

    name: str = LOCAL
    """As the document calls it."""
    backend: str = LOCAL
    cores: values.Cores | None = None
    """How many cores tasks may use together."""
    memory: values.Bytes | None = None
    """In bytes."""
    gpus: values.NonNegativeInt | None = None
    oversubscribe: values.Bool = False
    """Whether tasks may run at once that need more than there is."""
    features: values.Texts = ()
    """What matrices may need, as words or such as `mem>=64`."""
    batch: BatchConfig = BatchConfig()
    """What the batch system is told, if the backend is one."""
    ssh: SshConfig = SshConfig()
    command: CommandConfig = CommandConfig()
    kubernetes: KubernetesConfig = field(default_factory=KubernetesConfig)
    is_mapped: bool = True
    """False: no site file has the name, and this machine stands in."""
    place: str = ""
    """Where it is written: `rankwise.toml:3`."""

    @property
    def is_batch(self) -> bool:
        """Return whether the backend is a batch system: Slurm, or one of another package."""
        return self.backend not in (LOCAL, *ELSEWHERE)

    def capacity(self, found: Resources) -> Resources:
        """Put what was told over what was found."""
        return Resources(
            cores=found.cores if self.cores is None else self.cores,
            memory=found.memory if self.memory is None else self.memory,
            gpus=found.gpus if self.gpus is None else self.gpus,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MailConfig:
    """Recipients of mail, and the server to use."""

    name: str
    kind: Literal["mail"] = "mail"
    host: values.Text = ""
    port: tables.Port = 0
    """0: the one that goes with the security."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """`starttls`, `tls` from the first word on, or `none`."""
    user: values.Text = ""
    password_secret: values.Text = ""
    """The name of the variable that has the password."""
    sender: tables.Address = ""
    to: tables.Addresses = ()
    ca: tables.FilePath = ""
    """A file with the certificates to trust; empty: those that this machine trusts."""
    when: Literal["always", "failed"] = "always"
    """`always`, or only if a run has `failed`."""
    place: str = ""
    """Where it is written: `rankwise.toml:3`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookConfig:
    """An address of a chat that takes messages."""

    name: str
    kind: Literal["webhook"] = "webhook"
    url: tables.Url = ""
    url_secret: values.Text = ""
    """The name of the variable that has the address: who knows it can write into the chat."""
    style: Literal["slack", "teams", "json"] = "slack"
    """`slack`, `teams` or plain `json`."""
    ca: tables.FilePath = ""
    when: Literal["always", "failed"] = "always"
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifierConfig:
    """Recipients by the notifier of another package."""

    name: str
    kind: str
    """The name of its entry point."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """All other keys, as they are written."""
    when: str = "always"
    place: str = ""


NotifyConfig = MailConfig | WebhookConfig | NotifierConfig
"""What `[notify.NAME]` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one site file says; names may end in `*`."""

    file: Path
    computes: Mapping[str, ComputeConfig] = field(default_factory=dict)
    runtimes: Mapping[str, RuntimeChoice] = field(default_factory=dict)
    notified: Mapping[str, NotifyConfig] = field(default_factory=dict)
    """Recipients of the results of runs."""
    default_compute: str = ""
    default_runtime: str = ""


def is_path(rule: str) -> bool:
    """Return whether what to capture is a path into JSON, and no pattern."""
    return rule.startswith("$") and not rule.startswith("${{")
