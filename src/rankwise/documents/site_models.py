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
GRID_ENGINE = "gridengine"
"""The backend of a cluster with Grid Engine."""
PBS = "pbs"
"""The backend of a cluster with PBS."""
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
TEMPLATES = ("create", "ready", "run", "send", "fetch", "metrics", "delete", "list")
"""The command lines of a provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """What a site file says of any batch system; what is empty is left to the system."""

    options: values.Texts = ()
    """More options of the submitting command, each as one text."""
    modules: values.Texts = ()
    """Modules to load first, in a login shell."""
    init: values.Texts = ()
    """Shell lines to run after the modules; the first that fails ends the job."""
    shared: tables.FilePath = ""
    """A folder that all nodes see; empty: the store and the documents are in one."""
    python: values.Text = ""
    """The interpreter (3.10 or newer) of the runner on the nodes; empty: rankwise's."""
    mode: Literal["job", "pilot"] = "job"
    """`job`: a job for each task; `pilot`: one job that many tasks share."""
    max_queued: values.PositiveInt | None = None
    """How many jobs of rankwise may wait or run at a time; empty: as many as the system takes."""
    pilot_nodes: values.PositiveInt = 1
    """How many nodes a pilot takes; more if a task needs more."""
    pilot_idle: tables.Idle = 30.0
    """After how many seconds without tasks a pilot ends; 30 unless set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmConfig(BatchConfig):
    """What a site file says of a Slurm cluster; what is empty is left to Slurm."""

    options: tables.SbatchOptions = ()
    """More options of sbatch, each as one text: `--mem=16G`."""
    partition: values.Text = ""
    """The partition; empty: the default one."""
    account: values.Text = ""
    """The account to charge."""
    qos: values.Text = ""
    """The quality of service."""
    constraint: values.Text = ""
    """Features that nodes must have, as sbatch takes them."""
    time: tables.SbatchTime = ""
    """Time limit of a job: `30`, `1:30:00`, `2-0`; empty: from `timeout`, or the partition's."""
    mpi: tables.SlurmMpi = "mpirun"
    """How MPI ranks start: by `mpirun`, or by `srun`, `srun-pmi2` or `srun-pmix` in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridEngineConfig(BatchConfig):
    """What a site file says of a cluster with Grid Engine; what is empty is left to it."""

    options: tables.QsubOptions = ()
    """More words for qsub, each as one text: `-l`, `arch=lx-amd64`."""
    queue: values.Text = ""
    """The queue; empty: any."""
    time: tables.WallTime = ""
    """Time limit of a job: minutes, or `1:30:00`; empty: from `timeout`, or the queue's."""
    pe: values.Text = "smp"
    """The parallel environment of tasks on one node: all slots on one host; `smp` unless set."""
    pe_nodes: values.Text = ""
    """That of tasks on several nodes; `{cores}` stands for the slots on each: `mpi-{cores}`."""
    memory: values.Text = ""
    """The resource by which a slot asks for memory, such as `h_vmem`; empty: none is asked for."""
    gpu: values.Text = "gpu"
    """The resource that counts GPUs of a host; `gpu` unless set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PbsConfig(BatchConfig):
    """What a site file says of a cluster with PBS; what is empty is left to PBS."""

    options: tables.QsubOptions = ()
    """More words for qsub, each as one text: `-W`, `group_list=physics`."""
    queue: values.Text = ""
    """The queue; empty: the default one."""
    account: values.Text = ""
    """The account to charge."""
    time: tables.WallTime = ""
    """Time limit of a job: minutes, or `1:30:00`; empty: from `timeout`, or the queue's."""
    reach: values.Texts = ("ssh", "-oBatchMode=yes", "{node}")
    """The words that have a shell on another node of the job read a line; ssh unless set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesConfig:
    """What a site file says of a Kubernetes cluster; what is empty is left to the cluster."""

    kubeconfig: tables.FilePath = ""
    """The file; empty: KUBECONFIG, `~/.kube/config`, or the account of rankwise's own pod."""
    context: values.Text = ""
    """The context in the file; empty: the current one."""
    namespace: tables.Namespace = ""
    """The namespace; empty: the context's."""
    image: tables.Image = ""
    """The image for tasks whose runtime is not an image."""
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When the image is pulled."""
    pull_secrets: values.Texts = ()
    """Secrets for the registry."""
    service_account: values.Text = ""
    """The service account of pods."""
    node_selector: dict[str, str] = field(default_factory=dict)
    """Labels that nodes must have: `{ "disk" = "ssd" }`."""
    tolerations: tables.Tolerations = ()
    """As in a pod: `[{ key = "gpu", operator = "Exists" }]`."""
    labels: tables.Labels = field(default_factory=dict)
    """More labels of all objects."""
    annotations: dict[str, str] = field(default_factory=dict)
    """More annotations of all objects."""
    priority_class: values.Text = ""
    """The priority class of pods."""
    runtime_class: values.Text = ""
    """The runtime class of pods."""
    host_network: values.Bool = False
    """Whether pods use the network of their node."""
    user: tables.Account = 1000
    """The user id in containers, or `image`: as the image says."""
    python: values.Text = ""
    """The interpreter of the runner in the image; empty: the first new enough `python3`."""
    code: Literal["configmap", "image", "claim"] = "configmap"
    """Where code comes from: a `configmap`, the `image` or a `claim`."""
    code_path: values.Text = ""
    """The folder with the code in the image or the claim."""
    claims: dict[str, tables.PodFolder] = field(default_factory=dict)
    """Persistent volume claims and their folders in pods: `{ "data" = "/data" }`."""
    host_paths: dict[str, tables.PodFolder] = field(default_factory=dict)
    """Folders of nodes and their folders in pods; only if you trust all who write jobs."""
    mpi: Literal["openmpi5", "openmpi4", "mpich", "intel", ""] = ""
    """The MPI of the image, whose options are then adapted; empty: commands stay as they are."""
    gpu_resource: values.Text = "nvidia.com/gpu"
    """The resource name of a GPU."""
    mount: tables.Folder = "/rankwise"
    """The folder in pods with rankwise's own files."""
    port: tables.PodPort = 28967
    """The port on which the head listens for the other pods."""
    autoscale: values.Bool = False
    """Whether nodes appear on demand: then the present ones are no limit."""
    max_parallel: values.PositiveInt | None = None
    """How many tasks may be there at a time; empty: any number."""
    pending_limit: values.Seconds | None = None
    """After how many seconds without a node a task is given up; empty: never."""
    keep_seconds: tables.KeepSeconds = 86400
    """For how long the cluster keeps ended jobs that were not fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshConfig:
    """What a site file says of hosts with a login; what is empty is left to ssh."""

    hosts: tables.Hosts = ()
    """As ssh takes them: `gpu1`, `user@gpu2`, `ssh://user@gpu3:2222`."""
    options: tables.SshOptions = ()
    """More options of ssh, each word as one text."""
    config: tables.FilePath = ""
    """A file in place of `~/.ssh/config`."""
    folder: values.Text = "~/.cache/rankwise/remote"
    """The folder for files of rankwise on the host; only the user may be able to write to it."""
    python: values.Text = ""
    """The interpreter of the runner, and the `python` of commands; empty: `python3`."""
    init: values.Texts = ()
    """Shell lines to run before anything else."""
    shared: values.Bool = False
    """Whether hosts see the files of this machine under the same names; then nothing is copied."""
    patience: values.Seconds = 600.0
    """After how many seconds of silence unsent tasks go to other hosts; 600 unless set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandConfig:
    """What a site file says of a provider's command line; `${{NAME}}` is filled in."""

    create: tables.CommandLine = ()
    """Creates an instance with the name `${{name}}`."""
    ready: tables.CommandLine = ()
    """Exits with 0 when the instance can be used; empty: after `create`."""
    run: tables.CommandLine = ()
    """Runs `${{command}}`, a line for the shell, in an instance."""
    send: tables.CommandLine = ()
    """Copies a file to the instance; empty: through the standard input of `run`."""
    fetch: tables.CommandLine = ()
    """Copies a file from the instance; empty: through the output of `run`."""
    metrics: tables.CommandLine = ()
    """Prints as JSON or CSV what was measured from `${{start}}` to `${{end}}`; empty: nothing."""
    delete: tables.CommandLine = ()
    """Deletes the instance."""
    list: tables.CommandLine = ()
    """Lists instances, to find one by its name."""
    capture: tables.Captures = ()
    """What to find in the output of `create` and `list`: names with a path or a pattern."""
    instances: values.PositiveInt = 1
    """How many instances there may be at a time."""
    reuse: values.Bool = True
    """Whether an instance serves several tasks."""
    folder: values.Text = "~/.cache/rankwise/remote"
    """The folder for files of rankwise in an instance."""
    python: values.Text = ""
    """The interpreter of the runner, and the `python` of commands; empty: `python3`."""
    init: values.Texts = ()
    """Shell lines to run before anything else."""
    patience: values.Seconds = 600.0
    """After how many seconds of silence unsent tasks go elsewhere; 600 unless set."""
    create_seconds: values.Seconds = 1800.0
    """How long `create` may take; 1800 unless set."""
    ready_seconds: values.Seconds = 1800.0
    """How long until `ready` succeeds; 1800 unless set."""
    look_seconds: values.Seconds = 0.4
    """How long an instance waits for news before it answers; 0.4 unless set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeConfig:
    """Where tasks run, and what that place is said to have; None: what is found there."""

    name: str = LOCAL
    """As the document calls it."""
    backend: str = LOCAL
    """The kind of backend."""
    cores: values.Cores | None = None
    """Cores that tasks may use together; empty: what is found."""
    memory: values.Bytes | None = None
    """Memory that tasks may use together: bytes, `64GiB`, `500M`; empty: what is found."""
    gpus: values.NonNegativeInt | None = None
    """GPUs that tasks may use together; empty: what is found."""
    oversubscribe: values.Bool = False
    """Whether tasks may run at once that need more than there is."""
    features: values.Texts = ()
    """What matrices may need here: words, or `mem>=64`."""
    enforce_limits: values.Bool = True
    """Whether processes are held to the `resource_limits` of their roles; true unless set."""
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
    """A mail server."""
    host: values.Text = ""
    """The mail server."""
    port: tables.Port = 0
    """The port; 0: the usual one for `security`."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """`starttls`, `tls` from the start, or `none`."""
    user: values.Text = ""
    """The user at the server."""
    password_secret: values.Text = ""
    """The variable with the password."""
    sender: tables.Address = ""
    """The address of the sender."""
    to: tables.Addresses = ()
    """Addresses of the recipients."""
    ca: tables.FilePath = ""
    """A file of certificates to trust; empty: those of this machine."""
    when: Literal["always", "failed"] = "always"
    """Always, or only if a run failed."""
    place: str = ""
    """Where it is written: `rankwise.toml:3`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookConfig:
    """An address of a chat that takes messages."""

    name: str
    kind: Literal["webhook"] = "webhook"
    """The webhook of a chat."""
    url: tables.Url = ""
    """The address."""
    url_secret: values.Text = ""
    """The variable with the address, for an address that must stay secret."""
    style: Literal["slack", "teams", "json"] = "slack"
    """The form of messages."""
    ca: tables.FilePath = ""
    """A file of certificates to trust; empty: those of this machine."""
    when: Literal["always", "failed"] = "always"
    """Always, or only if a run failed."""
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
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Files and folders here, by names that inputs have elsewhere."""
    default_compute: str = ""
    default_runtime: str = ""


def is_path(rule: str) -> bool:
    """Return whether what to capture is a path into JSON, and no pattern."""
    return rule.startswith("$") and not rule.startswith("${{")
