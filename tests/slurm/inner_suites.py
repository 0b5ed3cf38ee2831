"""Run an inner test-suite on the cluster's nodes, and make sure that nothing is left behind."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from cluster import Cluster

from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.leftovers import wait_until_gone

SECONDS = 60.0


def run_slurm(
    project: Project,
    cluster: Cluster,
    *arguments: str,
    scheduler: str = "slurm",
    workers: int | None = 4,
    limit: float = SECONDS,
    environment: Mapping[str, str] | None = None,
    lost: str = "",
) -> Outcome:
    """Run the project's tests; afterwards no job, no process and no folder of the run is there.

    A node that was killed is started again, and what was there is not asked for.
    """
    before = node_folders(cluster)
    outcome = run_pytest(
        project,
        f"--scheduler={scheduler}",
        *([f"--n-workers={workers}"] if workers is not None else []),
        *arguments,
        ranks=None,
        limit=limit,
        environment={**cluster.variables, **(environment or {})},
    )
    if lost:
        cluster.start_node(lost)
        for folder in Path("/tmp").glob(f"rankwise-*-{lost}"):
            shutil.rmtree(folder)
    try:
        wait_until_gone(project)
        wait_for("the job to be gone", lambda: jobs_of(cluster, project) == [])
        wait_for("the folders to be gone", lambda: node_folders(cluster) <= before)
    except AssertionError as left:
        raise AssertionError(f"left behind: {left}\n{outcome}") from None
    return outcome


def node_folders(cluster: Cluster) -> set[Path]:
    """Find the folders that servers on the nodes of a cluster have made."""
    return {folder for node in cluster.nodes for folder in Path("/tmp").glob(f"rankwise-*-{node}")}


def jobs_of(cluster: Cluster, project: Project) -> list[str]:
    """Return the jobs of a project that are not over."""
    name = f"pytest-{project.folder.name}"
    return cluster.run("squeue", "--noheader", f"--name={name}", "-o%i").split()


def wait_for(what: str, is_so: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for something, for no longer than told."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.05)


@contextmanager
def disturbing(project: Project, act: Callable[[], None], *, when: str) -> Iterator[None]:
    """Do something as soon as a test of the inner run has written this file."""
    sign = project.folder / when
    problems: list[Exception] = []
    over = Event()

    def wait_and_act() -> None:
        try:
            wait_for(f"{sign} to be there", sign.exists, SECONDS)
            act()
        except Exception as problem:
            problems.append(problem)
        # A daemon that was started here ends with this thread.
        over.wait(2 * SECONDS)

    thread = Thread(target=wait_and_act, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join(SECONDS)
    assert not problems, problems


def notes_of(project: Project) -> list[str]:
    """Return the lines that tests have written with `note`."""
    file = project.folder / "notes.txt"
    return file.read_text().splitlines() if file.exists() else []


NOTE = """
import os
from pathlib import Path

HERE = Path(__file__).parent

def note(*words):
    text = " ".join(map(str, words)) + "\\n"
    number = os.open(HERE / "notes.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(number, text.encode())
    os.close(number)

def sign(name):
    (HERE / name).touch()

def await_sign(name, seconds=40):
    import time
    deadline = time.monotonic() + seconds
    while not (HERE / name).exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
"""
