"""PBS: answers of OpenPBS 23 and of Torque, written after their documentation, and Slurm in its words.

What the commands print is played by scripts; what they were asked is in a file.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.backends.base import Unreachable
from rankwise.backends.batch.pbs import Pbs, read_blocks, read_node, state_of
from rankwise.backends.batch.system import (
    BatchJob,
    BatchNode,
    Cause,
    Ending,
    Needs,
    Phase,
    QueueFull,
)
from rankwise.backends.doctor import check_batch
from rankwise.documents.site_models import BatchConfig, ComputeConfig, GridEngineConfig, PbsConfig
from rankwise.errors import ComputeFailure
from rankwise.pytest_plugin.workers.run_options import SlurmOptions
from rankwise.pytest_plugin.workers.slurm_allocation import submit_on
from tests.acceptance.jobs import Said, Shop, opened
from tests.backends.places import need

OPENPBS, TORQUE = "pbs_version = 23.06.06", "Version: 6.1.3"
JOBS = """\
Job Id: 17.head
    Job_Name = rw-1
    Job_Owner = ann@login
    job_state = Q
    queue = workq
    comment = Not Running: Insufficient amount of resource: ncpus (R: 64 A: 12 \n\tT: 48)
    Resource_List.select = 2:ncpus=32:mpiprocs=32
    substate = 10
    Variable_List = PBS_O_HOME=/home/ann,PBS_O_LANG=en_US.UTF-8,
\tjob_state = F,PBS_O_SHELL=/bin/bash

Job Id: 18.head
    Job_Name = rw-2
    job_state = R
    exec_host = n1/0*2+n2/0*2
    exec_vnode = (n1:ncpus=2)+(n2:ncpus=2)
    substate = 42

Job Id: 19[].head
    Job_Name = rw-3
    job_state = B
    substate = 88

Job Id: 19[0].head
    Job_Name = rw-3
    job_state = X
    Exit_status = 0
    substate = 92

Job Id: 19[1].head
    Job_Name = rw-3
    job_state = R
    exec_host = n1/2
    substate = 42
"""
NODES = """\
n1
     Mom = n1.cluster
     ntype = PBS
     state = free
     resources_available.mem = 16384000kb
     resources_available.ncpus = 8
     resources_available.ngpus = 2

n2
     Mom = n2.cluster
     state = state-unknown,down
     resources_available.mem = 16384000kb
     resources_available.ncpus = 8
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.folder}:/usr/bin:/bin")
    made.plays("qstat", JOBS, version=OPENPBS)
    return made


