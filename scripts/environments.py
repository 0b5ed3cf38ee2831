"""Make the virtual environments of the tests: rankwise with each MPI, and what jobs run in.

    python3 scripts/environments.py                  all of them
    python3 scripts/environments.py mpich openmpi5   only these

Idempotent: an environment is made again only when what it is made from has changed (its
requirements, the project's own metadata if they name the project, the Python, the place). Each one
is tried before it counts as ready, with a real job of two ranks where it can start one. One that
this machine cannot have is left out, with the reason; with RANKWISE_REQUIRE_ALL=1 that is an error.

ENVIRONMENTS hold rankwise and one MPI each. RUNTIMES are for the jobs of examples/jobs: they hold
what rankwise.toml asks for there, and no rankwise, which nothing that runs in a job may need.
PLUGINS holds rankwise beside the most common plugins of pytest: a user's environment.

What was found with mpi4py 4.1.2, whose one wheel carries a module for the MPICH ABI and one for
Open MPI's and loads the one that fits the first MPI library it finds, <venv>/lib before the
system's:

- MPICH and Intel MPI (which has MPICH's ABI) need nothing: no variables, and more ranks than cores
  are fine.
- Open MPI refuses to run as root, and refuses more ranks than cores. Variables switch both off; 4
  and 5 have different ones for the second, see LAUNCH_VARIABLES.
- Open MPI 4 refuses to start where there is no ssh, even if all ranks are on one machine.
- Open MPI's wheels spend a second of each start on looking for a fabric (btl/ofi).
- Debian's Open MPI is found without its -dev package, through libmpi.so.40, if the venv holds no
  MPI. Its mpiexec is called by its full name, because /usr/bin/mpiexec may be another MPI's.

With torch 2.13.0: PyPI's wheel for Linux brings gigabytes of CUDA. If pip is set up to find links
(PIP_FIND_LINKS) where a wheel for CPUs lies, that one is taken; anywhere else
`UV_TORCH_BACKEND=cpu make environments` fetches one.

Standard library only, so that any Python 3.11 can run it in a fresh clone.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAMP = "rankwise-environment.json"
UV_FOLDER = ROOT / ".venvs" / ".uv"
LAUNCH_LIMIT_SECONDS = 300
# Not sys.executable: inside an activated .venv that is a file which is about to be removed.
PYTHON: str = getattr(sys, "_base_executable", sys.executable)

LAUNCH_VARIABLES: Mapping[str, str] = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
    "OMPI_MCA_plm_rsh_agent": "",  # Open MPI 4 on a machine that has no ssh
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # Open MPI 5
    "OMPI_MCA_btl": "^ofi",  # 0.3 s instead of 1.3 s for each mpiexec
    # Ranks that give way while they wait keep everything else from running, on Linux 6.18 for one.
    "OMPI_MCA_mpi_yield_when_idle": "0",
}
"""What to add to the environment of an mpiexec, whichever MPI it is: the others ignore it."""

MARK = "rankwise-trial:"
# Every probe prints one line with MARK, a sum, which is 2, and the version of its library.
# Frameworks, launchers and site hooks print advice around it: it counts wherever it is.
MPI_PROBE = """
from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(1)
if MPI.COMM_WORLD.rank == 0:
    # Debian's Open MPI ends its version with a NUL.
    print("\\nrankwise-trial:", total, MPI.Get_library_version().strip("\\0").splitlines()[0])
"""
TORCH_PROBE = """
import torch
from torch import distributed
distributed.init_process_group("gloo")
total = torch.ones(1, dtype=torch.int64)
distributed.all_reduce(total)
if distributed.get_rank() == 0:
    print("\\nrankwise-trial:", total.item(), "torch", torch.__version__)
