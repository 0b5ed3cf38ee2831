"""What a job asks for, whatever document it came from, and what the machine tells about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rankwise.launch.mpiexec import Family
from rankwise.plan import Resources, Restart, RuntimeChoice

Kind = Literal["mpi", "pytorch", "tensorflow", "plain"]
Success = Literal["all", "launcher", "chief"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRequest:
    """One part that processes of a job play."""

    name: str
    replicas: int | None = None
    command: str = ""
    code: str = ""
    """An absolute folder; empty: the role does not say."""
    runtime: RuntimeChoice = RuntimeChoice()
    resources: Resources = Resources()
    """Of one replica."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One distributed job; what is None was not said, and is derived."""

    kind: Kind
    name: str
    roles: tuple[RoleRequest, ...]
    key: str = "train"
    """The task's name within its plan."""
    instance_count: int | None = None
    process_count_per_instance: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    timeout: float | None = None
    restart: Restart = Restart()
    success: Success | None = None
    compute: str = "local"
    folder: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    generate_launcher: bool = False
    """Whether the command is a plain program for which the mpiexec is yet to be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known about the machine on which the job is to run."""

    cores: int = 1
    gpus: int = 0
    has_mpi4py: bool = False
    """Whether the Python that the job would find has it."""
    srun_plugin: str | None = None
    """By which of its plugins srun starts the ranks of MPI; empty: its own; None: mpirun does."""
    has_pods: bool = False
    """Whether each replica of a role has a place of its own, and the launcher too."""
    mpi_family: Family = "unknown"
    """Whose the mpirun is that the job would find."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that all processes there need; those of the job and of its document go before."""
