"""Jobs on a real Slurm: what runs on this machine runs there, unchanged."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from environments import ENVIRONMENTS, ROOT

from tests.acceptance.jobs import Shop, wait_for
from tests.acceptance.test_job_examples import DOCUMENTS, LEARNED, take_runtime
from tests.lengths import IS_FULL
from tests.slurm.shops import (
    LIMIT_SECONDS,
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

EXAMPLES = ROOT / "examples" / "jobs"
WHO = (
    'python -c "from mpi4py import MPI; import os; c = MPI.COMM_WORLD; '
    "print('rank', c.rank, 'of', c.allreduce(1), 'on', os.uname().nodename)\""
)


@pytest.fixture
def shop(tmp_path: Path, slurm: Cluster) -> Iterator[Shop]:
    with cluster_shop(tmp_path / "shop", slurm) as one:
        yield one
    wait_until_idle(slurm)


def mpi_job(command: str) -> str:
    return (
        "type: MpiJob\nname: job\nlauncher:\n  spec:\n    command: >-\n"
        f"      {command}\ncompute: {{target: slurm, instance_count: 2}}\n"
    )


def test_the_exit_code_is_that_of_a_process_on_another_node(shop: Shop, slurm: Cluster) -> None:
    command = "echo $RANK is on $(hostname); if [ $RANK = 3 ]; then exit 7; fi; exec sleep 60"
    said = run(shop, ranks_job(command, per_node=2))
    assert said.exit_code == 7, said
    assert "worker-3 exited with code 7" in said.output, said
    assert {f"{rank} is on {slurm.nodes[rank // 2]}" in said.output for rank in range(4)} == {True}
    shop.wait_until_empty()


def test_mpirun_starts_ranks_on_the_nodes_of_the_allocation(shop: Shop, slurm: Cluster) -> None:
    said = run(shop, mpi_job(f"mpirun -np 4 --hostfile AZUREML_MPI_HOSTFILE {WHO}"))
    assert said.exit_code == 0, said
    assert all(f"rank {rank} of 4 on {slurm.nodes[rank // 2]}" in said.output for rank in range(4))
    assert set(re.findall(rf"on ({slurm.prefix}\d)", said.output)) == set(slurm.nodes[:2])


@pytest.mark.parametrize(("mpi", "plugin"), [("mpich", "pmi2"), ("debian-openmpi", "pmix")])
def test_srun_starts_ranks_where_the_site_file_says_so(
    shop: Shop, slurm: Cluster, mpi: str, plugin: str
) -> None:
    folder = ENVIRONMENTS[mpi].python.parent.parent
    shop.write(
        "rankwise.toml",
        f'[compute.slurm]\nbackend = "slurm"\nmpi = "srun-{plugin}"\n'
        f'[defaults]\nruntime = "mine"\n[runtime.mine]\npython = "{folder}"\n',
    )
    command = WHO.replace("os.uname().nodename", "os.environ['RANKWISE_NODE']")
    said = run(shop, mpi_job(f"mpirun -np 4 {command}"))
    assert said.exit_code == 0, said
    assert f"became `srun --mpi={plugin}`" in said.output
    assert all(f"rank {rank} of 4 on {slurm.nodes[rank // 2]}" in said.output for rank in range(4))


# All eleven run there; every day a few do.
@pytest.mark.parametrize(
    "document",
    DOCUMENTS if IS_FULL else ["mpi/amlcompute.yaml", "mpi/command-job.yaml"],
)
def test_an_example_of_this_machine_runs_on_the_cluster(shop: Shop, document: str) -> None:
    folder = Path(document).parent
    shutil.copytree(EXAMPLES / folder, shop.folder / folder)
    take_runtime(shop.folder / folder)
    with (shop.folder / folder / "rankwise.toml").open("a") as site:
        # Without it, a job here has 400 MB for each of its cores.
        site.write('\n[compute.slurm]\nbackend = "slurm"\noptions = ["--mem=3500"]\ngpus = 16\n')
    said = shop.rankwise("run", document, "--on", "slurm", seconds=LIMIT_SECONDS)
    assert said.exit_code == 0, said
    assert LEARNED.search(said.output), said


def test_a_secret_reaches_all_nodes_and_is_left_nowhere(shop: Shop, slurm: Cluster) -> None:
    shop.variables["TOKEN"] = "Aj7-qqz-tell-nobody"
    command = "test ${#TOKEN} = 19 && echo it is $TOKEN && env | grep -c SLURM_JOB_ID > seen-$RANK"
    said = run(shop, ranks_job(f"{command} || true", more="secrets: [TOKEN]"))
    assert said.exit_code == 0, said
    assert said.output.count("it is ***") == 2, said
    held = [
        path
        for place in (shop.folder, slurm.folder)
        for path in place.rglob("*")
        if path.is_file() and not path.is_symlink() and b"tell-nobody" in path.read_bytes()
    ]
    assert held == []


ROLES = """\
type: TensorflowJob
name: job
compute: {target: slurm, instance_count: 2}
worker:
  num_replicas: 2
  spec: {command: python say.py, code: ./src, environment: current, resource_limits: {memory: 64Mi}}