distributed.destroy_process_group()
"""
TENSORFLOW_PROBE = """
import tensorflow
print("\\nrankwise-trial:", int(tensorflow.add(1, 1)), "TensorFlow", tensorflow.__version__)
"""
OTAVA_PROBE = """
from importlib.metadata import version
from otava.analysis import compute_change_points
found, _ = compute_change_points([1.0, 1.1] * 20 + [2.0, 2.1] * 20)
print("\\nrankwise-trial:", 1 + len(found), "Otava", version("apache-otava"))
"""
AZURE_PROBE = """
from importlib.metadata import version
from azure.ai.ml import command
print("\\nrankwise-trial:", 1 + len([command]), "azure-ai-ml", version("azure-ai-ml"))
"""
KUBEFLOW_PROBE = """
from importlib.metadata import version
from kubeflow.training import KubeflowOrgV1TFJob
from kubeflow_trainer_api import models
found = len([KubeflowOrgV1TFJob, models])
print("\\nrankwise-trial:", found, "kubeflow-training", version("kubeflow-training"))
"""
NOTEBOOKS_PROBE = """
from importlib.metadata import version
import nbclient
print("\\nrankwise-trial:", 1 + len([nbclient]), "nbclient", version("nbclient"))
"""
MEASURE_PROBE = """
import numpy
print("\\nrankwise-trial:", numpy.ones(2, int).sum(), "numpy", numpy.__version__)
"""
DOCS_PROBE = """
from importlib.metadata import version
import mkdocs
print("\\nrankwise-trial:", 1 + len([mkdocs]), "mkdocs-material", version("mkdocs-material"))
"""


@dataclass(frozen=True, kw_only=True)
class VirtualEnvironment(ABC):
    """One virtual environment, and how to find out that it works."""

    name: str
    folder: Path
    requirements: tuple[str, ...]
    library: str
    """How the version that the library gives of itself begins."""

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def programs(self) -> tuple[Path, ...]:
        """What must be there: a venv breaks when the Python that it links to is removed."""
        return (self.python,)

    @property
    def has_rankwise(self) -> bool:
        return "-e" in self.requirements

    @abstractmethod
    def trial(self) -> list[str | Path]:
        """Return a command that prints MARK, 2 and the version of the library."""


@dataclass(frozen=True, kw_only=True)
class Environment(VirtualEnvironment):
    """One with an MPI."""

    mpiexec: Path

    @property
    def programs(self) -> tuple[Path, ...]:
        """What must be there: Debian's mpiexec is gone when its package is."""
        return (self.python, self.mpiexec)

    def trial(self) -> list[str | Path]:
        """Return a job of two ranks."""
        return [self.mpiexec, "-n", "2", self.python, "-c", MPI_PROBE]


@dataclass(frozen=True, kw_only=True)
class Framework(VirtualEnvironment):
    """One with a framework that needs no MPI."""

    arguments: tuple[str, ...]
    """What its Python is started with to try it."""

    def trial(self) -> list[str | Path]:
        return [self.python, *self.arguments]


def _environment(
    name: str, *requirements: str, library: str, folder: str = "", mpiexec: str = ""
) -> Environment:
    place = ROOT / (folder or f".venvs/{name}")
    return Environment(
        name=name,
        folder=place,
        requirements=requirements,
        library=library,
        mpiexec=Path(mpiexec) if mpiexec else place / "bin" / "mpiexec",
    )


def _framework(name: str, *requirements: str, library: str, trial: Sequence[str]) -> Framework:
    return Framework(
        name=name,
        folder=ROOT / ".venvs" / name,
        requirements=requirements,
        library=library,
        arguments=tuple(trial),
    )


DEBIAN_MPIEXEC = "/usr/bin/mpiexec.openmpi"
TWO_OF_TORCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python")

# rankwise, and the name that suites written for pytest_parallel import.
BOTH = ("-e", "./drop-in", "-e")

