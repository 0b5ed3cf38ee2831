"""The virtual environments that rankwise is measured in, and how programs run in such a one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import environments  # noqa: E402  # scripts/ is no package
from environments import (  # noqa: E402
    MARK,
    Environment,
    EnvironmentFailure,
    Framework,
    VirtualEnvironment,
)

__all__ = [
    "BENCH",
    "MARK",
    "NO_RANKWISE",
    "PLUGINS",
    "ROOT",
    "Environment",
    "EnvironmentFailure",
    "Framework",
    "VirtualEnvironment",
    "prepare",
    "program",
    "pytest",
    "python",
    "variables",
    "versions",
]

# Not among the environments of the tests: other plugins and other MPIs would only blur the numbers.
BENCH = Environment(
    name="bench",
    folder=ROOT / ".venvs" / "bench",
    # numpy and scipy for tests that take long to import.
    requirements=("-e", ".[mpi]", "numpy", "scipy"),
    library="MPICH",
    mpiexec=ROOT / ".venvs" / "bench" / "bin" / "mpiexec",
)

# The other one that speed is measured in: what a user has.
PLUGINS = environments.PLUGINS

NO_RANKWISE = ("-p", "no:rankwise")

# Variables of the shell that starts the bench, which would change what is measured.
_SCRUBBED = ("PYTEST_", "COV_", "OMPI_", "PMI", "PMIX_", "RANKWISE_", "PYTHON", "TESTFLO_")

_VERSIONS = """
import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))
"""


def prepare(environment: VirtualEnvironment) -> None:
    """Make the environment, or bring it up to date.

    Raises EnvironmentFailure when that does not succeed.
    """
    with environments._alone():
        environments._prepare(environment)


def variables(environment: VirtualEnvironment) -> Mapping[str, str]:
    """Return the environment variables that every measured process gets."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_SCRUBBED)}
    path = f"{environment.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**kept, **environments.LAUNCH_VARIABLES, "PATH": path, "NO_COLOR": "1"}


def python(
    *arguments: str, ranks: int | None = None, environment: VirtualEnvironment = BENCH
) -> list[str]:
    """Return the command that runs Python; without `ranks`, without mpirun."""
    launch: list[str] = []
    if ranks is not None:
        assert isinstance(environment, Environment), f"{environment.name} has no MPI"
        launch = [str(environment.mpiexec), "-n", str(ranks)]
    return [*launch, str(environment.python), *arguments]


def program(name: str, *arguments: str, environment: VirtualEnvironment = BENCH) -> list[str]:
    """Return the command that runs a program that was installed there."""
    return [str(environment.folder / "bin" / name), *arguments]


def pytest(
    *arguments: str, ranks: int | None = None, environment: VirtualEnvironment = BENCH
) -> list[str]:
    """Return the command that runs pytest; without `ranks`, without mpirun."""
    return python("-m", "pytest", *arguments, ranks=ranks, environment=environment)


def versions(environment: VirtualEnvironment, *distributions: str) -> dict[str, str]:
    """Look up which versions of these distributions the environment holds."""
    done = subprocess.run(
        python("-c", _VERSIONS, *distributions, environment=environment),
        env=variables(environment),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found
