"""Cancelled, put back into the queue, or asked for while slurmctld is away: the truth comes out."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cluster import Cluster

from tests.acceptance.jobs import Shop, wait_for
from tests.slurm.shops import (
    BEGINS_AGAIN_SECONDS,
    begin_again,
    cluster_shop,
    command_job,
    jobs_of,
    only_job,
    status,
    wait_until,
    wait_until_idle,
)

WAITS_FOR_GO = "echo $$ >> began; while [ ! -e go ]; do sleep 0.05; done; echo went"
AWAY = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1"


class Client:
    """A client whose words are read as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines += self.process.stdout

    def wait_to_hear(self, words: str) -> None:
        try:
            wait_until(f"the client says: {words}", lambda: words in self.said)
        except AssertionError:  # What it has said instead tells why.
            raise AssertionError(f"the client has not said {words!r}, but: {self.said!r}") from None

    def end(self, seconds: float = 60) -> int:
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        with self.process:  # Closes what was left of its output.
            return code

    @property
    def said(self) -> str:
        return "".join(self.lines)


@pytest.fixture
def shop(tmp_path: Path, slurm: Cluster) -> Iterator[Shop]:
    with cluster_shop(tmp_path / "shop", slurm) as one:
        yield one
    wait_until_idle(slurm)


def start(shop: Shop, text: str, **variables: str) -> Client:
    (shop.folder / "job.yaml").write_text(text)
    return Client(shop.start("run", "job.yaml", variables=variables))


def in_front_of(shop: Shop, program: str, lines: str) -> str:
    """Put a script in the place of one of Slurm's commands, which is `$real` there; gives PATH."""
    real = shutil.which(program)
    script = shop.write(f"bin/{program}", "")
    script.write_text(f"#!/bin/bash\nreal={real}\n{lines}\n")
    script.chmod(0o755)
    return f"{script.parent}:{os.environ['PATH']}"


def put_back(shop: Shop, slurm: Cluster, client: Client) -> str:
    """Have Slurm put the only job back into the queue, while its task runs; gives its number."""
    wait_for(shop.folder / "began")
    # A client that has not seen it begin cannot see it go back.
    wait_until("it runs", lambda: status(shop)["state"] == "running")
    number = only_job(slurm)
    slurm.run("scontrol", "requeue", number)
    wait_until("it was put back", lambda: state_of(slurm, number) == "PENDING")
    client.wait_to_hear("was put back into the queue")
    return number


@pytest.mark.parametrize("was_taken", [True, False], ids=["was taken", "was not taken"])
def test_a_job_that_is_cancelled_before_its_number_is_known_ends_all_the_same(
    shop: Shop, slurm: Cluster, was_taken: bool
) -> None:
    hand_in = '"$real" "$@" > /dev/null' if was_taken else ":"
    in_front_of(shop, "sbatch", f"{hand_in}\ntouch {shop.folder}/handed-in; {AWAY}")
    unheard = f'[[ "$*" == *--name=* && ! -e {shop.folder}/answers ]] && {{ {AWAY}; }}'
    path = in_front_of(shop, "squeue", f'{unheard}\nexec "$real" "$@"')
    client = start(shop, command_job(WAITS_FOR_GO), PATH=path)
    wait_until("it was handed in", (shop.folder / "handed-in").exists)
    client.process.send_signal(signal.SIGINT)
    client.wait_to_hear("cancelled: stopping what still runs")
    (shop.folder / "answers").touch()
    assert client.end() == 130, client.said
    assert status(shop)["state"] == "cancelled"
    wait_until_idle(slurm)
    assert not (shop.folder / "went").exists()


@pytest.mark.timeout(2 * BEGINS_AGAIN_SECONDS)
def test_a_pilot_that_is_put_back_into_the_queue_begins_again_and_its_tasks_pass(
    shop: Shop, slurm: Cluster
) -> None:
    shop.write("rankwise.toml", '[compute.slurm]\nbackend = "slurm"\nmode = "pilot"\n')
    client = start(shop, command_job(WAITS_FOR_GO))
    number = put_back(shop, slurm, client)
    begin_again(slurm, number)
    wait_until("it began again", lambda: len(lines(shop.folder / "began")) == 2)
    wait_until("it runs", lambda: status(shop)["state"] == "running")
    (shop.folder / "go").touch()
    assert client.end() == 0, client.said
    assert (status(shop)["state"], status(shop)["exit_code"]) == ("passed", 0)


def test_a_task_of_a_pilot_that_waits_in_the_queue_again_can_be_cancelled(
    shop: Shop, slurm: Cluster
) -> None:
    shop.write("rankwise.toml", '[compute.slurm]\nbackend = "slurm"\nmode = "pilot"\n')
    client = start(shop, command_job(WAITS_FOR_GO))
    number = put_back(shop, slurm, client)
    client.process.send_signal(signal.SIGINT)
    assert client.end() == 130, client.said
    assert status(shop)["state"] == "cancelled"
    slurm.run("scancel", number)


def test_slurmctld_may_be_away_when_a_run_is_resumed(tmp_path: Path, own_slurm: Cluster) -> None:
    with cluster_shop(tmp_path / "shop", own_slurm) as shop:
        path = in_front_of(shop, "sbatch", '"$real" "$@" > /dev/null\nkill -9 $PPID')
        client = start(shop, command_job(WAITS_FOR_GO), PATH=path)
        assert client.end() == -signal.SIGKILL
        assert len(jobs_of(own_slurm)) == 1
        wait_for(shop.folder / "began")
        own_slurm.kill("slurmctld")
        resumed = Client(shop.start("resume", "job-1"))
        resumed.wait_to_hear("it is not known yet whether it was started; asking again")
        own_slurm.start_controller()
        (shop.folder / "go").touch()
        assert resumed.end() == 0, resumed.said
        assert len(lines(shop.folder / "began")) == 1
        assert status(shop)["state"] == "passed"


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def state_of(cluster: Cluster, number: str) -> str:
    said = cluster.run("squeue", "--noheader", "--states=all", f"--jobs={number}", "-o%T")
    return said.strip()


def started(process: psutil.Process) -> float:
    return process.create_time()


LOSING = """\
type: Sweep
name: job
command: 'echo $$ >> began; while [ ! -e go-${{trial}} ]; do sleep 0.05; done; echo "took 1 s"'
trials: 2
compute: slurm
metrics:
  - {name: time, unit: s, better: lower, pattern: 'took (?P<value>[0-9.]+) s'}
"""


def test_a_pilot_whose_keeper_was_killed_leaves_what_waits_to_another(
    shop: Shop, slurm: Cluster
) -> None:
    shop.write("rankwise.toml", '[compute.slurm]\nbackend = "slurm"\nmode = "pilot"\n')
    client = start(shop, LOSING)
    wait_for(shop.folder / "began")
    first = only_job(slurm)
    # It starts copies of itself, which look the same.
    min((one for one in shop.processes() if "keeper" in one.cmdline()), key=started).kill()
    (shop.folder / "go-2").touch()
    assert client.end(90) == 1, client.said
    assert "was lost" in client.said
    found = shop.rankwise("status", "job-1").output
    assert "1 lost, 1 passed" in found or "1 passed, 1 lost" in found, found
    assert state_of(slurm, first) == "COMPLETED"
