"""Models of distributed jobs: MPI, PyTorch, TensorFlow, and command jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from rankwise.documents import common, values
from rankwise.documents.common import ComputeRef, Conflict, Model, RestartPolicy
from rankwise.documents.values import number_in, whole
from rankwise.documents.written import entries_in, mapping_in
from rankwise.wording import code


class Code(Model):
    """The folder with the program. A text alone is the path."""

    short_form: ClassVar[str] = "path"

    path: values.Text = Field(examples=["./src"])
    """A folder, from that of the document. Each node gets a copy to work in."""


class ResourceLimits(Model):
    """What each process of a role may use."""

    cpu: values.Cores | None = Field(default=None, examples=[4, "500m"])
    """Cores: a number, or thousandths of one."""
    memory: values.Bytes | None = Field(default=None, examples=["2Gi", "500M"])
    """Memory: bytes, or with a unit."""
    gpu: values.NonNegativeInt | None = Field(default=None, examples=[4])
    """Number of GPUs."""


class RoleSpec(Model):
    """What a role has: its code, and what it runs in."""

    code: Code | None = None
    """The folder with the program; none given: that of the document."""
    environment: values.Text = Field(default="", examples=["azureml:pytorch-1.7:1"])
    """Name of what commands run in. rankwise.toml says what it is: this Python, a virtual
    environment or a container.
    """
    resource_limits: ResourceLimits | None = None
    """What each process may use."""


class CommandSpec(RoleSpec):
    """What a role runs."""

    command: values.Text = Field(examples=["python train.py"])
    """The line to run, by the shell."""


class MpiWorkerSpec(RoleSpec):
    """What the workers of an MPI job have."""


class Role(Model):
    """A role: a part of the job, played by one or more processes."""

    spec: RoleSpec
    """What the role has."""
    resource_limits: ResourceLimits | None = None
    """What each process may use; the same as within `spec`."""

    @property
    def limits(self) -> ResourceLimits:
        """What each process may use, wherever it was written."""
        return self.spec.resource_limits or self.resource_limits or ResourceLimits()

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        within = mapping_in(contents, "spec").get("resource_limits")
        if within is not None and contents.get("resource_limits") is not None:
            why = "`resource_limits` stands in `spec` as well; keep one of them"
            yield Conflict(("resource_limits",), why)


class Replicas(Role):
    """A role that several processes or nodes can play."""

    spec: CommandSpec
    """What each of them runs."""
    num_replicas: values.PositiveInt | None = Field(default=None, examples=[4])
    """How many there are."""


class Single(Role):
    """A role that exactly one process plays."""

    spec: CommandSpec
    """What it runs."""
    # Documents of Kubernetes say it though there is only one possible value.
    num_replicas: Annotated[
        int, BeforeValidator(whole(1, 1)), WithJsonSchema({"type": "integer", "const": 1})
    ] = 1
    """There is one."""


class MpiWorker(Role):
    """The nodes on which the launcher starts ranks."""

    spec: MpiWorkerSpec = Field(default_factory=MpiWorkerSpec)
    """What the nodes have."""
    num_replicas: values.PositiveInt | None = Field(default=None, examples=[4])
    """How many nodes; the same as `compute.instance_count`."""


class DocumentModel(Model):
    """What documents of every type may say about themselves."""

    type: str
    """What the document is."""
    name: values.Name = Field(default="", examples=["train-mnist"])
    """Name of the runs; none given: that of the file."""
    experiment_name: values.Text = Field(default="", examples=["mnist"])
    """What the run is part of."""
    description: str = ""
    """A note for people."""
    tags: values.Tags = Field(default={}, examples=[{"team": "vision"}])
    """Notes by which runs are found."""
    schema_uri: values.Text = Field(
        default="", alias="$schema", examples=["./rankwise.schema.json"]
    )
    """For editors: the JSON Schema that the document follows."""


class JobModel(DocumentModel):
    """What all jobs have in common."""

    environment_variables: values.Variables = Field(default={}, examples=[{"OMP_NUM_THREADS": 1}])
    """For all processes."""
    secrets: values.Secrets = Field(default=(), examples=[["HF_TOKEN"]])
    """Names of environment variables that are passed on from where `rankwise` is started. Their
    values are kept nowhere.
    """
    inputs: dict[values.Variable, common.Input] = Field(
        default={}, examples=[{"learning_rate": 0.01}]
    )
    """What `${{inputs.NAME}}` stands for in commands."""
    restart: RestartPolicy | None = None
    """When to start again; none given: never."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        secrets = entries_in(contents, "secrets")
        for index, name in enumerate(secrets):
            if isinstance(name, str) and name in mapping_in(contents, "environment_variables"):
                why = f"{code(name)} is one of `secrets` too; leave its value out here"
                yield Conflict(("environment_variables", name), why)
            if name in secrets[:index]:
                yield Conflict(("secrets", index), "this name is in `secrets` already")


