"""A shop whose documents run on a real Slurm, and what is asked of that Slurm beside it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cluster import Cluster

from tests.acceptance.jobs import Said, Shop, opened

LIMIT_SECONDS = 120.0


@contextlib.contextmanager
def cluster_shop(folder: Path, cluster: Cluster, settings: str = "") -> Iterator[Shop]:
    """Open a shop that has a compute `slurm`."""
    with opened(folder) as shop:
        shop.variables |= cluster.variables
        shop.write("rankwise.toml", f'[compute.slurm]\nbackend = "slurm"\n{settings}\n')
        yield shop


def command_job(command: str, more: str = "") -> str:
    return f"type: command\nname: job\ncompute: slurm\ncommand: >-\n  {command}\n{more}\n"


def ranks_job(command: str, *, nodes: int = 2, per_node: int = 1, more: str = "") -> str:
    return f"""\
type: PytorchJob
name: job
worker:
  spec:
    command: >-
      {command}
compute: {{target: slurm, instance_count: {nodes}}}
process_count_per_instance: {per_node}
{more}
"""


def run(shop: Shop, text: str, *options: str) -> Said:
    (shop.folder / "job.yaml").write_text(text)
    return shop.rankwise("run", "job.yaml", *options, seconds=LIMIT_SECONDS)


def status(shop: Shop, name: str = "job-1") -> dict[str, object]:
    said = shop.rankwise("status", name, "--json", seconds=LIMIT_SECONDS)
    found: dict[str, object] = json.loads(said.output)
    return found


def wait_until(what: str, is_so: Callable[[], bool], seconds: float = LIMIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.05)


def jobs_of(cluster: Cluster, *options: str) -> list[str]:
    """Give the numbers of the jobs that wait or run."""
    return cluster.run("squeue", "--noheader", "--array", "-o%i", *options).split()


def only_job(cluster: Cluster, state: str = "RUNNING") -> str:
    """Wait until one job has this state, and give its number."""
    found: list[str] = []

    def has_one() -> bool:
        found[:] = jobs_of(cluster, f"--states={state}")
        return len(found) == 1

    wait_until(f"one job that is {state}", has_one)
    return found[0]


def is_idle(cluster: Cluster) -> bool:
    return not jobs_of(cluster)
