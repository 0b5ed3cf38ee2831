"""Plan what documents of Azure ML name: environments, inputs and outputs, components, pipelines."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rankwise.documents.azure_jobs import Component, PipelineJob, PipelineNode, SweepJob
from rankwise.documents.common import ImageSource, Input, JobOutput, references_in
from rankwise.documents.jobs import CommandJob, JobEnvironment
from rankwise.documents.load import Document, load
from rankwise.documents.pipeline import in_order
from rankwise.documents.site import Site, with_image
from rankwise.documents.site_models import ELSEWHERE, LOCAL
from rankwise.documents.values import fit_name
from rankwise.documents.written import entries_in, expanded, mapping_in, plain_data
from rankwise.documents.yaml_reader import read_document
from rankwise.errors import InputError
from rankwise.launch.jobs import JobRequest
from rankwise.node.equipment import ENGINES
from rankwise.plan import Process, RuntimeChoice, Task, later
from rankwise.planning.jobs import PIP, plan_job
from rankwise.planning.planner import Planned, PlanOptions, together
from rankwise.planning.stage_commands import program
from rankwise.planning.sweeps import SweepCase, keys_of
from rankwise.runtimes.base import cache_folder
from rankwise.runtimes.uv import CONDA_TOOLS
from rankwise.wording import code, listed

_REFERENCE = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")
# Not a path: a name of Azure ML, or an address.
_NO_PATH = re.compile(r"azureml:|[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_MARK = later("")[0]
_PYTHON = re.compile(r"python\s*={1,2}\s*(\d+(?:\.\d+)*)(?:\.\*)?")
_IS_PIP = re.compile(r"pip\b")
# Azure ML makes this folder where a command works.
_OUTPUTS = re.compile(r"""(?:^|[\s='">])(?:\./)?outputs/""")
# A folder for each process: several that install into one would disturb each other. By the last
# variable, uv refuses to install anything.
_PACKAGES = f"""export PIP_TARGET="{later("folder")}/packages/$RANKWISE_NODE-$$"; \
export VIRTUAL_ENV="$PIP_TARGET" PATH="$PIP_TARGET/bin:$PATH" \
PYTHONPATH="$PIP_TARGET${{PYTHONPATH:+:$PYTHONPATH}}"; """


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """What is around the command of a job: where its inputs and outputs are, what it runs in."""

    document: Document
    request: JobRequest
    site: Site
    fetches: list[Task] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    mounts: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def arrange(self) -> JobRequest:
        """Return the request with what is here in place of what the document names."""
        model: Any = self.document.model
        given = model.inputs.items()
        places = {f"inputs.{n}": self._input(f"inputs.{n}", one) for n, one in given if one.path}
        runtimes = [role.runtime for role in self.request.roles]
        if isinstance(model, CommandJob):
            runtimes = [self._runtime(model.environment, runtimes[0])] * len(runtimes)
            places |= {f"outputs.{n}": self._output(n, one) for n, one in model.outputs.items()}
            if any(map(_OUTPUTS.search, [model.command, *self.request.inputs.values()])):
                nodes = range(self.request.instance_count or 1)
                self.folders += [f"{later(f'folder:{node}')}/outputs" for node in nodes]
        roles = []
        for role, runtime in zip(self.request.roles, runtimes, strict=True):
            line = self._with_packages(role.command, runtime)
            roles.append(replace(role, command=line, runtime=runtime))
        return replace(self.request, roles=tuple(roles), places=places)

    def tasks(self, task: Task) -> list[Task]:
        """Return the tasks of the job: those that fetch something, and the one that is planned."""
        own = replace(
            task,
            folders=tuple(self.folders),
            mounts=tuple(dict.fromkeys(self.mounts)),
            needs=tuple(fetch.key for fetch in self.fetches),
            skip="; ".join(self.missing),
        )
        return [*self.fetches, own]

    def _input(self, label: str, given: Input) -> str:
        choice, path = self.site.compute(self.request.compute), given.path
        if choice.backend in ELSEWHERE and not choice.ssh.shared:
            self.notices.append(f"{label}: {path} is not brought to {choice.name}")
            return path
        if path.lower().startswith(("http://", "https://")):
            return self._fetched(label, given)
        is_known = not path.startswith(_MARK)
        if is_known and _NO_PATH.match(path) and not (path := self.site.input(path)):
            remedy = f'add `"{given.path}" = "/its/path"` to [inputs] in rankwise.toml'
            self.missing.append(f"{label} is {given.path}, which is not here: {remedy}")
        whole = _at(self.document, path)
        if is_known and path and not Path(whole).exists():
            self.notices.append(f"{label}: there is no {whole} yet")
        self.mounts.append(whole)
        return whole

    def _fetched(self, label: str, given: Input) -> str:
        last = re.split("[?#]", given.path)[0].rpartition("/")[2]
        if not last:
            why = "which is a folder in the web: name its files, each as a `uri_file`"
            self.missing.append(f"{label} is {given.path}, {why}")
            return given.path
        name, digest = fit_name(last), hashlib.sha256(given.path.encode()).hexdigest()[:16]
        into = cache_folder() / "inputs" / digest
        line = program("fetch", url=given.path, into=str(into), name=name)
        process, key = Process(name="fetch", role="fetch", command=line), f"fetch-{name}-{digest}"
        self.fetches.append(Task(key=key[-100:], processes=(process,), folder=self.request.folder))
        self.notices.append(f"{label}: {given.path} is fetched once, and kept in {into}")
        self.mounts.append(str(into))
        return str(into / "content" / ("" if given.type == "uri_folder" else name))

    def _output(self, name: str, given: JobOutput) -> str:
        place = f"{later('folder')}/outputs/{name}"
        if is_here := bool(given.path) and not _NO_PATH.match(given.path):
            place = _at(self.document, given.path)
        elif given.path:
            self.notices.append(
                f"outputs.{name}: {given.path} is in Azure: see the attempt's folder"
            )
        folder = place.rpartition("/")[0] if given.type == "uri_file" else place
        self.folders.append(folder)
        self.mounts += [folder] if is_here else []
        return place

    def _with_packages(self, command: str, runtime: RuntimeChoice) -> str:
        """Return a command whose `pip install` leaves the environment alone that it runs in."""
        if runtime.kind not in ("current", "uv", "conda") or not PIP.search(command):
            return command
        self.notices.append("pip installs for this attempt alone, not into the environment")
        return _PACKAGES + command

    def _runtime(self, said: JobEnvironment, named: RuntimeChoice) -> RuntimeChoice:
        """Return what a command runs in; `named` is what the site file says."""
        label = said.name or said.image or "of the document"
        if not said.is_inline:
            return named
        # The site file decides, as of all names in documents.
        if self.site.has("runtime", label):
            return self.site.runtime(label)
        runtime, why = self._made(said, label)
        remedy = f'to change that, add [runtime."{label}"] to rankwise.toml'
        self.notices += [f"environment {label}: {why}; {remedy}"] if why else []
        return runtime

    def _made(self, said: JobEnvironment, label: str) -> tuple[RuntimeChoice, str]:
        """Return what an environment becomes here, and what is different; empty: nothing."""
        backend = self.site.compute(self.request.compute).backend
        if (data := said.conda_file) is not None:
            if isinstance(data, str):
                data = read_document(Path(_at(self.document, data))).contents
            tool = next(filter(shutil.which, CONDA_TOOLS), "") if backend not in ELSEWHERE else ""
            if tool:
                text = json.dumps(plain_data(data), sort_keys=True)
                made = RuntimeChoice(name=label, kind="conda", engine=tool, requirements=(text,))
                return made, f"{tool} makes it, without an image"
            entries = entries_in(data, "dependencies")
            names = [str(one) for one in entries if not isinstance(one, Mapping)]
            pip = [str(one) for part in entries for one in entries_in(part, "pip")]
            python = next((found[1] for one in names if (found := _PYTHON.fullmatch(one))), "")
            made = RuntimeChoice(name=label, kind="uv", python=python, requirements=("pip", *pip))
            others = [one for one in names if not (_IS_PIP.match(one) or _PYTHON.fullmatch(one))]
            without = listed([*others, *filter(None, [said.image])])
            return made, f"uv makes it of its pip packages, without {without or 'an image'}"
        if backend == LOCAL and not any(map(shutil.which, ENGINES)):
            return self.site.runtime(), "there is no container engine: using the current Python"
        if (build := said.build) is None:
            return RuntimeChoice(name=label, kind="container", image=said.image), ""
        source = ImageSource(build=f"{build.path}/{build.dockerfile_path}", context=build.path)
        return with_image(source.choice(label, self.document.path.absolute().parent)), ""


def _at(document: Document, path: str) -> str:
    """Return a path as it is from the folder of a document; what is no path stays."""
    if not path or path.startswith(_MARK) or _NO_PATH.match(path):
        return path
    return str(document.path.absolute().parent / expanded(path))


def _here(document: Document, given: Input) -> Input:
    return given.model_copy(update={"path": _at(document, given.path)})


_OPTIONAL = re.compile(r"\$\[\[(.*?)\]\]", re.DOTALL)
# What a job of a pipeline may say in place of its component.
_OWN = {"code", "distribution", "environment", "limits", "resources"}


_Given = Mapping[str, Any]


def _plan_node(
    document: Document, node: PipelineNode | None, given: _Given, options: PlanOptions, **more: Any
) -> Planned:
    """Plan a job with the inputs and other fields that it is given; `more` is of its task.

    Its command is its own, or that of the component in the document. No node: that by itself.
    """
    model = document.model if node is None or isinstance(document.model, Component) else node
    assert isinstance(model, CommandJob)
    inputs, missing = dict(given["inputs"]), list[str]()
    if isinstance(model, Component):
        if unknown := [name for name in inputs if name not in model.inputs]:
            raise InputError(
                f"{document.path}: no input {unknown[0]}: see {listed([*model.inputs])}"
            )
        for name, one in model.inputs.items():
            if name not in inputs and not (one.optional and one.default is None):
                missing += [name] if one.default is None else []
                inputs[name] = Input(value=f"<{name}>" if one.default is None else one.default)
    if missing:
        more["skip"] = f"no value for the inputs {listed(missing)}: a pipeline job gives them"
    own: dict[str, Any] = {"command": model.command, **given, "inputs": inputs}
    there = {f"inputs.{name}" for name in inputs}
    own["command"] = _OPTIONAL.sub(
        lambda found: found[1] * (there >= {*references_in(found[1])}), own["command"]
    )
    own["outputs"] = {**model.outputs, **given.get("outputs", {})}
    if node is not None:
        own |= {name: getattr(node, name) for name in node.model_fields_set & _OWN}
        own["environment_variables"] = {**model.environment_variables, **node.environment_variables}
    planned = plan_job(replace(document, model=model.model_copy(update=own)), options)
    *fetches, task = planned.tasks
    more["needs"] = (*task.needs, *more.get("needs", ()))
    return replace(planned, tasks=[*fetches, replace(task, **more)])


def plan_component(document: Document, options: PlanOptions) -> Planned:
    """Plan a component by itself, which runs if it needs no inputs."""
    return _plan_node(document, None, {"inputs": {}}, options)


def _definition(document: Document, node: PipelineNode) -> Document:
    """Return the document that says what a job runs: that of its component, or the pipeline's."""
    if not node.component:
        return document
    path = node.component.removeprefix("file:")
    try:
        if _NO_PATH.match(path):
            raise InputError("only Azure ML knows it: name a file")
        return load(Path(_at(document, path)), kind="component")
    except InputError as error:
        place = document.place(("component", "trial"), node.component)
        raise InputError(f"{place}: the component {path} is wrong:\n{error}") from error


def _outputs_of(
    document: Document, name: str, node: PipelineNode, component: object
) -> dict[str, JobOutput]:
    """Return the outputs of a job of a pipeline, each with its place."""
    found = dict(component.outputs) if isinstance(component, Component) else {}
    for output, one in {**found, **node.outputs}.items():
        kind, path = one.type or found.get(output, one).type, one.path
        if bound := _REFERENCE.fullmatch(path):
            whose = bound[1].removeprefix("parent.outputs.")
            path = getattr(document.model, "outputs", {}).get(whose, JobOutput()).path
        if not path or _NO_PATH.match(path):
            path = f"{later(f'artifacts:{name}')}/{output}"
        found[output] = one.model_copy(update={"type": kind, "path": _at(document, path)})
    return found


def _bound(
    document: Document, node: PipelineNode, known: Mapping[str, Input]
) -> tuple[dict[str, Input], list[str]]:
    """Return the inputs of a job of a pipeline, and the jobs that write them."""
    inputs, needs = {}, []
    for name, given in node.inputs.items():
        found = _REFERENCE.fullmatch(given.text.strip())
        reference = found[1] if found else ""
        if reference not in known and "parent." in "".join(references_in(given.text)):
            place = document.place({"path", name}, given.text)
            raise InputError(f"{place}: {code(given.text)} is none of {listed([*known])}")
        if reference.startswith("parent.jobs."):
            needs.append(reference.split(".")[2])
        inputs[name] = _here(document, known.get(reference, given))
    return inputs, needs


def plan_pipeline_job(document: Document, options: PlanOptions) -> Planned:
    """Plan a pipeline job: a task for each of its jobs, after those whose outputs it reads."""
    model = document.model
    assert isinstance(model, PipelineJob)
    definitions = {name: _definition(document, node) for name, node in model.jobs.items()}
    known = {f"parent.inputs.{name}": one for name, one in model.inputs.items()}
    outputs = {}
    for name, node in model.jobs.items():
        outputs[name] = _outputs_of(document, name, node, definitions[name].model)
        for output, one in outputs[name].items():
            known[f"parent.jobs.{name}.outputs.{output}"] = Input(path=one.path)
    bound = {name: _bound(document, node, known) for name, node in model.jobs.items()}
    order = in_order({name: needs for name, (_, needs) in bound.items()})
    if circle := [name for name in model.jobs if name not in order]:
        raise InputError(f"{document.path}: jobs that need each other: {listed(circle)}")
    parts = []
    compute = str(mapping_in(model.settings).get("default_compute", "")).removeprefix("azureml:")
    for name in order:
        node, (inputs, needs) = model.jobs[name], bound[name]
        target = node.compute.target or compute or model.compute.target
        where = node.compute.model_copy(update={"target": target})
        own = {"name": name, "inputs": inputs, "outputs": outputs[name], "compute": where}
        parts.append(_plan_node(definitions[name], node, own, options, needs=dict.fromkeys(needs)))
    return together(parts)


def plan_sweep_job(document: Document, options: PlanOptions) -> Planned:
    """Plan a sweep job: a task for each combination of values."""
    model = document.model
    assert isinstance(model, SweepJob)
    cases, limits, trial = _cases_of(document, model), model.limits, model.trial
    parts = [Planned(tasks=[], notices=["`objective` is not read: no trial is the best"])]
    given: dict[str, Any] = {"outputs": model.outputs, "compute": model.compute}
    if trial.command:
        # As of a component, the values are inputs.
        given["command"] = re.sub(r"(\$\{\{\s*)search_space\.", r"\1inputs.", trial.command)
    lane = {"lane": f"trials of {model.name}", "lane_width": limits.max_concurrent_trials}
    timeout = {"timeout": limits.trial_timeout} if limits.trial_timeout else {}
    inputs = {name: _here(document, one) for name, one in model.inputs.items()}
    definition = _definition(document, trial)
    for case, key in zip(cases, keys_of(cases), strict=True):
        tried = {name: Input(value=value) for name, value in case.values.items()}
        own = {**given, "name": key, "inputs": {**inputs, **tried}}
        more = {"tags": case.values, **lane, **timeout}
        parts.append(_plan_node(definition, trial, own, options, **more))
    return together(parts)


def _cases_of(document: Document, model: SweepJob) -> list[SweepCase]:
    """Return the combinations; raises InputError if Azure ML would choose some of them."""
    rows = [*itertools.product(*(one.values for one in model.search_space.values()))]
    how, most = model.sampling_algorithm, model.limits.max_total_trials
    how = mapping_in(how).get("type") if isinstance(how, Mapping) else how
    if how != "grid" and not (how == "random" and (most or len(rows)) >= len(rows)):
        why = f"would choose {most or 'some'} of {len(rows)} combinations"
        raise InputError(f"{document.path}: `{how}` sampling {why}: take `grid`")
    names = [*model.search_space]
    return [SweepCase(values=dict(zip(names, row, strict=True))) for row in rows[:most]]