class RoleJob(JobModel):
    """What the jobs made of roles have in common."""

    roles: ClassVar[tuple[str, ...]] = ()

    compute: ComputeRef = Field(default_factory=ComputeRef)
    """Where to run, and on how many nodes."""
    timeout: values.Seconds | None = Field(default=None, examples=["1h30m", 90])
    """Longest run time of an attempt: seconds, or with units; none: no limit."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from super().conflicts(contents)
        # Jobs with roles have no outputs: `${{outputs.NAME}}` is an error there.
        known = {"inputs": mapping_in(contents, "inputs")}
        for role in cls.roles:
            command = mapping_in(contents, role, "spec").get("command")
            yield from common.unknown_references(command, (role, "spec", "command"), known)


class MpiJob(RoleJob):
    """A launcher that starts ranks on all nodes: mpirun, mpiexec, horovodrun."""

    roles: ClassVar[tuple[str, ...]] = ("launcher",)

    type: Literal["MpiJob"]
    """Says that this is an MPI job."""
    launcher: Single
    """What starts the ranks."""
    worker: MpiWorker | None = None
    """The nodes on which the ranks are started."""
    process_count_per_instance: values.PositiveInt | None = Field(default=None, examples=[4])
    """Ranks on each node, for the host file; none given: from the launcher's `-np`, else from GPUs
    or cores.
    """
    success: Literal["all", "launcher"] = "all"
    """Whose success is the job's: that of every rank or of the launcher."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from super().conflicts(contents)
        # Kubeflow calls the number of nodes replicas, Azure ML instances.
        workers = number_in(mapping_in(contents, "worker").get("num_replicas"))
        nodes = number_in(mapping_in(contents, "compute").get("instance_count"))
        if workers is not None and nodes is not None and workers != nodes:
            yield Conflict(
                ("worker", "num_replicas"),
                f"`worker.num_replicas` ({workers}) and `compute.instance_count` ({nodes}) are "
                "both the number of nodes; keep one of them",
            )


class PytorchJob(RoleJob):
    """The same command on every node, which finds the others by MASTER_ADDR and the like."""

    roles: ClassVar[tuple[str, ...]] = ("worker",)

    type: Literal["PytorchJob"]
    """Says that this is a PyTorch job."""
    worker: Replicas
    """What runs on each node."""
    process_count_per_instance: values.PositiveInt | None = Field(default=None, examples=[4])
    """Processes on each node; none given: one if the command starts processes itself, else from
    GPUs or cores.
    """
    success: Literal["all", "chief"] = "all"
    """Whose success is the job's: that of every process or of rank 0."""


class TensorflowJob(RoleJob):
    """Workers, and perhaps parameter servers, which find each other by TF_CONFIG."""

    roles: ClassVar[tuple[str, ...]] = ("chief", "worker", "parameter_server", "evaluator")

    type: Literal["TensorflowJob"]
    """Says that this is a TensorFlow job."""
    worker: Replicas
    """The processes that train."""
    parameter_server: Replicas | None = None
    """The processes that keep the parameters; ended when the workers are done."""
    chief: Single | None = None
    """The process that leads; none given: the first worker."""
    evaluator: Single | None = None
    """One more process, which evaluates."""
    success: Literal["all", "chief"] = "all"
    """Whose success is the job's: that of all workers or of the chief."""


# Fields of Azure ML that rankwise does not have: documents written for it stay valid, and the plan
# has a notice for each field.
_WITHOUT_EFFECT = "no effect"


def _foreign(description: str) -> Any:
    return Field(
        description=f"{description} Read, but without effect here.",
        json_schema_extra={"x-rankwise": _WITHOUT_EFFECT},
    )


class MpiDistribution(Model):
    """Ranks of MPI: the command is that of one rank."""

    type: Literal["mpi"]
    """The ranks find each other by MPI."""
    process_count_per_instance: values.PositiveInt = Field(default=1, examples=[4])
    """Ranks on each node."""


class PytorchDistribution(Model):
    """Processes of torch.distributed: the command is that of one process."""

    type: Literal["pytorch"]
    """The processes find each other by MASTER_ADDR and the like."""
    process_count_per_instance: values.PositiveInt = Field(default=1, examples=[4])
    """Processes on each node."""


class TensorflowDistribution(Model):
    """Workers and parameter servers of TensorFlow."""

    type: Literal["tensorflow"]
    """The processes find each other by TF_CONFIG."""
    worker_count: values.PositiveInt | None = Field(default=None, examples=[4])
    """Workers; none given: one on each node."""
    parameter_server_count: values.NonNegativeInt = Field(default=0, examples=[2])
    """Parameter servers."""