ENVIRONMENTS: Mapping[str, Environment] = {
    environment.name: environment
    for environment in (
        _environment("mpich", *BOTH, ".[dev]", library="MPICH", folder=".venv"),
        _environment("openmpi5", *BOTH, ".[openmpi]", "openmpi>=5,<6", library="Open MPI v5"),
        _environment("openmpi4", *BOTH, ".[openmpi]", "openmpi>=4,<5", library="Open MPI v4"),
        _environment("impi", *BOTH, ".", "mpi4py>=4.1", "impi-rt", library="Intel(R) MPI"),
        _environment(
            "debian-openmpi",
            *(*BOTH, ".", "mpi4py>=4.1"),
            library="Open MPI v4",
            mpiexec=DEBIAN_MPIEXEC,
        ),
    )
}

RUNTIMES: Mapping[str, VirtualEnvironment] = {
    runtime.name: runtime
    for runtime in (
        _environment("mpi4py", "mpi4py>=4.1", "numpy", "openmpi>=5,<6", library="Open MPI v5"),
        _framework(
            "torch",
            *("torch==2.13.0", "numpy"),
            library="torch 2.13.0",
            trial=[*TWO_OF_TORCH, "python", "-c", TORCH_PROBE],
        ),
        _framework(
            "tensorflow",
            "tensorflow-cpu",
            library="TensorFlow 2",
            trial=["-c", TENSORFLOW_PROBE],
        ),
        # Finds changes in histories of measurements: the tests ask it what ours should find.
        _framework("otava", "apache-otava==0.8.0", library="Otava 0.8", trial=["-c", OTAVA_PROBE]),
        # Loads what `rankwise export --to azureml` writes.
        _framework("azure", "azure-ai-ml", library="azure-ai-ml 1", trial=["-c", AZURE_PROBE]),
        # Has the schemas of what Kubeflow's operators take.
        _framework(
            "kubeflow",
            *("kubeflow-training", "kubeflow-trainer-api"),
            library="kubeflow-training 1",
            trial=["-c", KUBEFLOW_PROBE],
        ),
        # Makes the site of the documentation; rankwise and pytest say what their options are.
        _framework(
            "docs",
            *("-e", ".", "pytest", "mkdocs-material"),
            library="mkdocs-material 9",
            trial=["-c", DOCS_PROBE],
        ),
    )
}

# What users have beside us. Among them are the most common plugins of pytest, those that need a
# framework left out.
PLUGINS = _environment(
    "plugins",
    *("-e", ".[mpi]", "numpy", "scipy"),
    *("anyio", "hypothesis", "pytest-asyncio", "pytest-benchmark", "pytest-cov", "pytest-html"),
    *("pytest-json-report", "pytest-metadata", "pytest-mock", "pytest-randomly"),
    *("pytest-rerunfailures", "pytest-sugar", "pytest-timeout", "pytest-xdist"),
    library="MPICH",
)

# What the first steps of the documentation install (docs/start-*.md), and nothing else.
FIRST_STEPS: Mapping[str, VirtualEnvironment] = {
    made.name: made
    for made in (
        _environment("start-mpi", "-e", ".[mpi]", library="MPICH"),
        _framework(
            "start-notebooks",
            *("-e", ".[notebooks]"),
            library="nbclient",
            trial=["-c", NOTEBOOKS_PROBE],
        ),
        _framework(
            "start-measure", "-e", ".[measure]", library="numpy", trial=["-c", MEASURE_PROBE]
        ),
    )
}

EVERYTHING: Mapping[str, VirtualEnvironment] = {
    **ENVIRONMENTS,
    PLUGINS.name: PLUGINS,
    **FIRST_STEPS,
    **RUNTIMES,
}


class EnvironmentFailure(Exception):
    """An environment that this machine should have could not be made."""


def why_unavailable(environment: VirtualEnvironment) -> str | None:
    """Say why tests cannot use `environment` now, or None if they can."""
    if (environment.folder / STAMP).exists() and _is_whole(environment):
        return None
    return _obstacle(environment) or f"{environment.name} is not made yet: run `make environments`"


def _is_whole(environment: VirtualEnvironment) -> bool:
    return all(program.exists() for program in environment.programs)


