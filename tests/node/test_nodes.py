"""Virtual nodes have their own names, folders and cores, and commands can be run on them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from rankwise.node import outcome, runner
from rankwise.node.order import Order
from rankwise.node.processes import STILL_THERE, await_end, has_marker
from tests.node.test_runner import Attempt, process, python, without_privileges

ABOUT = "echo $RANKWISE_NODE $RANKWISE_NODE_RANK $HOSTNAME $(basename $PWD)"


@pytest.fixture
def host_names() -> None:
    """Skip where processes may not have host names of their own."""
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


@pytest.mark.parametrize("name", ["plain", "it's a prefix", 'of "$HOME"; (exit 3)', "a\\b&c"])
def test_folders_of_programs_may_have_blanks_and_quotes_in_their_names(
    tmp_path: Path, name: str
) -> None:
    program = tmp_path / name / "bin" / "daemon"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s " "$PREFIX" "$@"\n')
    program.chmod(0o755)
    # Launchers hand on the folder that they are in as it is.
    line = f"PREFIX={tmp_path / name}; export PREFIX; {program}"
    quoted = [shlex.quote(f"{tmp_path / name}/x"), '"a  b"', "'c  d'", "\\'e"]
    words = ["rankwise-node", "node1", line, "--with", *quoted]
    attempt = Attempt(
        tmp_path, process("launcher", words), nodes=2, path=[f"{tmp_path / name}/bin"]
    )
    assert attempt.run()["outcome"] == "passed"
    assert attempt.log("launcher") == (
        f"{tmp_path / name} --with {tmp_path / name}/x a  b c  d 'e "
    )


def elsewhere(attempt: Attempt) -> Attempt:
    """Have what is on the second node be started by words, as those of srun, by a wrapper there."""
    attempt.order["nodes"][0]["reach"] = []
    attempt.order["nodes"][1]["reach"] = ["env"]
    attempt.write()
    return attempt


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "KILL"])
@pytest.mark.parametrize("whose", ["pid", "watched_by"])
def test_a_process_elsewhere_that_is_ended_from_outside_has_failed(
    tmp_path: Path, whose: str, name: str
) -> None:
    number = int(getattr(signal, f"SIG{name}"))
    attempt = elsewhere(
        Attempt(
            tmp_path,
            process("worker-0", "while ! [ -e go ]; do sleep 0.05; done"),
            process("worker-1", ["sleep", "3600"], node=1),
            nodes=2,
            grace=60.0,
        )
    )
    job = attempt.start()
    attempt.wait_for("processes/worker-1/start.json")
    os.kill(attempt.begin("worker-1")[whose], number)
    (attempt.folder / "nodes/node0/go").touch()
    end = attempt.wait(job)
    record = attempt.end("worker-1")
    assert record["by_us"] is False
    assert end["culprit"] == "worker-1"
    if (whose, name) == ("watched_by", "KILL"):
        assert (end["outcome"], end["exit_code"]) == ("lost", 1)
    else:
        assert (end["outcome"], end["exit_code"]) == ("crashed", 128 + number)
        assert record["signal"] == number


def test_a_process_elsewhere_that_the_runner_ends_is_ended_by_the_runner(tmp_path: Path) -> None:
    attempt = elsewhere(
        Attempt(
            tmp_path,
            process("worker-0", "exit 7"),
            process("worker-1", ["sleep", "3600"], node=1),
            nodes=2,
        )
    )
    end = attempt.run()
    assert (end["outcome"], end["culprit"]) == ("failed", "worker-0")
    record = attempt.end("worker-1")
    assert (record["signal"], record["by_us"]) == (signal.SIGTERM, True)


def test_a_process_elsewhere_that_gives_no_account_is_lost_whatever_code_is_given(
    tmp_path: Path,
) -> None:
    attempt = elsewhere(Attempt(tmp_path, process("worker-0", "true", node=1), nodes=2))
    attempt.order["nodes"][1]["reach"] = ["true"]
    attempt.write()
    end = attempt.run()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("lost", 1, "worker-0")


RANK_ELSEWHERE = """rankwise-node node1 "RANK=0 rankwise-rank sh -c '{}'" & """


def test_a_rank_elsewhere_whose_record_comes_late_is_waited_for(tmp_path: Path) -> None:
    """Later than any fixed time: a busy machine was once taken for a killed rank."""
    began = f"{tmp_path}/began"
    line = RANK_ELSEWHERE.format(f"touch {began}; sleep 7")
    line += f"while ! [ -e {began} ]; do sleep 0.05; done"
    attempt = elsewhere(Attempt(tmp_path, process("launcher", line), nodes=2))
    end = attempt.run()
    assert (end["outcome"], end["reason"]) == ("passed", "")
    record = attempt.end("rank-0")
    assert (record["exit_code"], record["signal"], record["by_us"]) == (0, None, False)


def test_a_rank_elsewhere_that_is_killed_with_its_watcher_has_crashed(tmp_path: Path) -> None:
    line = RANK_ELSEWHERE.format("kill -9 \\$PPID \\$\\$") + "wait"
    end = elsewhere(Attempt(tmp_path, process("launcher", line), nodes=2)).run()
    assert (end["outcome"], end["culprit"]) == ("crashed", "rank-0")
    assert "was killed together with the process that watches it" in end["reason"]


def not_answering(attempt: Attempt, *, times: int) -> Attempt:
    """Have the second node give no answer to so many questions about its ranks."""
    asked, reach = attempt.folder / "asked", attempt.folder / "reach"
    reach.write_text(
        f"""#!/bin/sh
        case "$*" in *" await "*)
            echo >> {asked}
            [ "$(wc -l < {asked})" -gt {times} ] || exit 255
        esac
        exec "$@"
        """
    )
    reach.chmod(0o755)
    attempt.order["nodes"][1]["reach"] = [str(reach)]
    attempt.write()
    return attempt


def test_a_node_that_cannot_be_asked_at_once_is_asked_again(tmp_path: Path) -> None:
    """A question that fails, on a busy machine, was once taken for the death of the ranks there."""
    began = f"{tmp_path}/began"
    line = RANK_ELSEWHERE.format(f"touch {began}; sleep 7")
    line += f"while ! [ -e {began} ]; do sleep 0.05; done"
    attempt = elsewhere(Attempt(tmp_path, process("launcher", line), nodes=2))
    end = not_answering(attempt, times=1).run()
    assert (end["outcome"], end["reason"]) == ("passed", "")
    assert attempt.end("rank-0")["exit_code"] == 0


def test_a_rank_without_a_record_on_a_node_that_does_not_answer_is_lost(tmp_path: Path) -> None:
    line = RANK_ELSEWHERE.format("kill -9 \\$PPID \\$\\$") + "wait"
    attempt = elsewhere(Attempt(tmp_path, process("launcher", line), nodes=2))
    end = not_answering(attempt, times=1000).run()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("lost", 1, "rank-0")
    assert "the node that it was on gave no account of it" in end["reason"]


def test_a_rank_that_writes_its_record_while_it_is_looked_for_is_not_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(tmp_path, process("launcher", "true"))
    record = {"exit_code": 0, "signal": None, "by_us": False, "ended": 2.0}
    start = {"started": 1.0, "node": 0, "watched_by": 1}
    place = attempt.folder / "processes" / "rank-0"
    place.mkdir(parents=True)
    (place / "start.json").write_text(json.dumps(start))

    def write_and_end(*_: object) -> bool:
        (place / "end.json").write_text(json.dumps(record))
        return False

    monkeypatch.setattr(outcome, "has_marker", write_and_end)
    monkeypatch.setattr(runner, "sweep", lambda *_, **__: [])
    order = Order.read({**attempt.order, "processes": []})
    one = runner.Runner(order, os.open(os.devnull, os.O_RDONLY))
    assert one.finish(is_reaper=False)["outcome"] == "passed"


def test_a_node_that_is_asked_says_whether_processes_of_the_attempt_are_there() -> None:
    marker = "rw-0123456789abcdef"
    environment = {**os.environ, "RANKWISE_ATTEMPT": marker}
    with subprocess.Popen(["sleep", "60"], env=environment) as sleeper:
        try:
            while not has_marker(sleeper.pid, marker):
                time.sleep(0.01)  # A process has its variables a moment after it has begun.
            assert await_end(marker, "0", f"{sleeper.pid}") == STILL_THERE
            assert await_end("rw-another", "0", f"{sleeper.pid}") == 0
        finally:
            sleeper.kill()
    assert await_end(marker, "0", f"{sleeper.pid}") == 0
