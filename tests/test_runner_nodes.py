"""Virtual nodes have their own names, folders and cores, and commands can be run on them."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.test_runner import Attempt, process, python, without_privileges

ABOUT = "echo $RANKWISE_NODE $RANKWISE_NODE_RANK $HOSTNAME $(basename $PWD)"


@pytest.fixture
def host_names() -> None:
    """Skip where nobody may have host names of their own."""
    asked = subprocess.run(
        ["unshare", "--uts", "--mount", "true"], capture_output=True, check=False
    )
    if asked.returncode != 0:
        pytest.skip("this user may not make namespaces")


def test_processes_are_on_their_nodes(tmp_path: Path) -> None:
    workers = [process(f"worker-{number}", ABOUT, node=number) for number in range(3)]
    attempt = Attempt(tmp_path, *workers, nodes=3)
    attempt.run()
    for number in range(3):
        expected = f"node{number} {number} node{number} node{number}\n"
        assert attempt.log(f"worker-{number}") == expected
        assert attempt.begin(f"worker-{number}")["node"] == number


@pytest.mark.usefixtures("host_names")
def test_nodes_have_host_names_that_are_known(tmp_path: Path) -> None:
    code = (
        "import os, socket; print(os.uname().nodename, socket.gethostname(), "
        "[socket.gethostbyname(name) for name in ('localhost', 'node0', 'node1')])"
    )
    workers = [process(f"worker-{number}", python(code), node=number) for number in range(2)]
    attempt = Attempt(tmp_path, *workers, nodes=2)
    before = (os.uname().nodename, Path("/etc/hosts").read_text())
    attempt.run()
    addresses = "['127.0.0.1', '127.0.0.1', '127.0.0.2']"
    assert attempt.log("worker-0") == f"node0 node0 {addresses}\n"
    assert attempt.log("worker-1") == f"node1 node1 {addresses}\n"
    assert (os.uname().nodename, Path("/etc/hosts").read_text()) == before


def test_a_single_node_with_the_name_of_the_machine_is_the_machine(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "readlink /proc/self/ns/mnt /proc/self/ns/uts"))
    attempt.order["nodes"][0]["name"] = os.uname().nodename
    attempt.write()
    attempt.run()
    ours = [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("mnt", "uts")]
    assert attempt.log("worker-0").split() == ours


def test_without_privileges_there_are_variables(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", f"{ABOUT}; uname -n", node=1), nodes=2)
    attempt.run(without_privileges)
    assert attempt.log("worker-0") == f"node1 1 node1 node1\n{socket.gethostname()}\n"


def test_processes_keep_to_the_cores_of_their_node(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    attempt = Attempt(tmp_path, process("worker-0", python(code)))
    attempt.order["nodes"][0]["cores"] = [core]
    attempt.write()
    attempt.run()
    assert attempt.log("worker-0") == f"[{core}]\n"


def test_cores_that_there_are_not_do_no_harm(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "echo fine"))
    attempt.order["nodes"][0]["cores"] = [1000]
    attempt.write()
    assert attempt.run()["outcome"] == "passed"


@pytest.mark.parametrize(
    "options",
    ["", "-x", "-n -q -T", "-o StrictHostKeyChecking=no -p 22", "-oBatchMode=yes -l me", "me@"],
)
def test_a_line_is_run_on_a_node_as_ssh_would(tmp_path: Path, options: str) -> None:
    target = f"{options}node1" if options.endswith("@") else f"{options} node1"
    line = f"rankwise-node {target} X=1';' 'echo $X; {ABOUT}' '\"a  b\"'"
    attempt = Attempt(tmp_path, process("launcher", line), nodes=2)
    assert attempt.run()["outcome"] == "passed"
    assert attempt.log("launcher") == "1\nnode1 1 node1 node1 a  b\n"


def test_a_node_can_be_called_by_its_address(tmp_path: Path) -> None:
    attempt = Attempt(
        tmp_path, process("launcher", "rankwise-node 127.0.0.2 'echo $HOSTNAME'"), nodes=2
    )
    attempt.run()
    assert attempt.log("launcher") == "node1\n"


def test_the_exit_code_of_the_line_is_passed_on(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("launcher", "rankwise-node node1 exit 9"), nodes=2)
    assert attempt.run()["exit_code"] == 9


@pytest.mark.usefixtures("host_names")
def test_a_line_has_the_host_name_of_its_node(tmp_path: Path) -> None:
    line = "uname -n; rankwise-node node1 'uname -n; getent hosts node1'; uname -n"
    attempt = Attempt(tmp_path, process("launcher", line), nodes=2)
    attempt.run()
    assert attempt.log("launcher").split() == ["node0", "node1", "127.0.0.2", "node1", "node0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("node7 true", "no node of this job is called 'node7'; there are node0, node1"),
        ("-x", "no host is given"),
    ],
)
def test_a_wrong_host_is_named(tmp_path: Path, arguments: str, message: str) -> None:
    attempt = Attempt(tmp_path, process("launcher", f"rankwise-node {arguments}"), nodes=2)
    assert attempt.run()["exit_code"] == 255
    assert message in attempt.log("launcher")


def test_nodes_with_one_host_name_share_nothing(tmp_path: Path) -> None:
    show = "'for i in $OMPI_MCA_btl_sm_backing_directory $PRTE_MCA_prte_tmpdir_base; do mkdir -p $i; touch $i/x; echo $i; done'"
    line = f"rankwise-node node0 {show}; rankwise-node node1 {show}"
    attempt = Attempt(tmp_path, process("launcher", line), nodes=2)
    attempt.run(without_privileges)
    places = [Path(line) for line in attempt.log("launcher").split()]
    assert [place.name for place in places] == ["node0", "node0", "node1", "node1"]
    assert len({place.parent for place in places}) == 2
    assert all(attempt.marker in place.parent.name for place in places)
    assert not any(place.parent.exists() for place in places)


@pytest.mark.usefixtures("host_names")
def test_what_launchers_leave_is_removed(tmp_path: Path) -> None:
    line = "cd $OMPI_MCA_orte_tmpdir_base || mkdir $OMPI_MCA_orte_tmpdir_base; ln -s / $OMPI_MCA_orte_tmpdir_base/root; echo $OMPI_MCA_orte_tmpdir_base"
    attempt = Attempt(tmp_path, process("launcher", line))
    assert attempt.run()["outcome"] == "passed"
    place = Path(attempt.log("launcher").split()[-1])
    assert attempt.marker in place.name
    assert not place.exists()
