"""Jobs in pods that are real containers: nothing of this machine is in them, and no rights."""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import IMAGE, Podman, obstacle, podman

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
from tests.kubernetes.standing_in import StandIn, standing_in


@pytest.fixture(scope="module")
def engine() -> Iterator[Podman]:
    need(obstacle())
    with podman() as made:
        yield made


@pytest.fixture(scope="module")
def cluster(engine: Podman) -> Iterator[StandIn]:
    with standing_in(engine=engine) as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, cluster: StandIn, engine: Podman) -> Iterator[Shop]:
    one = Shop(tmp_path, cluster)
    one.write("rankwise.toml", table(cluster))
    yield one
    wait_until(lambda: cluster.left() == [])
    wait_until(lambda: engine.containers() == [])


def table(cluster: StandIn, more: str = "") -> str:
    return (
        f'[compute.k8s]\nbackend = "kubernetes"\nkubeconfig = "{cluster.folder}/kubeconfig"\n'
        f'image = "{IMAGE}"\n{more}'
    )


# Says who and where it is, and what it may do there; and leaves a file.
_LOOK = """\
import json, os, pathlib, pwd, socket
def may_write(folder):
    try:
        pathlib.Path(folder, "try").touch()
    except OSError:
        return False
    return True
about = {
    "user": [os.getuid(), os.getgid(), pwd.getpwuid(os.getuid()).pw_name],
    "writes": [place for place in (".", "/tmp", "~", "/dev/shm", "/", "/etc")
               if may_write(os.path.expanduser(place))],
    "rights": next(line for line in open("/proc/self/status") if line.startswith("CapBnd")),
    "hosts": sorted({socket.gethostbyname(os.uname().nodename)}),
    "rank": os.environ["RANK"],
}
pathlib.Path("about.json").write_text(json.dumps(about))
"""


def test_ranks_are_users_without_rights_and_what_they_leave_comes_back(shop: Shop) -> None:
    shop.write("src/look.py", _LOOK)
    shop.write("look.yaml", TORCH_JOB.format(name="look", program="look.py", count=2))
    code, said = shop.call("run", "look.yaml")
    assert code == 0, said
    nodes = shop.attempt("look-1", "look") / "nodes"
    found = [json.loads((nodes / f"node{one}" / "about.json").read_text()) for one in range(2)]
    assert [one["rank"] for one in found] == ["0", "1"]
    for one in found:
        assert one["user"] == [1000, 1000, "rankwise"]
        assert one["writes"] == [".", "/tmp", "~", "/dev/shm"]
        assert int(one["rights"].split()[1], 16) == 0
        assert one["hosts"][0].startswith("127.")


def test_one_that_fails_ends_all_and_is_named(shop: Shop) -> None:
    shop.write("src/fail.py", FAILING)
    shop.write("fail.yaml", TORCH_JOB.format(name="fail", program="fail.py", count=2))
    code, said = shop.call("run", "fail.yaml")
    assert code == 7, said
    assert "worker-1 exited with code 7" in said
    log = shop.attempt("fail-1", "fail") / "processes" / "worker-0" / "output.log"
    assert log.read_text().startswith("rank 0 of 2\n")


def test_secrets_reach_programs_and_nothing_else(shop: Shop) -> None:
    shop.write("src/tf.py", TENSORFLOW)
    shop.write("tf.yaml", TENSORFLOW_JOB.format(workers=1))
    code, said = shop.call("run", "tf.yaml")
    assert code == 0, said
    assert "the answer is 42, the token ***" in said
    assert SECRET not in said


def test_a_run_that_is_cancelled_leaves_no_container(shop: Shop) -> None:
    shop.write("src/fail.py", FAILING.replace('== "1"', '== "none"'))
    shop.write("wait.yaml", TORCH_JOB.format(name="wait", program="fail.py", count=1))
    client = shop.start("run", "wait.yaml")
    log = shop.attempt("wait-1", "wait") / "processes" / "worker-0" / "output.log"
    wait_until(lambda: log.exists() and "rank 0 of 1" in log.read_text(), 60)
    code, said = shop.call("cancel", "wait-1")
    assert code == 0, said
    said, _ = client.communicate(timeout=60)
    assert client.returncode == 130, said


def test_ranks_of_mpi_are_started_in_other_containers(shop: Shop) -> None:
    """MPICH is in a folder that containers may read; all else is the image's."""
    folder, packages = Path(sys.prefix), sysconfig.get_path("purelib")
    more = f'host_paths = {{ "{folder}" = "{folder}" }}\n'
    shop.write("rankwise.toml", table(shop.cluster, more))
    shop.write("src/ranks.py", RANKS)
    job = MPI_JOB.replace("command: mpirun", f"command: {folder}/bin/mpirun")
    variables = f"{{PYTHONPATH: {packages}, MPI4PY_LIBMPI: {folder}/lib/libmpi.so.12}}"
    shop.write("mpi.yaml", f"{job}environment_variables: {variables}\n")
    code, said = shop.call("run", "mpi.yaml")
    assert code == 0, said
    assert "ranks: 4 in 2 pods True" in said