class Server:
    """Commands that print what they are told to, and note how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def plays(
        self, name: str, output: str = "", *, code: int = 0, errors: str = "", version: str = ""
    ) -> None:
        """Have a command print this whatever it is asked, but for its version."""
        answer = f"echo {shlex.quote(version)}; exit 0" if version else "exit 2"
        called = shlex.quote(str(self.folder / f"{name}.called"))
        text = (
            "#!/bin/sh\n"
            f'[ "$1" = --version ] && {{ {answer}; }}\n'
            f'for word in "$@"; do printf "%s\\0" "$word"; done >>{called}; echo >>{called}\n'
            f'for last in "$@"; do :; done; [ -f "$last" ] && cp "$last" {called}.script\n'
            f"printf %s {shlex.quote(output)}; printf %s {shlex.quote(errors)} >&2; exit {code}\n"
        )
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def called(self, name: str) -> list[list[str]]:
        file = self.folder / f"{name}.called"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.split("\0")[:-1] for line in lines]


# Answers


def test_jobs_are_read_with_long_lines_and_variables_of_users() -> None:
    found = {job_id: state_of(values) for job_id, values in read_blocks(JOBS).items()}
    waits = found["17.head"]
    assert (waits.phase, waits.cause, waits.name) == (Phase.WAITING, None, "rw-1")
    assert waits.reason.endswith("resource: ncpus (R: 64 A: 12 T: 48)")
    assert (found["18.head"].phase, found["18.head"].nodes) == (Phase.RUNNING, "n1,n2")
    assert found["19[0].head"].cause is Cause.COMPLETED


@pytest.mark.parametrize(
    ("letter", "code", "substate", "cause"),
    [
        ("F", "0", "92", Cause.COMPLETED),
        ("F", "3", "92", Cause.FAILED),
        ("F", "271", "91", Cause.CANCELLED),
        ("F", "", "91", Cause.CANCELLED),
        ("F", "-29", "92", Cause.TIME_LIMIT),
        ("F", "-27", "92", Cause.OUT_OF_MEMORY),
        ("F", "-4", "92", Cause.NODE_LOST),
        ("X", "5", "92", Cause.FAILED),
        ("E", "0", "51", None),
    ],
)
def test_the_exit_status_says_why_a_job_is_over(
    letter: str, code: str, substate: str, cause: Cause | None
) -> None:
    values = {"job_state": letter, "substate": substate, **({"Exit_status": code} if code else {})}
    state = state_of(values)
    assert (state.cause, state.is_over) == (cause, cause is not None)
    assert state.exit_code == code


def test_the_numbers_of_torque_are_others() -> None:
    values = {"job_state": "C", "exit_status": "-11"}
    assert state_of(values, "torque").cause is Cause.TIME_LIMIT
    assert state_of(values).cause is Cause.FAILED


def test_nodes_that_are_down_are_left_out() -> None:
    found = [read_node(name, values) for name, values in read_blocks(NODES).items()]
    assert found == [BatchNode(name="n1", cores=8, memory=16000, gpus=2), None]


# Commands


def test_members_of_an_array_are_asked_for_at_once(server: Server) -> None:
    pbs = Pbs(PbsConfig())
    members = [pbs.member("19[].head", index) for index in range(3)]
    found = pbs.states([*members, "18.head", "4.head"])
    assert {job_id: state.phase for job_id, state in found.items()} == {
        "19[0].head": Phase.OVER,
        "19[1].head": Phase.RUNNING,
        "18.head": Phase.RUNNING,
    }
    assert server.called("qstat") == [["-x", "-t", "-f", "19[].head", "18.head", "4.head"]]


def test_a_job_that_is_not_known_any_more_does_not_hide_the_others(server: Server) -> None:
    errors = "qstat: Unknown Job Id 4.head\n"
    server.plays("qstat", JOBS, version=OPENPBS, code=153, errors=errors)
    assert list(Pbs(PbsConfig()).states(["4.head", "18.head"])) == ["18.head"]
    server.plays("qstat", version=OPENPBS, code=1, errors="cannot connect to server head\n")
    with pytest.raises(Unreachable, match="cannot connect to server"):
        Pbs(PbsConfig()).states(["18.head"])


def test_a_job_is_found_by_its_name(server: Server) -> None:
    pbs = Pbs(PbsConfig())
    assert pbs.find("rw-1") == "17"
    assert pbs.find("rw-3") == "19[]"
    assert pbs.find("rw-4") == ""
    assert server.called("qstat")[0] == ["-x", "-t", "-f"]


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (OPENPBS, "select=2:ncpus=4:mpiprocs=4:mem=500mb:ngpus=1,place=scatter:excl"),
        ("", "select=2:ncpus=4:mpiprocs=4:mem=500mb:ngpus=1,place=scatter:excl"),
        (TORQUE, "nodes=2:ppn=4:gpus=1,mem=1000mb"),
    ],
)
def test_options_are_in_the_words_of_each_pbs(server: Server, version: str, said: str) -> None:
    server.plays("qstat", version=version)
    settings = PbsConfig(queue="long", account="a", options=("-m", "n"))
    needs = Needs(nodes=2, cores=4, memory=500, gpus=1, minutes=61, is_alone=True)
    options = ["-l", f"{said},walltime=1:01:00", "-q", "long", "-A", "a", "-m", "n"]
    assert Pbs(settings).options(needs) == options


def test_a_script_is_submitted_with_its_output_and_the_index_in_an_array(
    server: Server, tmp_path: Path
) -> None:
    server.plays("qsub", "20[].head\n")
    pbs = Pbs(PbsConfig())
    job = BatchJob(
        name="it's odd",
        script="#!/bin/bash\necho out; echo $PATH\n",
        options=pbs.options(Needs()),
        output=tmp_path / "it's {index}.log",
        count=3,
        environment={"PATH": f"{server.folder}:/usr/bin:/bin", "BASH_FUNC_x%%": "() {\n}"},
    )
    assert pbs.submit(job) == "20[].head"
    [words] = server.called("qsub")
    expected = ["-N", "it_s_odd", "-j", "oe", "-r", "n", "-V", "-o", "/dev/null"]
    assert words[:-1] == [*expected, "-S", "/bin/bash", "-J", "0-2", *job.options]
    assert not Path(words[-1]).exists()
    script = (server.folder / "qsub.called.script").read_text()
    told = {"PBS_ARRAY_INDEX": "2", "PATH": "/bin", "RANKWISE_PATH": "/as/before:/usr/bin"}
    subprocess.run(["bash", "-c", script], env=told, check=True)
    assert (tmp_path / "it's 2.log").read_text() == "out\n/as/before:/usr/bin\n"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("qsub: would exceed queue workq's per-user limit", QueueFull),
        ("qsub: Batch protocol error", Unreachable),
        ("qsub: Unknown queue", ComputeFailure),
    ],
)
def test_a_refusal_is_told_from_a_full_queue(
    server: Server, tmp_path: Path, said: str, error: type[ComputeFailure]
) -> None:
    server.plays("qsub", code=1, errors=said)
    job = BatchJob(
        name="a",
        script="#!/bin/bash\n",
        options=(),
        output=tmp_path / "log",
        environment=os.environ,
    )
    with pytest.raises(ComputeFailure, match=said) as raised:
        Pbs(PbsConfig()).submit(job)
    assert type(raised.value) is error


def test_a_job_that_runs_gets_a_signal_and_one_that_waits_is_removed(server: Server) -> None:
    pbs = Pbs(PbsConfig())
    server.plays("qdel")
    server.plays("qsig")
    pbs.cancel("18.head", Ending.GENTLY)
    assert (server.called("qsig"), server.called("qdel")) == ([["-s", "SIGTERM", "18.head"]], [])
    server.plays("qsig", code=1, errors="qsig: Request invalid for state of job 17.head")
    pbs.cancel("17.head", Ending.GENTLY)
    pbs.cancel("18.head", Ending.IF_WAITING)
    pbs.cancel("17.head", Ending.IF_WAITING)
    assert server.called("qdel") == [["17.head"], ["17.head"]]
    server.plays("qdel", code=1, errors="qdel: Job has finished 18.head")
    pbs.cancel("18.head", Ending.NOW)
    server.plays("qdel", code=1, errors="qdel: Unauthorized Request 18.head")
    with pytest.raises(ComputeFailure, match="Unauthorized"):
        pbs.cancel("18.head", Ending.NOW)


def test_the_secret_of_a_run_is_in_a_file_as_long_as_its_job_waits(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rankwise.toml").write_text('[compute.it]\nbackend = "pbs"\n')
    wishes = SlurmOptions(tasks=2, on="it")
    server.plays("qsub", code=1, errors="qsub: Unknown queue")
    with pytest.raises(ComputeFailure, match="Unknown queue"):
        submit_on(wishes, ["true"], "tests", "secret")
    assert list(tmp_path.glob(".rankwise-*")) == []
    server.plays("qsub", "21.head")
    server.plays("qdel")
    made = submit_on(wishes, ["true"], "tests", "secret")
    [file] = tmp_path.glob(".rankwise-*")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("secret", 0o600)
    made.cancel()
    assert not file.exists()
    assert server.called("qdel") == [["21.head"]]


@pytest.mark.parametrize(
    ("backend", "settings", "said"),
    [
        (
            "pbs",
            PbsConfig(),
            "pbsnodes is not on PATH: this machine has no PBS, or it needs a module",
        ),
        (
            "gridengine",
            GridEngineConfig(),
            "qconf is not on PATH: this machine has no Grid Engine, or it needs a module",
        ),
    ],
)
def test_doctor_names_the_command_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, settings: BatchConfig, said: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    choice = ComputeConfig(name="it", backend=backend, batch=settings)
    [found] = check_batch(choice, tmp_path)
    assert (found.what, found.is_well, found.is_needed) == (said, False, True)


@pytest.mark.parametrize(("setting", "remedies"), [("True", 0), ("", 1)])
def test_doctor_says_whether_ends_of_jobs_are_kept(
    server: Server, setting: str, remedies: int
) -> None:
    server.plays("qmgr", f"Server head\n    job_history_enable = {setting}\n" if setting else "")
    server.plays("pbsnodes", NODES)
    found = list(Pbs(PbsConfig()).check())
    assert found[0] == ("commands: openpbs", "")
    assert len([remedy for _, remedy in found if remedy]) == remedies


# Slurm in the words of PBS

RANKS = """\
type: PytorchJob
name: ranks
worker:
  spec:
    command: echo rank $RANK of $WORLD_SIZE on $RANKWISE_NODE; if [ $RANK = 3 ]; then exit 7; fi; sleep 60
