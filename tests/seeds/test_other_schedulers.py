"""The readme of pytest_parallel: "Other job schedulers (PBS, LSF...) are not supported currently"."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import gridengine
import pbs_words
import pytest

from tests.acceptance.conftest import require
from tests.acceptance.harness import Outcome, Project
from tests.acceptance.test_seed_example import EXAMPLE
from tests.backends.places import need
from tests.seeds.readme_example import NOTES, check
from tests.seeds.sentences import sentence
from tests.seeds.typed import type_line
from tests.support.plugins import spool

README = "pytest_parallel"
LINE = "pytest --n-workers=4 --scheduler={} --on=cluster test_pytest_parallel.py"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Outcome]]:
    """Return what became of the example in each system: they run at the same time."""
    need(gridengine.obstacle())
    need(pbs_words.obstacle())
    with ExitStack() as stack:
        cell = stack.enter_context(gridengine.gridengine())
        words = stack.enter_context(pbs_words.pbs_words())
        folder = tmp_path_factory.mktemp("other")
        added = stack.enter_context(spool(folder / "installed"))
        runs = {
            "gridengine": ("batch-pool", "", cell.variables),
            "pbs": ("batch", words.table, words.variables),
            "spool": ("batch-pool", f'folder = "{folder}/queue"', added),
        }
        projects = {name: _project(folder / name, name, runs[name][1]) for name in runs}

        def run(name: str) -> Outcome:
            scheduler, _, variables = runs[name]
            project = projects[name]
            path = [str(project.mpi.mpiexec.parent), variables.get("PATH", os.environ["PATH"])]
            more = {**variables, "PATH": os.pathsep.join([str(project.mpi.python.parent), *path])}
            # Where the run is recorded, and what is installed.
            places = [str(project.folder), variables.get("PYTHONPATH", "")]
            more["PYTHONPATH"] = os.pathsep.join(filter(None, places))
            return type_line(project, LINE.format(scheduler), **more)

        with ThreadPoolExecutor() as pool:
            yield dict(zip(runs, pool.map(run, runs), strict=True))


def _project(folder: Path, system: str, more: str) -> Project:
    made = Project(folder, require("mpich"))
    site = f'[compute.cluster]\nbackend = "{system}"\n{more}\n'
    made.write({"test_pytest_parallel.py": EXAMPLE, "notes.py": NOTES, "rankwise.toml": site})
    if system == "pbs":
        # The names of its nodes are known to Slurm alone.
        made.write({"pytest.ini": "[pytest]\naddopts = --slurm-address=127.0.0.1\n"})
    return made


@sentence(README, ran=LINE.format("batch-pool"))
def test_grid_engine_is_another_job_scheduler(outcomes: Mapping[str, Outcome]) -> None:
    """Other job schedulers are not supported currently: Grid Engine."""
    check(outcomes["gridengine"], "scheduler batch-pool", "(submitted)")


@sentence(README, ran=LINE.format("batch"), stand_in="Slurm with the commands of PBS")
def test_pbs_is_another_job_scheduler(outcomes: Mapping[str, Outcome]) -> None:
    """Other job schedulers are not supported currently: PBS."""
    check(outcomes["pbs"], "scheduler batch", "(submitted)")


@sentence(README, ran=LINE.format("batch-pool"), stand_in="a batch system of another package")
def test_a_job_scheduler_may_come_from_another_package(outcomes: Mapping[str, Outcome]) -> None:
    """Other job schedulers are not supported currently: LSF, and any other."""
    check(outcomes["spool"], "scheduler batch-pool", "(submitted)")
