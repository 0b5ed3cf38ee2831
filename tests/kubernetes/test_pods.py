"""Jobs in pods that are processes of this machine: all but the cluster is real."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import RUNTIMES, why_unavailable

from tests.acceptance.test_job_examples import EXAMPLES, LEARNED, RUNTIME_OF_FOLDER
from tests.backends.places import need
from tests.kubernetes.kubelet import wait_until
from tests.kubernetes.shops import (
    FAILING,
    MPI_JOB,
    RANKS,
    SECRET,
    TENSORFLOW,
    TENSORFLOW_JOB,
    TORCH_JOB,
    Shop,
)
from tests.kubernetes.standing_in import StandIn, obstacle, standing_in


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandIn]:
    need(obstacle())
    with standing_in() as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, cluster: StandIn) -> Iterator[Shop]:
    yield Shop(tmp_path, cluster)
    # Whatever became of it, nothing is left there.
    wait_until(lambda: cluster.left() == [])


def test_ranks_of_mpi_are_started_in_other_pods_without_ssh(shop: Shop) -> None:
    shop.write("src/ranks.py", RANKS)
    shop.write("mpi.yaml", MPI_JOB)
    code, said = shop.call("run", "mpi.yaml")
    assert code == 0, said
    assert "ranks: 4 in 2 pods True" in said
    assert 'using "k8s"' in said
    folder = shop.attempt("mpi-1", "mpi")
    # What was made in the pods is here, each where its node is.
    found = {str(path.relative_to(folder / "nodes")) for path in folder.glob("nodes/*/rank-*.txt")}
    assert found == {f"node{rank // 2}/rank-{rank}.txt" for rank in range(4)}
    names = {path.name for path in (folder / "processes").iterdir()}
    assert names == {"launcher-0", *(f"rank-{rank}" for rank in range(4))}
    # The launcher was there first; the others were told its address, and no more.
    jobs = [job["metadata"]["name"].rpartition("-")[2] for job in shop.cluster.made("jobs")]
    assert jobs[-2:] == ["launcher", "worker"]
    head, *workers = shop.cluster.made("pods")[-3:]
    assert [pod["spec"].get("hostAliases") is None for pod in (head, *workers)] == [
        True,
        False,
        False,
    ]


def test_one_that_fails_ends_all_and_is_named(shop: Shop) -> None:
    shop.write("src/fail.py", FAILING)
    shop.write("fail.yaml", TORCH_JOB.format(name="fail", program="fail.py", count=3))
    code, said = shop.call("run", "fail.yaml")
    assert code == 7, said
    assert "worker-1 exited with code 7" in said
    # What the others have written is not lost with their pods.
    for rank in range(3):
        log = shop.attempt("fail-1", "fail") / "processes" / f"worker-{rank}" / "output.log"
        assert log.read_text().startswith(f"rank {rank} of 3\n")


def test_parameter_servers_end_with_the_workers_and_secrets_stay_secret(shop: Shop) -> None:
    shop.write("src/tf.py", TENSORFLOW)
    shop.write("tf.yaml", TENSORFLOW_JOB.format(workers=2))
    code, said = shop.call("run", "tf.yaml")
    assert code == 0, said
    assert "the answer is 42, the token ***" in said
    assert SECRET not in said
    here = [path.read_bytes() for path in shop.folder.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in content for content in here)
    # Only in the Secret, which went with the rest; not in what the pods were made from.
    made = [thing for kind in ("jobs", "pods", "configmaps") for thing in shop.cluster.made(kind)]
    assert not any(SECRET in str(thing) for thing in made)
    [secret] = [one for one in shop.cluster.made("secrets") if "secret.TOKEN" in one["data"]]
    assert secret["metadata"]["name"] not in shop.cluster.cluster.things["secrets"]


def test_each_role_has_its_image_and_its_code(shop: Shop) -> None:
    (shop.folder / "servers").mkdir()
    for folder in ("src", "servers"):
        shop.write(f"{folder}/tf.py", f"print('this is {folder}', flush=True)\n{TENSORFLOW}")
    text = TENSORFLOW_JOB.format(workers=1).replace("./src}}", "./src}, environment: own}")
    server = "{path: ./servers}, environment: other}"
    shop.write("tf.yaml", text.replace("{path: ./src}, environment: own}", server, 1))
    with (shop.folder / "rankwise.toml").open("a") as site:
        site.write('\n[runtime.own]\nimage = "own:1"\n[runtime.other]\nimage = "other:1"\n')
    # Other tests have made pods in the same cluster.
    earlier = len(shop.cluster.made("pods"))
    code, said = shop.call("run", "tf.yaml")
    assert code == 0, said
    assert re.search("parameter_server 0 *\\| this is servers", said), said
    assert re.search("worker 0 *\\| this is src", said), said
    pods = {
        one["metadata"]["labels"]["rankwise.dev/role"]: one["spec"]["containers"][0]["image"]
        for one in shop.cluster.made("pods")[earlier:]
    }
    assert pods == {"head": "own:1", "worker": "own:1", "parameter_server": "other:1"}


def test_a_client_that_was_killed_is_followed_by_another(shop: Shop) -> None:
    shop.write("src/slow.py", _SLOW.replace("END", repr(str(shop.folder / "end"))))
    shop.write("slow.yaml", TORCH_JOB.format(name="slow", program="slow.py", count=2))
    log = shop.attempt("slow-1", "slow") / "processes" / "worker-1" / "output.log"
    first = shop.start("run", "slow.yaml")
    wait_until(lambda: log.exists() and "begun" in log.read_text(), 60)
    first.send_signal(signal.SIGKILL)
    first.communicate()

    code, said = shop.call("status", "slow-1")
    assert "running" in said, said
    (shop.folder / "end").touch()
    code, said = shop.call("resume", "slow-1")
    assert code == 0, said
    assert log.read_text() == "begun\nended\n"
    # Nothing was started twice.
    assert len([one for one in shop.cluster.made("jobs") if _run(one) == "slow-1"]) == 2


_UNTIL = """\
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("begun", flush=True)
while not os.path.exists(END):
    time.sleep(0.05)