compute: {target: hpc, instance_count: 2}
process_count_per_instance: 2
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    from pbs_words import obstacle, pbs_words

    need(obstacle())
    with pbs_words() as made, opened(tmp_path_factory.mktemp("shop")) as shop:
        shop.variables |= made.variables
        shop.write("rankwise.toml", f'[compute.hpc]\nbackend = "pbs"\n{made.table}\n')
        yield shop


def test_a_job_runs_on_two_nodes_and_doctor_says_so(shop: Shop) -> None:
    shop.write("ranks.yaml", RANKS)
    doctor = shop.start("doctor", "hpc")
    said: Said = shop.rankwise("run", "ranks.yaml")
    assert said.exit_code == 7, said
    assert "worker-3 exited with code 7" in said.output, said
    places = shop.folder.glob(".rankwise/runs/ranks-1/*/1/placement.json")
    [nodes] = [json.loads(place.read_text())["nodes"] for place in places]
    first, second = (node["name"] for node in nodes)
    for rank, node in enumerate((first, first, second, second)):
        assert f"worker {rank} | rank {rank} of 4 on {node}" in said.output, said
    output, errors = doctor.communicate(timeout=120)
    assert doctor.returncode == 0, output + errors
    assert "PBS: 4 nodes, 16 cores, 0 GPUs" in output
    assert "a job ran, with Python" in output
