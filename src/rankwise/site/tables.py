"""The tables of a site file, each turned into a choice.

What is wrong is complained of on the page, and stands in the choice as if it were not written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rankwise.plan import RuntimeChoice
from rankwise.site.choices import (
    COMMAND,
    KUBERNETES,
    LOCAL,
    SLURM,
    SSH,
    CommandChoice,
    ComputeChoice,
    KubernetesChoice,
    SlurmChoice,
    SshChoice,
)
from rankwise.site.command_table import COMMAND_KEYS, read_command
from rankwise.site.kubernetes_table import KUBERNETES_KEYS, read_kubernetes
from rankwise.site.page import Key, Page, did_you_mean
from rankwise.site.slurm_table import SLURM_KEYS, read_slurm
from rankwise.site.ssh_table import SSH_KEYS, read_ssh
from rankwise.site.values import (
    from_file,
    read_number,
    read_size,
    read_text,
    read_truth,
    read_words,
    written,
)

BACKENDS = (LOCAL, SLURM, KUBERNETES, SSH, COMMAND)
ENGINES = ("docker", "podman", "apptainer")
_COMPUTE_KEYS = ("backend", "cores", "gpus", "memory", "features")
_OWN_KEYS: Mapping[str, tuple[str, ...]] = {
    LOCAL: ("oversubscribe",),
    SLURM: SLURM_KEYS,
    KUBERNETES: KUBERNETES_KEYS,
    SSH: SSH_KEYS,
    COMMAND: COMMAND_KEYS,
}
_RUNTIME_KEYS = ("python", "requirements", "image", "engine", "current")
_WAYS = "python, requirements, image or current = true"
_VERSION = re.compile(r"\d+(\.\d+){0,2}t?")


def read_compute(name: str, table: Mapping[str, Any], page: Page) -> ComputeChoice:
    """Read `[compute.NAME]`."""
    at = ("compute", name)
    backend = table.get("backend", LOCAL if name == LOCAL else None)
    place = page.place(at)
    if backend not in BACKENDS or (name == LOCAL != backend):
        _complain_of_backend(name, backend, page)
        return ComputeChoice(name=name, place=place)
    page.complain_of_unknown(at, table, (*_COMPUTE_KEYS, *_OWN_KEYS[backend]))
    gpus = read_number((*at, "gpus"), table, page, least=0, is_whole=True)
    return ComputeChoice(
        name=name,
        backend=backend,
        slurm=read_slurm(at, table, page) if backend == SLURM else SlurmChoice(),
        kubernetes=read_kubernetes(at, table, page)
        if backend == KUBERNETES
        else KubernetesChoice(),
        ssh=read_ssh(at, table, page) if backend == SSH else SshChoice(),
        command=read_command(at, table, page) if backend == COMMAND else CommandChoice(),
        cores=read_number((*at, "cores"), table, page, least=0.01),
        gpus=None if gpus is None else int(gpus),
        memory=read_size((*at, "memory"), table, page),
        oversubscribe=read_truth((*at, "oversubscribe"), table, page),
        features=read_words((*at, "features"), table, page),
        place=place,
    )


def _complain_of_backend(name: str, backend: Any, page: Page) -> None:
    at: Key = ("compute", name)
    listed = ", ".join(f'"{one}"' for one in BACKENDS)
    if backend is None:
        page.complain(at, f"[{page.header(at)}] does not say its backend: one of {listed}")
    elif name == LOCAL:
        page.complain((*at, "backend"), 'the compute "local" is always this machine; take a name')
    else:
        hint = did_you_mean(str(backend), BACKENDS) or f"; there are {listed}"
        page.complain((*at, "backend"), f"{written(backend)} is no backend{hint}")


def read_runtime(name: str, table: Mapping[str, Any], page: Page) -> RuntimeChoice:
    """Read `[runtime.NAME]`."""
    at = ("runtime", name)
    page.complain_of_unknown(at, table, _RUNTIME_KEYS)
    ways = [key for key in ("requirements", "image", "current") if key in table]
    if "python" in table and ways != ["requirements"]:
        ways.insert(0, "python")
    if "engine" in table and "image" not in table:
        page.complain((*at, "engine"), "engine goes with image only")
    if len(ways) != 1:
        said = f"says {' and '.join(ways)}" if ways else "says nothing"
        page.complain(at, f"[{page.header(at)}] {said}; it must have exactly one of {_WAYS}")
        return RuntimeChoice(name=name)
    match ways[0]:
        case "python":
            return _python(at, table, page)
        case "requirements":
            return _requirements(at, table, page)
        case "image":
            return _image(at, table, page)
    if table["current"] is not True:
        page.complain((*at, "current"), "current can only be true")
    return RuntimeChoice(name=name)


def _python(at: Key, table: Mapping[str, Any], page: Page) -> RuntimeChoice:
    path = read_text((*at, "python"), table, page)
    if _VERSION.fullmatch(path):
        page.complain(
            (*at, "python"),
            f'python = "{path}" alone must be a path; with requirements = [] it is a version',
        )
    return RuntimeChoice(name=at[-1], kind="python", python=from_file(path, page))


def _requirements(at: Key, table: Mapping[str, Any], page: Page) -> RuntimeChoice:
    python = read_text((*at, "python"), table, page) if "python" in table else ""
    if python and not _VERSION.fullmatch(python):
        page.complain(
            (*at, "python"),
            f'beside requirements, python must be a version such as "3.12", not "{python}"',
        )
    key = (*at, "requirements")
    listed = table["requirements"]
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        page.complain(key, 'requirements must be a list such as ["torch==2.13.0"]')
        listed = []
    for one in listed:
        _check_requirement(key, one, page)
    return RuntimeChoice(name=at[-1], kind="uv", python=python, requirements=tuple(listed))


def _check_requirement(key: Key, one: str, page: Page) -> None:
    if one.startswith("-") or not one.strip() or "\n" in one:
        page.complain(key, f"{written(one)} is no requirement; options are not read here")
    elif one.startswith((".", "/", "~")):
        # What is made of it is kept, and would not follow the changes in the folder.
        page.complain(
            key, f'"{one}" is a path; make an environment for it yourself, and give its python'
        )


def _image(at: Key, table: Mapping[str, Any], page: Page) -> RuntimeChoice:
    image = read_text((*at, "image"), table, page)
    engine = read_text((*at, "engine"), table, page) if "engine" in table else ""
    if engine and engine not in ENGINES:
        hint = did_you_mean(engine, ENGINES) or f"; there are {', '.join(ENGINES)}"
        page.complain((*at, "engine"), f'"{engine}" is no engine{hint}')
    if image.startswith("-") or any(letter.isspace() for letter in image):
        page.complain((*at, "image"), f'"{image}" is no image')
    if image.endswith(".sif") or image.startswith((".", "/", "~")):
        image = from_file(image, page)
    return RuntimeChoice(name=at[-1], kind="container", image=image, engine=engine)
