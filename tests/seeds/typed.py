"""Command lines as a user types them, in a shell."""

from __future__ import annotations

import os
import subprocess

from tests.acceptance.harness import Outcome, Project
from tests.acceptance.jobs import Shop

# The plugins that are installed for other tests take longer to load than all the rest.
_ALONE = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_ADDOPTS": "-p rankwise -p rankwise_test_recorder",
}


def type_line(project: Project, line: str, **variables: str) -> Outcome:
    """Run a line with the programs of the project's MPI first on PATH."""
    programs = str(project.mpi.python.parent), str(project.mpi.mpiexec.parent)
    path = os.pathsep.join([*programs, os.environ["PATH"]])
    environment = {**_ALONE, "PATH": path, **variables}
    return project.run(["bash", "-ec", line], environment=environment, limit=200.0)


def type_in_shop(shop: Shop, lines: str) -> subprocess.CompletedProcess[str]:
    """Run lines in the folder of a shop, with its environment."""
    return subprocess.run(
        ["bash", "-ec", lines],
        cwd=shop.folder,
        env=shop.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