def _obstacle(environment: VirtualEnvironment) -> str | None:
    """Say why this machine cannot have `environment`, or None if it can."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        if environment.name == "impi":
            return "Intel MPI has wheels for Linux on x86-64 only"
        if environment.name == "tensorflow":
            return "tensorflow-cpu has wheels for Linux on x86-64 only"
    if environment.name == "tensorflow" and sys.version_info >= (3, 14):
        return "TensorFlow 2.21 has wheels up to Python 3.13"
    if environment.name != "debian-openmpi" or Path(DEBIAN_MPIEXEC).exists():
        return None
    if not shutil.which("apt-get"):
        return "Debian's Open MPI needs Debian or Ubuntu"
    if os.geteuid() != 0:
        return "openmpi-bin is not installed: run `sudo apt-get install openmpi-bin`"
    return None


def _run(command: Sequence[str | Path], **variables: str) -> None:
    """Run `command` in the project's folder; raise with its output if it fails."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        shown = " ".join(map(str, command))
        raise EnvironmentFailure(f"`{shown}` ended with {done.returncode}:\n{done.stdout}")


def _uv() -> Path:
    """Return the uv of a venv of its own, where pip installs it from wherever it is set up to."""
    uv = UV_FOLDER / "bin" / "uv"
    if not uv.exists():
        _run([PYTHON, "-m", "venv", "--clear", UV_FOLDER])
        _run([UV_FOLDER / "bin" / "pip", "install", "--quiet", "uv"])
    return uv


