"""A virtual environment with nothing in it but what is compared."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import environments  # noqa: E402  # scripts/ is no package

# Not among the environments of the tests: other plugins and other MPIs would only blur the numbers.
BENCH = environments.Environment(
    name="bench",
    folder=ROOT / ".venvs" / "bench",
    requirements=("-e", ".[mpi]", "pytest-xdist"),
    library="MPICH",
    mpiexec=ROOT / ".venvs" / "bench" / "bin" / "mpiexec",
)

NO_RANKWISE = ("-p", "no:rankwise")
NO_XDIST = ("-p", "no:xdist", "-p", "no:xdist.looponfail")

# Variables of whoever started the bench that would change what is measured.
_SCRUBBED = ("PYTEST_", "COV_", "OMPI_", "PMI", "PMIX_", "RANKWISE_", "PYTHON")


def prepare() -> None:
    """Make the environment, or bring it up to date."""
    with environments._alone():
        environments._prepare(BENCH)


def variables() -> Mapping[str, str]:
    """Give the environment variables that every measured process gets."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_SCRUBBED)}
    path = f"{BENCH.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**kept, **environments.LAUNCH_VARIABLES, "PATH": path, "NO_COLOR": "1"}


def pytest(*arguments: str, ranks: int | None = None) -> list[str]:
    """Give the command that runs pytest; without `ranks`, without mpirun."""
    launch = [] if ranks is None else [str(BENCH.mpiexec), "-n", str(ranks)]
    return [*launch, str(BENCH.python), "-m", "pytest", *arguments]
