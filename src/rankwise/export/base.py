"""What is exported and to which systems: targets, gathered jobs, names, YAML text."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.representer import SafeRepresenter

from rankwise.backends.kubernetes.objects import dns_name
from rankwise.documents.jobs import JobModel
from rankwise.documents.load import Document, load
from rankwise.documents.site import Site, find_site
from rankwise.documents.site_models import KUBERNETES, ComputeConfig
from rankwise.documents.written import Faults, Location, mapping_in
from rankwise.errors import InputError
from rankwise.launch import jobs
from rankwise.launch.commandline import Launch, read_command
from rankwise.launch.jobs import Counts, JobRequest, RoleRequest
from rankwise.plan import fill_in
from rankwise.planning.jobs import check_code, compute_of, request_of
from rankwise.planning.planner import free_name, named_files

Object = Mapping[str, Any]
"""Plain data, as it is written to YAML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
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
class ExportJob:
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
    options: ExportOptions

    @property
    def compute(self) -> ComputeConfig:
        """What the site file says of the cluster; the only one there stands in for others."""
        name = self.request.compute
        return self.site.compute(self.site.stand_in(name, KUBERNETES) or name)

    @property
    def code(self) -> str:
        """The folder of the code; empty: the document names none."""
        return next((role.code for role in self.request.roles if role.code), "")

    def losses_of_code(self) -> Iterator[str]:
        """Say which roles have code of their own, which they do not get."""
        for role in self.request.roles:
            if role.code not in ("", self.code) and not self.code_in_image:
                yield self.loss(f"{role.name}.spec.code", "it has that of the first")

    @property
    def code_in_image(self) -> str:
        """The folder that has the code in pods already; empty: it is to be brought there."""
        site = self.compute.kubernetes
        return self.options.code_in_image or (site.code_path if site.code != "configmap" else "")

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
        return f"{self.document.path}{Location(self.document.contents, path.split('.')).key_at}"

    def loss(self, path: str, why: str) -> str:
        """Say that what stands under a path cannot be said elsewhere."""
        return f"{self.at(path)}: {path}: {why}"


Target = Callable[[ExportJob], Exported]
"""Writes a job for one reader; raises InputError if it would become another job there."""

_LONGEST_NAME = 40
"""Operators add to a name, such as `-worker-127`, and all of it must fit into 63."""


def unique(name: str, taken: set[str]) -> str:
    """Return a name that is not taken yet, and take it."""
    found = free_name(name, taken)
    taken.add(found)
    return found


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that have a value: what is not said is left to the reader's default."""
    return {name: value for name, value in fields.items() if value}


OUTPUTS_FOLDER = "/tmp/rankwise"
"""Where a pod has what on this machine is the folder of an attempt."""


def gather(document: Document, site: Site, options: ExportOptions, taken: set[str]) -> ExportJob:
    """Make a job of a document; `taken` are the names that others in the same file have.

    Raises InputError if it is no job, or asks for what cannot be.
    """
    model = document.model
    if not isinstance(model, JobModel):
        raise InputError(
            f"{document.path}: a {model.type} cannot be exported, only a job; to send its tasks "
            "to a cluster: rankwise run --on NAME"
        )
    check_code(document)
    compute = options.on or compute_of(document).target or site.default_compute
    raw = request_of(document, site, key=model.name, compute=compute)
    # Azure ML fills in inputs by itself and gets `raw`; for pods it is done here.
    request = jobs.with_inputs(raw)
    # What on this machine is the folder of the attempt is a folder of the pod.
    roles = tuple(
        dataclasses.replace(role, command=fill_in(role.command, lambda _: OUTPUTS_FOLDER))
        for role in request.roles
    )
    request = dataclasses.replace(request, roles=roles)
    role = jobs.commanding_role(request, "launcher", "worker")
    launch = read_command(role.command, environment=request.environment).launch
    # On each node, mpirun would start a job of its own, each with a rank 0.
    if request.kind == "pytorch" and launch is not None and not launch.is_torch:
        raise InputError(
            f"{document.place(('command',), role.command)}: {launch.launcher} in a PyTorch job "
            "cannot be exported: write an MpiJob, or have torchrun start the processes"
        )
    if request.kind in ("mpi", "pytorch"):
        # Nothing is known of the machines where it will run.
        size = jobs.counts(request, jobs.Facts(), launch)
    else:
        instances, notes = jobs.instances_of(request, None)
        size = Counts(instances=instances, per_instance=1, notes=notes)
    return ExportJob(
        document=document,
        model=model,
        request=request,
        raw=raw,
        counts=size,
        launch=launch,
        role=role,
        name=unique(dns_name(model.name, _LONGEST_NAME), taken),
        site=site,
        options=options,
    )


TARGETS = {
    "kubernetes": ("kubernetes", "kubernetes"),
    "kubeflow-v1": ("kubeflow", "kubeflow_v1"),
    "mpi-operator": ("kubeflow", "mpi_operator"),
    "kubeflow-trainer": ("kubeflow", "kubeflow_trainer"),
    "azureml": ("azureml", "azureml"),
}
"""The module of each, which has a function of the same name."""


def export_from(paths: Sequence[Path], target: str, options: ExportOptions) -> list[Exported]:
    """Write the jobs of documents; raises InputError with every error in all of them."""
    module, name = TARGETS[target]
    write: Target = getattr(import_module(f"rankwise.export.{module}"), name)
    made, faults, taken = [], Faults(), set[str]()
    # Errors of all documents are shown at once, and none is written then.
    for path in paths:
        with faults.collected(), named_files(path):
            site = find_site(path.absolute().parent)
            made.append(write(gather(load(path), site, options, taken)))
    faults.raise_all()
    return made


# A letter first, and nothing that YAML gives a meaning to. A word of a few letters may be a truth
# value; the longer ones among those are known.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@-]*(?:[:=+][A-Za-z0-9_./@-]+)*(?: [A-Za-z0-9_./@-]+)*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nan"})
# What may stand in a block: what is printed, and no line ends but \n.
_BLOCK = re.compile(
    "[\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]+"
)


class _Representer(SafeRepresenter):
    """Chooses how texts are written."""

    def represent_text(self, text: str) -> Any:
        is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
        style = None if is_plain else "|" if _is_block(text) else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Representer.add_representer(str, _Representer.represent_text)


def to_yaml(documents: Iterable[Mapping[str, Any]]) -> str:
    """Write documents, with a line between them, for readers of YAML 1.1 and 1.2."""
    # Not the round-trip writer of documents: it would keep aliases and its own style.
    writer = YAML(typ="safe", pure=True)
    writer.Representer = _Representer
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # declared as None
    # Commands stay on one line, to be read and searched for.
    writer.width = sys.maxsize
    writer.indent(mapping=2, sequence=4, offset=2)
    texts = []
    for document in documents:
        stream = io.StringIO()
        # By way of JSON, which knows only plain data, and no part that stands in two places.
        writer.dump(json.loads(json.dumps(document)), stream)
        texts.append(stream.getvalue())
    return "---\n".join(texts)


def _is_block(text: str) -> bool:
    """Return whether a text has several lines, and is read back from a block as it is."""
    return (
        "\n" in text.removesuffix("\n")
        and text[0] not in " \t\n"
        and not text.endswith("\n\n")
        # A line of blanks alone may be taken for indentation.
        and not any(line.isspace() for line in text.split("\n"))
        and _BLOCK.fullmatch(text) is not None
    )
