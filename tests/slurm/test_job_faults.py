"""What goes wrong on a cluster, on purpose: each has its true outcome, none ends the client."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster

from tests.acceptance.jobs import Shop, wait_for
from tests.slurm.shops import (
    BEGINS_AGAIN_SECONDS,
    begin_again,
    cluster_shop,
    command_job,
    is_idle,
    jobs_of,
    only_job,
    ranks_job,
    run,
    status,
    wait_until,
    wait_until_idle,
)

WAITS_FOR_GO = "echo $$ >> began; while [ ! -e go ]; do sleep 0.05; done; echo went"


@pytest.fixture
def shop(tmp_path: Path, slurm: Cluster) -> Iterator[Shop]:
    with cluster_shop(tmp_path / "shop", slurm) as one:
        yield one
    wait_until_idle(slurm)


def start(shop: Shop, text: str) -> subprocess.Popen[str]:
    (shop.folder / "job.yaml").write_text(text)
    return shop.start("run", "job.yaml")


def end_of(client: subprocess.Popen[str], seconds: float = 60) -> tuple[int, str]:
    output, errors = client.communicate(timeout=seconds)
    return client.returncode, output + errors


def test_a_job_that_slurm_refuses_says_so_in_slurms_words(shop: Shop) -> None:
    shop.write("rankwise.toml", '[compute.slurm]\nbackend = "slurm"\npartition = "nowhere"\n')
    said = run(shop, command_job("touch it-ran"))
    assert said.exit_code == 1, said
    assert "invalid partition specified: nowhere" in said.output, said
    assert not (shop.folder / "it-ran").exists()


def test_the_values_of_secrets_do_not_stay_when_slurm_refuses_a_job(shop: Shop) -> None:
    shop.variables["TOKEN"] = "Aj7-qqz-tell-nobody"
    shop.write("rankwise.toml", '[compute.slurm]\nbackend = "slurm"\npartition = "nowhere"\n')
    said = run(shop, command_job("touch it-ran", more="secrets: [TOKEN]"))
    assert said.exit_code == 1, said
    assert files_with_secrets(shop) == []


@pytest.mark.parametrize(
    ("by", "mode"),
    [
        ("slurm", "job"),
        ("slurm", "pilot"),
        ("rankwise", "job"),
        ("rankwise", "pilot"),
        ("rankwise after the client", "job"),
        ("rankwise after the client", "pilot"),
    ],
)
def test_the_values_of_secrets_do_not_stay_when_a_job_that_waits_is_cancelled(
    shop: Shop, slurm: Cluster, by: str, mode: str
) -> None:
    shop.variables["TOKEN"] = "Aj7-qqz-tell-nobody"
    settings = f'backend = "slurm"\npartition = "closed"\nmode = "{mode}"'
    shop.write("rankwise.toml", f"[compute.slurm]\n{settings}\n")
    client = start(shop, command_job("touch it-ran", more="secrets: [TOKEN]"))
    number = only_job(slurm, "PENDING")
    wait_until("the values are there", lambda: bool(files_with_secrets(shop)))
    (place,) = files_with_secrets(shop)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    if by == "slurm":
        slurm.run("scancel", number)
    else:
        if by == "rankwise after the client":
            os.killpg(client.pid, signal.SIGKILL)
            client.wait()
        shop.rankwise("cancel", "job-1")
    end_of(client)
    wait_until_idle(slurm)
    assert files_with_secrets(shop) == []
    assert not (shop.folder / "it-ran").exists()


def files_with_secrets(shop: Shop) -> list[Path]:
    files = [path for path in shop.folder.rglob("*") if path.is_file()]
    return [path for path in files if b"tell-nobody" in path.read_bytes()]


def test_a_job_that_is_cancelled_from_outside_is_cancelled_and_not_failed(
    shop: Shop, slurm: Cluster
) -> None:
    client = start(shop, ranks_job("trap 'echo ended; exit 1' TERM; touch began; sleep 60 & wait"))
    wait_for_began(shop)
    slurm.run("scancel", only_job(slurm))
    code, said = end_of(client)
    assert code == 130, said
    assert "was cancelled in Slurm" in said
    assert "not by rankwise" in said
    assert status(shop)["state"] == "cancelled"


@pytest.mark.parametrize("name", ["TERM", "INT"])
def test_a_job_whose_processes_are_sent_a_signal_from_outside_has_not_passed(
    shop: Shop, slurm: Cluster, name: str
) -> None:
    # The first rank is beside the runner, and ends well whatever becomes of the other.
    wait = "while [ ! -e go ]; do sleep 0.05; done"
    line = (
        f"touch began-$RANK; if [ $RANK = 0 ]; then trap '' {name}; {wait}; else exec sleep 60; fi"
    )
    client = start(shop, ranks_job(line))
    for rank in (0, 1):
        wait_until("it began", (shop.folder / f"began-{rank}").exists)
    slurm.run("scancel", "-s", name, only_job(slurm))
    (shop.folder / "go").touch()
    code, said = end_of(client)
    number = int(getattr(signal, f"SIG{name}"))
    assert code == 128 + number, said
    assert status(shop)["state"] == "crashed", said
    assert f"worker-1 was ended by signal {number} (SIG{name})" in said


def test_a_job_that_is_cancelled_while_it_waits_is_told_of_with_its_reason(
    shop: Shop, slurm: Cluster
) -> None:
    shop.write("rankwise.toml", '[compute.slurm]\nbackend = "slurm"\npartition = "closed"\n')
    client = start(shop, command_job("touch it-ran"))
    number = only_job(slurm, "PENDING")
    wait_until("Slurm says why it waits", lambda: "PartitionDown" in reason_of(slurm, number))
    assert status(shop)["state"] == "running"
    wait_until("we say it too", lambda: "PartitionDown" in shop.rankwise("status").output)
    slurm.run("scancel", number)
    code, said = end_of(client)
    assert code == 130, said
    assert f"Slurm job {number} is pending: PartitionDown" in said
    assert "was cancelled in Slurm" in said
    assert not (shop.folder / "it-ran").exists()


def test_a_job_that_uses_too_much_memory_is_told_apart_from_a_crash(shop: Shop) -> None:
    shop.write("rankwise.toml", '[compute.slurm]\nbackend = "slurm"\noptions = ["--mem=150M"]\n')
    hog = "python -c 'import time; x = bytearray(600000000); time.sleep(30)'"
    said = run(shop, command_job(hog))
    assert said.exit_code == 137, said
    assert "out of memory" in said.output, said


def test_ctrl_c_ends_the_job_in_good_order(shop: Shop, slurm: Cluster) -> None:
    end = "trap 'echo tidied $RANK >> tidied; exit 0' TERM; touch began-$RANK; sleep 60 & wait"
    client = start(shop, ranks_job(end))
    for rank in (0, 1):
        wait_until("it began", (shop.folder / f"began-{rank}").exists)
    client.send_signal(signal.SIGINT)
    code, said = end_of(client)
    assert code == 130, said
    assert sorted((shop.folder / "tidied").read_text().split()) == ["0", "1", "tidied", "tidied"]
    wait_until("it is gone", lambda: is_idle(slurm))


def test_a_client_that_is_killed_is_followed_by_one_that_finds_the_job(
    shop: Shop, slurm: Cluster
) -> None:
    client = start(shop, command_job(WAITS_FOR_GO))
    wait_for(shop.folder / "began")
    os.killpg(client.pid, signal.SIGKILL)
    client.communicate()
    assert status(shop)["state"] == "running"
    (shop.folder / "go").touch()
    wait_until("the job is over", lambda: is_idle(slurm))
    assert (status(shop)["state"], status(shop)["exit_code"]) == ("passed", 0)
    said = shop.rankwise("resume", "job-1")
    assert said.exit_code == 0, said
    assert len((shop.folder / "began").read_text().split()) == 1


@pytest.mark.parametrize("moment", ["before it is handed in", "before its number is known"])
def test_a_client_that_is_killed_around_sbatch_has_the_job_run_once(
    shop: Shop, slurm: Cluster, moment: str
) -> None:
    """The sbatch on the path is the real one, and kills its caller."""
    real = subprocess.run(["which", "sbatch"], capture_output=True, text=True, check=True)
    does = '"$real" "$@" > number' if moment == "before its number is known" else ":"
    trap = shop.write(
        "bin/sbatch", f"#!/bin/sh\nreal={real.stdout.strip()}\n{does}\nkill -9 $PPID\n"
    )
    trap.chmod(0o755)
    path = {"PATH": f"{trap.parent}:{os.environ['PATH']}"}
    (shop.folder / "job.yaml").write_text(command_job(WAITS_FOR_GO))
    client = shop.start("run", "job.yaml", variables=path)
    client.communicate(timeout=60)
    assert client.returncode == -signal.SIGKILL
    if moment == "before its number is known":
        assert len(jobs_of(slurm)) == 1
    (shop.folder / "go").touch()
    said = shop.rankwise("resume", "job-1")
    assert said.exit_code == 0, said
    assert "went" in shop.rankwise("logs", "job-1").output
    assert len((shop.folder / "began").read_text().split()) == 1


def test_slurmctld_may_be_away_for_a_while(tmp_path: Path, own_slurm: Cluster) -> None:
    with cluster_shop(tmp_path / "shop", own_slurm) as shop:
        client = start(shop, command_job(WAITS_FOR_GO))
        wait_for(shop.folder / "began")
        own_slurm.kill("slurmctld")
        (shop.folder / "go").touch()
        # What has ended is known at once: it is the runner's word that counts.
        code, said = end_of(client)
        assert code == 0, said
        # One that is to be sent meanwhile waits.
        other = start(shop, command_job("echo sent later"))
        time.sleep(1)
        own_slurm.start_controller()
        code, said = end_of(other)
        assert code == 0, said
        assert "sent later" in said


@pytest.mark.timeout(2 * BEGINS_AGAIN_SECONDS)
def test_a_job_that_must_make_way_runs_again_and_is_one_attempt(shop: Shop, slurm: Cluster) -> None:
    shop.write("rankwise.toml", '[compute.slurm]\nbackend = "slurm"\noptions = ["--exclusive"]\n')
    client = start(
        shop, ranks_job("echo $RANK >> began; " + WAITS_FOR_GO.partition("; ")[2], nodes=4)
    )
    number = only_job(slurm)
    wait_until("all began", lambda: len(lines(shop.folder / "began")) == 4)
    other = slurm.run(
        "sbatch", "--parsable", "--partition=urgent", "-N4", "--wrap=sleep 0.1", "-o/dev/null"
    )
    wait_until("it was put back", lambda: state_of(slurm, number) == "PENDING")
    wait_until("the other is over", lambda: state_of(slurm, other.strip()) == "COMPLETED")
    begin_again(slurm, number)
    wait_until("all began again", lambda: len(lines(shop.folder / "began")) == 8)
    (shop.folder / "go").touch()
    code, said = end_of(client)
    assert code == 0, said
    assert f"Slurm job {number} was put back into the queue" in said
    assert len(list((shop.folder / ".rankwise/runs/job-1/job").iterdir())) == 1


def test_a_time_limit_ends_a_job_and_a_dead_node_takes_one_with_it(
    tmp_path: Path, own_slurm: Cluster
) -> None:
    with cluster_shop(tmp_path / "shop", own_slurm, 'options = ["--no-requeue"]') as shop:
        end = "trap 'exit 1' TERM; sleep 100 & wait"
        limited = start(shop, ranks_job(end).replace("name: job", "name: limited"))
        number = only_job(own_slurm)
        # A limit of Slurm is a minute at least, and looked at twice a minute.
        own_slurm.run("scontrol", "update", f"JobId={number}", "EndTime=now+2")
        client = start(shop, ranks_job("echo $RANK >> began; sleep 100", per_node=4))
        wait_until("all began", lambda: len(lines(shop.folder / "began")) == 8)
        own_slurm.kill(own_slurm.nodes[3])
        code, said = end_of(client)
        assert code == 1, said
        assert status(shop)["state"] == "lost", said
        assert "node" in said
        code, said = end_of(limited)
        assert code == 124, said
        assert "reached its time limit in Slurm" in said


def test_a_node_that_is_drained_lets_its_job_end(shop: Shop, slurm: Cluster) -> None:
    client = start(shop, command_job(WAITS_FOR_GO))
    wait_for(shop.folder / "began")
    node = slurm.run("squeue", "--noheader", "-o%N").strip()
    slurm.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    try:
        (shop.folder / "go").touch()
        code, said = end_of(client)
        assert code == 0, said
    finally:
        slurm.run("scontrol", "update", f"NodeName={node}", "State=RESUME")


def wait_for_began(shop: Shop) -> None:
    wait_until("it began", (shop.folder / "began").exists)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def reason_of(cluster: Cluster, number: str) -> str:
    return cluster.run("squeue", "--noheader", f"--jobs={number}", "-o%r").strip()


def state_of(cluster: Cluster, number: str) -> str:
    said = cluster.run("squeue", "--noheader", "--states=all", f"--jobs={number}", "-o%T")
    return said.strip()
