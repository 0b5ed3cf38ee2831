"""What all kinds of jobs have in common when they become a task."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from rankwise.errors import InputError
from rankwise.launch.line import Prepared
from rankwise.launch.request import JobRequest, RoleRequest
from rankwise.plan import Process, Resources, RuntimeChoice, Task


def assemble(
    request: JobRequest,
    processes: Sequence[Process],
    *,
    nodes: int,
    resources: Resources,
    notes: Iterable[str],
    environment: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    width: int = 0,
) -> Task:
    """Make the task; the variables of the document go before those given here.

    Raises InputError if roles differ in what a task has only one of.
    """
    return Task(
        key=request.key,
        processes=tuple(processes),
        nodes=nodes,
        width=width,
        code=_code(request),
        folder=request.folder,
        files=dict(files or {}),
        environment={**(environment or {}), **request.environment},
        secrets=request.secrets,
        resources=resources,
        compute=request.compute,
        runtime=_runtime(request),
        timeout=request.timeout,
        restart=request.restart,
        notes=tuple(dict.fromkeys(notes)),
        tags=dict(request.tags),
    )


def commanding_role(request: JobRequest, *names: str) -> RoleRequest:
    """Give the role whose command is run: the first of these names, or else the first at all."""
    with_command = [role for role in request.roles if role.command.strip()]
    for name in names:
        for role in with_command:
            if role.name == name:
                return role
    if not with_command:
        raise InputError(
            f"{request.name}: no role has a command: write one, as `command: python train.py`"
        )
    return with_command[0]


def unused_commands(request: JobRequest, used: RoleRequest) -> list[str]:
    """Tell which commands are not run, since that of another role is."""
    return [
        f"the command of {role.name} is not used: that of {used.name} is"
        for role in request.roles
        if role is not used and role.command.strip()
    ]


def process_of(
    request: JobRequest,
    role: RoleRequest,
    prepared: Prepared,
    process: Process,
    *,
    who: Mapping[str, str],
    defaults: Mapping[str, str] | None = None,
) -> tuple[Process, list[str]]:
    """Give a process its command and variables, with notes about them.

    `who` are the variables that say which process it is; whatever the document says, they win:
    with another RANK, ranks would not find each other. Before `defaults`, the document's win.
    """
    said = {**request.environment, **role.environment}
    notes = [
        f"variables: {name} is set for each process: {said[name]!r} of the document is not used"
        for name in who
        if name in said
    ]
    added = {**(defaults or {}), **prepared.environment}
    kept = {name: value for name, value in added.items() if name not in said}
    environment = {**role.environment, **kept, **who}
    known = {**request.environment, **environment}
    notes += prepared.word_notes(known)
    command = prepared.for_process(known)
    return dataclasses.replace(process, command=command, environment=environment), notes


def share(resources: Resources, count: int) -> Resources:
    """Give one of `count` equal parts."""
    return Resources(
        cores=resources.cores / count,
        memory=resources.memory // count,
        gpus=resources.gpus // count,
    )


def _code(request: JobRequest) -> str:
    folders = {role.code: role.name for role in reversed(request.roles) if role.code}
    if len(folders) > 1:
        found = ", ".join(f"{name} has {folder}" for folder, name in folders.items())
        raise InputError(
            f"{request.name}: all roles of a job work in one code folder, but {found}: give them "
            "the same `code.path`, and change into folders of it in the commands"
        )
    return next(iter(folders), "")


def _runtime(request: JobRequest) -> RuntimeChoice:
    """Give the runtime of all roles; what it is counts, not what it is called."""
    chosen = [role.runtime for role in request.roles if role.runtime != RuntimeChoice()]
    different = {dataclasses.replace(runtime, name=""): runtime for runtime in reversed(chosen)}
    if len(different) > 1:
        found = ", ".join(f"`{runtime.name}`" for runtime in different.values())
        raise InputError(
            f"{request.name}: all roles of a job run in one environment, but there are {found}: "
            "name the same `environment` in each role"
        )
    return next(iter(different.values()), RuntimeChoice())
