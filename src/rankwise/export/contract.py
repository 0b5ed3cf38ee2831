"""What is exported, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rankwise.launch.command import Launch
from rankwise.launch.derive import Counts
from rankwise.launch.request import JobRequest, RoleRequest
from rankwise.site import ComputeChoice, Site
from rankwise.site.choices import KUBERNETES
from rankwise.spec.base import mapping_in
from rankwise.spec.documents import Document
from rankwise.spec.models import Job as JobModel
from rankwise.spec.written import Found

Object = Mapping[str, Any]
"""Plain data, as it is written to YAML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the command line says."""

    on: str | None = None
    """The compute to take instead of that of the document."""
    image: str = ""
    """The image to take instead of those in the site file."""
    code_in_image: str = ""
    """The folder of the image that has the code already."""
    runtime: str = ""
    """The training runtime that a TrainJob names."""
    beside: Path = field(default_factory=Path)
    """The folder in which what is written will lie, for paths in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What a job has become."""

    name: str
    objects: Sequence[Object]
    losses: Sequence[str] = ()
    """What cannot be said there, each with its place."""
    notes: Sequence[str] = ()
    """What people must do or know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job with all that exports are made from."""

    document: Document
    model: JobModel
    request: JobRequest
    """With its inputs put into commands and variables."""
    raw: JobRequest
    """As it is written."""
    counts: Counts
    launch: Launch | None
    """The launcher in the command, if there is one that is understood."""
    role: RoleRequest
    """The one whose command starts the job."""
    name: str
    """Of DNS, and unique in what is written."""
    site: Site
    wish: Wish

    @property
    def compute(self) -> ComputeChoice:
        """What the site file says of the cluster; the only one there stands in for others."""
        name = self.request.compute
        return self.site.compute(self.site.stand_in(name, KUBERNETES) or name)

    @property
    def code(self) -> str:
        """The folder of the code; empty: the document names none."""
        return next((role.code for role in self.request.roles if role.code), "")

    @property
    def code_in_image(self) -> str:
        """The folder that has the code in pods already; empty: it is to be brought there."""
        site = self.compute.kubernetes
        return self.wish.code_in_image or (site.code_path if site.code != "configmap" else "")

    @property
    def code_field(self) -> str:
        """The path into the document that names the folder of the code."""
        is_role = mapping_in(self.document.contents, self.role.name)
        return f"{self.role.name}.spec.code" if is_role else "code"

    def limits_field(self, role: str) -> str:
        """The path into the document under which a role has its limits."""
        within = mapping_in(self.document.contents, role, "spec").get("resource_limits")
        return f"{role}.spec.resource_limits" if within is not None else f"{role}.resource_limits"

    def at(self, path: str) -> str:
        """Name the place in the document to which a path leads, such as `restart.max`."""
        position = Found(self.document.contents, path.split(".")).key_at
        return f"{self.document.path}:{position.line}:{position.column}"

    def loss(self, path: str, why: str) -> str:
        """Say that what stands under a path cannot be said elsewhere."""
        return f"{self.at(path)}: {path}: {why}"


class Target(Protocol):
    """How jobs are written for one reader."""

    def __call__(self, job: Job) -> Exported:
        """Write a job; raises InputError if it would become another one."""