parameter_server:
  num_replicas: 2
  spec:
    command: python say.py
    code: ./servers
    environment: other
    resource_limits: {memory: 96Mi}
"""
SAY = """\
import os, resource, sys, time
limit = resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20
print("NAME", os.environ["RANKWISE_NODE_RANK"], sys.prefix, limit, flush=True)
time.sleep(2)
"""


def test_each_role_has_its_environment_code_and_limits_on_all_nodes(shop: Shop) -> None:
    other = shop.folder / "other"
    venv.create(other, with_pip=False)
    shop.write("src/say.py", SAY.replace("NAME", "worker"))
    shop.write("servers/say.py", SAY.replace("NAME", "server"))
    table = '[compute.slurm]\nbackend = "slurm"\noptions = ["--mem=500"]\n'
    shop.write("rankwise.toml", f'{table}[runtime.other]\npython = "{other}"\n')
    said = run(shop, ROLES)
    assert said.exit_code == 0, said
    assert "limits: an rlimit for the memory of each process" in said.output, said
    words = {tuple(one.split()) for one in re.findall(r"\| ((?:worker|server) .*)", said.output)}
    assert words == {
        *(("worker", node, sys.prefix, "64") for node in "01"),
        *(("server", node, str(other), "96") for node in "01"),
    }
    shop.write("src/say.py", "import os; x = b'x' * (int(os.environ['RANKWISE_NODE_RANK']) << 27)")
    failed = run(shop, ROLES)
    assert failed.exit_code == 1, failed
    assert "worker-1 exceeded its memory limit of 64Mi (MemoryError)" in failed.output, failed


def test_what_the_cluster_does_not_have_is_said_before_anything_is_sent(shop: Shop) -> None:
    text = ranks_job("touch it-ran").replace(
        "    command", "    resource_limits: {gpu: 4}\n    command"
    )
    said = run(shop, text)
    assert said.exit_code == 1, said
    assert "not run: needs 8 GPUs, found 0" in said.output
    said = run(shop, ranks_job("touch it-ran", nodes=5))
    assert "not run: needs 5 nodes, found 4" in said.output, said
    assert not (shop.folder / "it-ran").exists()


def test_tasks_that_are_alike_go_as_one_array_and_honour_a_limit(
    shop: Shop, slurm: Cluster
) -> None:
    setting = 'max_queued = 3\ninit = ["export FROM_INIT=${HOME:+yes}"]\n'
    shop.write("rankwise.toml", f'[compute.slurm]\nbackend = "slurm"\n{setting}')
    command = "squeue -h -r -o %F%j >> seen; test $FROM_INIT = yes && test {n} != 4"
    names = []
    for number in range(7):
        (shop.folder / f"t{number}.yaml").write_text(
            command_job(command.format(n=number)).replace("name: job", f"name: t{number}")
        )
        names.append(f"t{number}.yaml")
    said = shop.rankwise("run", *names, seconds=LIMIT_SECONDS)
    assert said.exit_code == 1, said
    counts = [said.output.count(f"t{number} failed") > 0 for number in range(7)]
    assert counts == [number == 4 for number in range(7)], said
    # One line for each job that was there when one looked; an array has one number and name.
    assert len(jobs_of(slurm)) == 0
    assert len(set((shop.folder / "seen").read_text().split())) < 7


def test_a_pilot_runs_many_tasks_in_one_allocation(shop: Shop, slurm: Cluster) -> None:
    setting = 'mode = "pilot"\npilot_nodes = 2\n'
    shop.write("rankwise.toml", f'[compute.slurm]\nbackend = "slurm"\n{setting}')
    names = []
    for number in range(12):
        text = command_job(f"echo $RANKWISE_SLURM_JOB >> jobs; exit $(({number} == 5 ? 7 : 0))")
        (shop.folder / f"t{number}.yaml").write_text(text.replace("name: job", f"name: t{number}"))
        names.append(f"t{number}.yaml")
    wide = ranks_job("hostname >> hosts; echo $RANKWISE_SLURM_JOB >> jobs")
    (shop.folder / "wide.yaml").write_text(wide.replace("name: job", "name: wide"))
    said = shop.rankwise("run", *names, "wide.yaml", seconds=LIMIT_SECONDS)
    assert said.exit_code == 7, said
    assert "t5 failed" in said.output
    jobs = (shop.folder / "jobs").read_text().split()
    assert (len(jobs), len(set(jobs))) == (14, 1)
    assert sorted((shop.folder / "hosts").read_text().split()) == slurm.nodes[:2]
    wait_until("the pilot has left", lambda: is_idle(slurm), seconds=10)


def test_a_pilot_goes_on_without_its_client_and_can_be_cancelled(
    shop: Shop, slurm: Cluster
) -> None:
    setting = 'mode = "pilot"\npilot_idle = 1\n'
    shop.write("rankwise.toml", f'[compute.slurm]\nbackend = "slurm"\n{setting}')
    command = "echo $$ >> began; while [ ! -e go ]; do sleep 0.05; done; echo went >> went"
    for number in range(6):
        (shop.folder / f"t{number}.yaml").write_text(
            command_job(command).replace("name: job", f"name: t{number}")
        )
    names = [f"t{number}.yaml" for number in range(6)]
    client = shop.start("run", *names)
    wait_for(shop.folder / "began")
    os.killpg(client.pid, signal.SIGKILL)
    client.communicate()
    (shop.folder / "go").touch()
    wait_until("the pilot has left", lambda: is_idle(slurm))
    said = shop.rankwise("resume", seconds=LIMIT_SECONDS)
    assert said.exit_code == 0, said
    assert (shop.folder / "went").read_text().split() == ["went"] * 6
    # And one that is cancelled, with tasks that run and tasks that wait.
    (shop.folder / "go").unlink()
    (shop.folder / "began").unlink()
    client = shop.start("run", *names)
    wait_for(shop.folder / "began")
    client.send_signal(signal.SIGINT)
    output, errors = client.communicate(timeout=LIMIT_SECONDS)
    assert client.returncode == 130, output + errors
    wait_until("the pilot has left", lambda: is_idle(slurm))


def test_the_doctor_finds_what_is_there_and_what_must_change(shop: Shop, slurm: Cluster) -> None:
    said = shop.rankwise("doctor", seconds=LIMIT_SECONDS)
    assert said.exit_code == 0, said
    for words in ("slurmctld of rankwise answers", "4 nodes, 16 cores", "pmi2", "is shared"):
        # Lines end between words.
        assert words in " ".join(said.output.split()), said
    assert "accounting is off" in said.output
    shop.write("rankwise.toml", '[compute.slurm]\nbackend = "slurm"\nqos = "a"\nmpi = "srun-pmi9"')
    said = shop.rankwise("doctor", "slurm", seconds=LIMIT_SECONDS)
    assert said.exit_code == 1, said
    assert "there is no pmi9" in said.output
    shop.write("rankwise.toml", '[compute.slurm]\nbackend = "slurm"\ninit = ["no-such-word"]')
    said = shop.rankwise("doctor", "slurm", seconds=LIMIT_SECONDS)
    assert said.exit_code == 1, said
    assert "no-such-word" in said.output
    shop.variables["PATH"] = "/nowhere"
    said = shop.rankwise("doctor", "slurm", seconds=LIMIT_SECONDS)
    assert said.exit_code == 1, said
    assert "this machine has no Slurm" in said.output


def test_with_accounting_a_job_that_is_forgotten_is_still_known(
    tmp_path: Path, slurm_with_accounting: Cluster
) -> None:
    slurm = slurm_with_accounting
    with cluster_shop(tmp_path / "shop", slurm, 'partition = "closed"') as shop:
        (shop.folder / "job.yaml").write_text(command_job("touch it-ran"))
        client = shop.start("run", "job.yaml")
        number = only_job(slurm, "PENDING")
        time.sleep(0.5)
        os.killpg(client.pid, signal.SIGKILL)
        client.communicate()
        slurm.run("scancel", number)
        known = ["scontrol", "show", "job", number]
        variables = os.environ | slurm.variables
        wait_until(
            "slurmctld has forgotten it",
            lambda: subprocess.run(known, env=variables, capture_output=True).returncode != 0,  # noqa: PLW1510  it must fail
            seconds=90,
        )
        said = shop.rankwise("resume", "job-1", seconds=LIMIT_SECONDS)
        assert said.exit_code == 130, said
        assert "was cancelled in Slurm" in said.output, said
        shop.write("rankwise.toml", '[compute.slurm]\nbackend = "slurm"\n')
        said = run(shop, command_job("exit 5"))
        assert said.exit_code == 5, said
        assert status(shop, "job-2")["state"] == "failed"