def _index_of_pip() -> dict[str, str]:
    """Return the variables that make uv use the package index and the links pip is set up for.

    uv does not read pip's configuration, and behind a mirror that is where the address is.
    """
    listed = subprocess.run(
        [UV_FOLDER / "bin" / "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    variables = {
        "index-url": "UV_DEFAULT_INDEX",
        "cert": "SSL_CERT_FILE",
        "find-links": "UV_FIND_LINKS",
    }
    found: dict[str, str] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        variable = variables.get(name.rpartition(".")[2])
        if variable and variable not in os.environ:
            # What comes first, from pip's own variables, counts for pip as well.
            found.setdefault(variable, value.strip("'\""))
    if links := found.get("UV_FIND_LINKS"):
        # Several have blanks or, as pip shows the lines of a file, \n between them.
        found["UV_FIND_LINKS"] = ",".join(links.replace("\\n", " ").split())
    return found


def _key(environment: VirtualEnvironment) -> str:
    """Return a digest of everything that `environment` is made from."""
    folders = [ROOT, *([ROOT / "drop-in"] if "./drop-in" in environment.requirements else [])]
    documents = [tomllib.loads((one / "pyproject.toml").read_text()) for one in folders]
    project = [[one["project"], one["build-system"], one["tool"]["hatch"]] for one in documents]
    ingredients = [
        *(project if environment.has_rankwise else []),
        environment.requirements,
        sys.version,
        sys.base_prefix,
        str(ROOT),
    ]
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()


def _is_current(environment: VirtualEnvironment) -> bool:
    try:
        stamp = json.loads((environment.folder / STAMP).read_text())
    except (OSError, ValueError):
        return False
    return _is_whole(environment) and stamp.get("key") == _key(environment)


def _install_debian_openmpi() -> None:
    print("debian-openmpi: apt-get install openmpi-bin", flush=True)
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    _run(["apt-get", "update"], **quiet)
    _run(["apt-get", "install", "--yes", "--no-install-recommends", "openmpi-bin"], **quiet)


def run_trial(environment: VirtualEnvironment) -> str:
    """Run its trial and return the version of the library that it ran on."""
    path = f"{environment.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # Less advice to read through where a trial fails; a trial does not depend on it.
    quiet = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONDONTWRITEBYTECODE": ""}
    job = subprocess.Popen(
        environment.trial(),
        env={**os.environ, **LAUNCH_VARIABLES, **quiet, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        output, errors = job.communicate(timeout=LAUNCH_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        # Not a kill: a launcher that is terminated takes its ranks with it.
        job.terminate()
        output, errors = job.communicate(timeout=LAUNCH_LIMIT_SECONDS)
        errors += f"\nended after {LAUNCH_LIMIT_SECONDS} s"
    expected = f"2 {environment.library}"
    said = [line.removeprefix(MARK).strip() for line in output.splitlines() if _is_marked(line)]
    if job.returncode or len(said) != 1 or not said[0].startswith(expected):
        raise EnvironmentFailure(
            f"{environment.name}: its trial with {environment.programs[-1]} should have ended with "
            f"0 and printed one line '{MARK} {expected}…', but it ended with {job.returncode} and "
            f"printed:\n{output}\n--- stderr\n{errors}"
        )
    return said[0].removeprefix("2 ")


def _is_marked(line: str) -> bool:
    return line.startswith(f"{MARK} ")


def _warm_up(environment: VirtualEnvironment) -> None:
    """Let pytest write its own bytecode of the plugins once.

    The tests start it hundreds of times without leave to write any, and each would make it anew.
    """
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [environment.python, "-m", "pytest", "--collect-only", "--quiet"],
            cwd=folder,
            env={n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # advice of plugins
            check=False,  # an empty folder has no tests: exit 5
        )


def _make(environment: VirtualEnvironment) -> str:
    """Make `environment` anew and return the version of its library."""
    if environment.name == "debian-openmpi" and not Path(DEBIAN_MPIEXEC).exists():
        _install_debian_openmpi()
    uv = _uv()
    shutil.rmtree(environment.folder, ignore_errors=True)
    _run([uv, "venv", "--quiet", "--python", PYTHON, environment.folder])
    install: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", environment.python]
    # Of a framework most is never imported: what is, its trial compiles.
    compiling = [] if isinstance(environment, Framework) else ["--compile-bytecode"]
    _run([*install, *compiling, *environment.requirements], **_index_of_pip())
    if (environment.folder / "bin" / "pytest").exists():
        _warm_up(environment)
    library = run_trial(environment)
    # The stamp comes last: a venv without one is unfinished.
    new = environment.folder / f"{STAMP}.new"
    new.write_text(json.dumps({"key": _key(environment), "library": library}, indent=2) + "\n")
    new.replace(environment.folder / STAMP)
    return library


def _compile_sources() -> None:
    """Write the bytecode of our own modules, for all who may write none: see above."""
    _run([PYTHON, "-m", "compileall", "-q", "src", "drop-in"], PYTHONDONTWRITEBYTECODE="")


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let one process at a time make environments in this checkout."""
    (ROOT / ".venvs").mkdir(exist_ok=True)
    with (ROOT / ".venvs" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _prepare(environment: VirtualEnvironment) -> bool:
    """Bring `environment` up to date and say so; return whether it is there."""
    if reason := _obstacle(environment):
        print(f"{environment.name}: left out: {reason}", flush=True)
        return False
    if not _is_current(environment):
        started = time.monotonic()
        library = _make(environment)
        seconds = time.monotonic() - started
        print(f"{environment.name}: made in {seconds:.1f} s: {library}", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the environments that the tests run in.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EVERYTHING))
    names: list[str] = parser.parse_args().names or list(EVERYTHING)
    if unknown := set(names) - set(EVERYTHING):
        parser.error(f"no such environment: {', '.join(sorted(unknown))}")
    try:
        with _alone():
            there = [_prepare(EVERYTHING[name]) for name in names]
            _compile_sources()
    except EnvironmentFailure as failure:
        print(f"environments: {failure}", file=sys.stderr)
        return 1
    if not all(there) and os.environ.get("RANKWISE_REQUIRE_ALL") == "1":
        print("environments: RANKWISE_REQUIRE_ALL=1, and one is left out", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
