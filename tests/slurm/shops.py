"""A shop whose documents run on a real Slurm, and what is asked of that Slurm beside it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
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
    """Return the numbers of the jobs that wait or run."""
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


def wait_until_idle(cluster: Cluster) -> None:
    """Wait until no job is left; one that stays fails this test, and no other one."""
    try:
        wait_until("no job is left", lambda: is_idle(cluster))
    except AssertionError:
        cluster.run("scancel", "--full", *jobs_of(cluster))
        raise


# Slurm lets a job that was put back wait for two minutes: a test that needs it to begin again has a limit above that.
BEGINS_AGAIN_SECONDS = 300.0


def begin_again(cluster: Cluster, number: str) -> None:
    """Have a job that was put back into the queue begin soon, or wait until Slurm begins it by itself.

    Slurm's two minutes have a reason. slurmd counts in seconds: a job that begins in the second in which
    it was put back is taken for the start that was ended, and refused ("Job credential revoked"); it is
    over then, as FAILED. So Slurm is asked when no process of the job is left, for a later second. It may
    forget the request, but requests that come again and again keep it from starting the job at all, so
    the pauses grow.
    """
    wait_until(f"nothing of job {number} runs", lambda: not _steps_of(number))
    pause, ask_at = 5.0, 0.0

    def has_begun() -> bool:
        nonlocal pause, ask_at
        if time.monotonic() >= ask_at:
            with contextlib.suppress(RuntimeError):
                cluster.run("scontrol", "update", f"JobId={number}", "StartTime=now+2")
            pause *= 2
            ask_at = time.monotonic() + pause
        time.sleep(0.2)
        assert jobs_of(cluster, f"--jobs={number}"), f"job {number} has ended"
        return number in jobs_of(cluster, "--states=RUNNING")

    try:
        wait_until(f"job {number} begins again", has_begun, BEGINS_AGAIN_SECONDS)
    except AssertionError as failure:
        failure.add_note(cluster.run("scontrol", "show", "job", number))
        failure.add_note(cluster.run("scontrol", "show", "nodes"))
        raise


def _steps_of(number: str) -> list[str]:
    """Return the titles of the processes that watch the steps of a job."""
    titles = [
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ]
    return [title for title in titles if title.startswith(f"slurmstepd: [{number}.")]