"""


def _delete_worker(shop: Shop, run: str, index: int) -> str:
    """Delete the pod of a worker, wait until it is gone, and let programs end."""
    pods = shop.cluster.cluster.things["pods"]
    [victim] = [name for name in pods if f"-worker-{index}-" in name and _run(pods[name]) == run]
    shop.cluster.cluster.delete("pods", victim)
    wait_until(lambda: victim not in pods)
    (shop.folder / "end").touch()
    return victim


def test_a_job_whose_worker_pod_was_deleted_is_tried_again_if_it_may_be(shop: Shop) -> None:
    shop.write("src/until.py", _UNTIL.replace("END", repr(str(shop.folder / "end"))))
    job = TORCH_JOB.format(name="until", program="until.py", count=2)
    shop.write("until.yaml", f"{job}restart: {{max: 1}}\n")
    client = shop.start("run", "until.yaml")
    for rank in range(2):
        process = shop.attempt("until-1", "until") / "processes" / f"worker-{rank}"
        log = process / "output.log"
        wait_until(lambda log=log: log.exists() and "begun" in log.read_text(), 60)
    victim = _delete_worker(shop, "until-1", 1)
    said, _ = client.communicate(timeout=150)
    assert client.returncode == 0, said
    assert f"worker-1: pod {victim} was deleted, not by rankwise" in said
    assert (shop.attempt("until-1", "until").parent / "2" / "end.json").exists(), said


def test_an_mpi_job_whose_worker_pod_is_deleted_has_not_passed(shop: Shop) -> None:
    """Its ranks leave with 0 when they are asked to end."""
    shop.write("src/ranks.py", _UNTIL.replace("END", repr(str(shop.folder / "end"))))
    shop.write("mpi.yaml", MPI_JOB)
    client = shop.start("run", "mpi.yaml")
    processes = shop.attempt("mpi-1", "mpi") / "processes"

    def have_begun() -> bool:
        logs = [*processes.glob("rank-*/output.log")]
        return sum("begun" in log.read_text() for log in logs) == 4

    wait_until(have_begun, 60)
    victim = _delete_worker(shop, "mpi-1", 1)
    said, _ = client.communicate(timeout=150)
    assert client.returncode == 1, said
    assert f"worker-1: pod {victim} was deleted, not by rankwise" in said


def _run(job: dict[str, dict[str, dict[str, str]]]) -> str:
    return job["metadata"]["labels"]["rankwise.dev/run"]


_SLOW = """\
import os, time
print("begun", flush=True)
while not os.path.exists(END):
    time.sleep(0.05)
print("ended", flush=True)
"""


@pytest.mark.full_length
def test_debian_s_open_mpi_as_a_user_without_rights(tmp_path: Path) -> None:
    need(obstacle())
    if not Path("/usr/bin/mpirun").exists():
        pytest.skip("Debian's Open MPI is not installed")
    with standing_in("/usr/bin:/bin") as cluster:
        shop = Shop(tmp_path, cluster)
        (tmp_path / "rankwise.toml").write_text(f"[compute.k8s]\n{cluster.table('')}")
        line = "sh -c 'echo $OMPI_COMM_WORLD_RANK $(hostname) $(id -un)'"
        options = "--allow-run-as-root -bind-to none -map-by slot -mca pml ob1 -mca btl ^openib"
        job = MPI_JOB.replace(
            "--hostfile AZUREML_MPI_HOSTFILE python ranks.py", f"{options} {line}"
        )
        shop.write("mpi.yaml", job)
        code, said = shop.call("run", "mpi.yaml")
        assert code == 0, said
        for rank in range(4):
            assert f"-worker-{rank // 2} rankwise" in said


# The documents of examples/jobs for Kubernetes, in pods, with the real frameworks

_SECONDS = 400


_HEAVY = pytest.mark.full_length


@pytest.mark.parametrize(
    "kind",
    ["mpi", *(pytest.param(kind, marks=_HEAVY) for kind in ("pytorch", "tensorflow"))],
)
def test_an_example_learns_in_pods(tmp_path: Path, kind: str) -> None:
    """As it is written, and as the site file of the examples says: only the image is ours."""
    runtime = RUNTIMES[RUNTIME_OF_FOLDER[kind]]
    need(obstacle() or why_unavailable(runtime))
    folder = tmp_path / kind
    shutil.copytree(EXAMPLES / kind, folder)
    with standing_in(f"{runtime.folder}/bin:/usr/bin:/bin") as cluster:
        site = folder / "rankwise.toml"
        _, _, rest = site.read_text().partition("[compute.k8s]")
        told = [line for line in rest.splitlines() if line.startswith("gpus")]
        table = cluster.table("\n".join(["user = 0", *told]))
        site.write_text(f"[compute.k8s]\n{table}")
        done = subprocess.run(
            [Path(sys.executable).parent / "rankwise", "run", "k8s.yaml", "--on", "k8s"],
            cwd=folder,
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert LEARNED.search(done.stdout), done.stdout
        wait_until(lambda: cluster.left() == [])