Distribution = Annotated[
    MpiDistribution | PytorchDistribution | TensorflowDistribution, Field(discriminator="type")
]


class JobResources(Model):
    """What the job needs."""

    instance_count: values.PositiveInt = Field(default=1, examples=[4])
    """Number of nodes."""
    instance_type: Annotated[values.Text, _foreign("Kind of the nodes.")] = ""
    shm_size: Annotated[values.Text, _foreign("Shared memory of the container.")] = ""
    docker_args: Annotated[values.Text, _foreign("Options for the container.")] = ""


class JobLimits(Model):
    """What the job must keep to."""

    timeout: values.Seconds | None = Field(default=None, examples=[3600])
    """Longest run time: seconds, or with units; none given: no limit."""


class BuildFolder(Model):
    """The folder from which an image is built."""

    path: values.Text = Field(examples=["docker-context"])
    """The folder, from that of the document."""
    dockerfile_path: values.Text = "Dockerfile"
    """The file with the steps, from that folder."""


class JobEnvironment(Model):
    """What a command runs in. A text alone is its name."""

    short_form: ClassVar[str] = "name"

    name: values.Text = Field(default="", examples=["azureml:pytorch-1.7:1"])
    """Its name, which rankwise.toml maps to a Python, a virtual environment or a container."""
    image: values.Text = Field(default="", examples=["library/python:3.12"])
    """An image, used where a container engine is installed."""
    conda_file: values.Text | dict[str, Any] | None = Field(default=None, examples=["conda.yaml"])
    """A conda file, or what stands in it: conda or micromamba makes the environment where it is
    installed, else uv makes one of the packages of pip.
    """
    build: BuildFolder | None = None
    """The folder from which its image is built."""
    version: Annotated[Any, _foreign("Its version.")] = None

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        if contents.get("build") is not None:
            yield from cls.exactly_one(contents, ("build", "image"), "an environment")

    @property
    def is_inline(self) -> bool:
        """Return whether it is described here, and not only named."""
        return bool(self.image or self.conda_file or self.build)


class CommandJob(JobModel):
    """One command, which rankwise starts once for each process of the distribution."""

    # Azure ML lets the schema stand for the type.
    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["type"]}, {"required": ["$schema"]}]}
    )

    type: Literal["command"] = "command"
    """Says that this is a command job."""
    command: values.Text = Field(examples=["python train.py --lr ${{inputs.lr}}"])
    """The line to run, by the shell."""
    code: Code | None = None
    """The folder with the program; none given: that of the document."""
    environment: JobEnvironment = Field(default_factory=JobEnvironment.model_construct)
    """What the command runs in."""
    compute: ComputeRef = Field(default_factory=ComputeRef)
    """Where to run."""
    resources: JobResources = Field(default_factory=JobResources)
    """Number of nodes, and more."""
    distribution: Distribution | None = None
    """How processes find each other; none given: there is one process."""
    outputs: common.JobOutputs = Field(default={})
    """What `${{outputs.NAME}}` stands for in the command."""
    limits: JobLimits = Field(default_factory=JobLimits)
    """Limit of the run time."""
    display_name: str = Field(default="", examples=["Digits on two nodes"])
    """A name for people, by which runs go where there is no `name`."""
    identity: Annotated[Any, _foreign("Who the job acts for.")] = None
    services: Annotated[Any, _foreign("Ways into the running job.")] = None
    queue_settings: Annotated[Any, _foreign("How urgent the job is.")] = None

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from super().conflicts(contents)
        resources, compute = mapping_in(contents, "resources"), mapping_in(contents, "compute")
        known = {
            "inputs": mapping_in(contents, "inputs"),
            "outputs": mapping_in(contents, "outputs"),
        }
        yield from common.unknown_references(contents.get("command"), ("command",), known)
        nodes = number_in(resources.get("instance_count"))
        if contents.get("distribution") is None and nodes is not None and nodes > 1:
            why = f"{nodes} nodes need a `distribution` that says how they work together"
            yield Conflict(("resources", "instance_count"), why)
        if compute.get("instance_count") is not None:
            why = "in a command job the number of nodes is `resources.instance_count`"
            yield Conflict(("compute", "instance_count"), why)

    def without_effect(self) -> tuple[str, ...]:
        """Name the fields that were given but are only read."""
        return tuple(_given_in_vain(self))


def _given_in_vain(model: Model, path: str = "") -> Iterator[str]:
    for name in sorted(model.model_fields_set):
        extra = type(model).model_fields[name].json_schema_extra
        value = getattr(model, name)
        if isinstance(extra, dict) and extra.get("x-rankwise") == _WITHOUT_EFFECT:
            yield path + name
        elif isinstance(value, Model):
            yield from _given_in_vain(value, f"{path}{name}.")
