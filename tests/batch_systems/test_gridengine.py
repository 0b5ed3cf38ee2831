"""Grid Engine: what its commands print, and jobs and tests on a real one."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gridengine import GPUS, SLOTS, Cell

from rankwise.backends.batch import gridengine
from rankwise.backends.batch.gridengine import (
    GridEngine,
    phase_of,
    read_account,
    read_nodes,
    read_queue,
)
from rankwise.backends.batch.system import BatchNode, Cause, Ending, Needs, Phase
from rankwise.documents.site_models import GridEngineConfig
from rankwise.errors import ComputeFailure
from tests.acceptance.conftest import require
from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.jobs import Said, Shop, opened
from tests.acceptance.leftovers import wait_until_gone
from tests.backends.places import Place, Watching, output_of, wait_until

# Answers

QUEUE = """\
<?xml version='1.0'?>
<job_info>
  <queue_info>
    <job_list state="running">
      <JB_job_number>7</JB_job_number><JB_name>rw-1</JB_name><state>r</state>
      <queue_name>all.q@n1</queue_name><slots>2</slots>
    </job_list>
    <job_list state="running">
      <JB_job_number>8</JB_job_number><JB_name>rw-2</JB_name><state>dr</state>
      <queue_name>all.q@n2</queue_name><slots>1</slots><tasks>3</tasks>
    </job_list>
  </queue_info>
  <job_info>
    <job_list state="pending">
      <JB_job_number>9</JB_job_number><JB_name>rw-3</JB_name><state>Eqw</state>
      <queue_name></queue_name><slots>1</slots>
    </job_list>
  </job_info>
</job_info>
"""
ACCOUNT = """\
==============================================================
qname        all.q
hostname     n1
jobname      rw-1
jobnumber    7
taskid       undefined
start_time   Thu Nov 19 22:46:00 2026
end_time     Thu Nov 19 22:46:03 2026
failed       {failed}
exit_status  {code}
ru_wallclock 3s
category     -l {category} -pe smp 2
"""
MEMORY_OR_TIME = "37  : qmaster enforced h_rt, h_cpu, or h_vmem limit"


def test_jobs_and_members_of_arrays_are_read_from_the_queue() -> None:
    found = read_queue(QUEUE)
    assert {job_id: state.phase for job_id, state in found.items()} == {
        "7": Phase.RUNNING,
        "8.3": Phase.ENDING,
        "9": Phase.WAITING,
    }
    assert (found["7"].nodes, found["7"].name) == ("n1", "rw-1")
    assert "qmod -cj" in found["9"].reason
    with pytest.raises(ComputeFailure, match="cannot be read"):
        read_queue("error: commlib")


@pytest.mark.parametrize(
    ("letters", "phase"),
    [
        ("qw", Phase.WAITING),
        ("hqw", Phase.WAITING),
        ("t", Phase.STARTING),
        ("Rr", Phase.RUNNING),
        ("S", Phase.RUNNING),
        ("dt", Phase.ENDING),
        ("EhRqw", Phase.WAITING),
    ],
)
def test_letters_of_a_state_are_understood(letters: str, phase: Phase) -> None:
    assert phase_of(letters) is phase


@pytest.mark.parametrize(
    ("failed", "code", "category", "cause"),
    [
        ("0", "0", "h_rt=60", Cause.COMPLETED),
        ("0", "7", "h_rt=60", Cause.FAILED),
        ("0", "130                  (Interrupt)", "h_rt=60", Cause.CANCELLED),
        (MEMORY_OR_TIME, "130   (Interrupt)", "h_rt=2", Cause.TIME_LIMIT),
        (MEMORY_OR_TIME, "137", "h_rt=2,h_vmem=1G", Cause.TIME_LIMIT),
        (MEMORY_OR_TIME, "137", "h_rt=600,h_vmem=1G", Cause.OUT_OF_MEMORY),
        (MEMORY_OR_TIME, "137", "h_vmem=1G", Cause.OUT_OF_MEMORY),
        ("100 : assumedly after job", "137  (Killed)", "h_rt=60", Cause.FAILED),
        ("26  : opening input/output file", "0", "h_rt=60", Cause.FAILED),
    ],
)
def test_the_accounting_says_why_a_job_is_over(
    failed: str, code: str, category: str, cause: Cause
) -> None:
    earlier = ACCOUNT.format(failed="25 : rescheduling", code="0", category="h_rt=1")
    found = read_account(earlier + ACCOUNT.format(failed=failed, code=code, category=category))
    assert found is not None
    assert (found.phase, found.cause) == (Phase.OVER, cause)
    assert found.exit_code == code.split(maxsplit=1)[0]
    assert found.reason == failed.partition(":")[2].strip()


def test_times_in_another_form_leave_a_limit_that_of_time() -> None:
    text = ACCOUNT.format(failed=MEMORY_OR_TIME, code="137", category="h_rt=600,h_vmem=1G")
    found = read_account(text.replace("Thu Nov 19 22:46:03 2026", "11/19/2026 22:46:03.123"))
    assert found is not None
    assert found.cause is Cause.TIME_LIMIT


def test_hosts_without_slots_of_the_queue_are_no_nodes() -> None:
    def host(name: str, queue: str, slots: int, state: str = "") -> str:
        values = {"slots": slots, "state_string": state}
        said = "".join(
            f"<queuevalue name='{key}'>{one}</queuevalue>" for key, one in values.items()
        )
        memory = "<hostvalue name='mem_total'>1.5G</hostvalue>"
        gpus = "<resourcevalue name='gpu'>2.000000</resourcevalue>"
        return f"<host name='{name}'>{memory}{gpus}<queue name='{queue}'>{said}</queue></host>"

    hosts = (
        "<host name='global'><hostvalue name='mem_total'>-</hostvalue></host>",
        host("n1", "all.q", 4),
        host("n2", "all.q", 4, "au"),
        host("n3", "long.q", 8),
    )
    text = f"<qhost>{''.join(hosts)}</qhost>"
    first = BatchNode(name="n1", cores=4, memory=1536, gpus=2)
    assert read_nodes(text, "all.q", "gpu") == [first]
    assert [node.name for node in read_nodes(text)] == ["n1", "n3"]
    assert [node.gpus for node in read_nodes(text)] == [0, 0]


def test_options_ask_for_slots_time_memory_of_a_slot_and_gpus() -> None:
    settings = GridEngineConfig(
        queue="long.q", pe_nodes="mpi-{cores}", memory="h_vmem", options=("-m", "n")
    )
    system = GridEngine(settings)
    needs = Needs(cores=4, memory=1001, gpus=1, minutes=90)
    said = ["-pe", "smp", "4", "-l", "h_rt=1:30:00,gpu=1,h_vmem=251M"]
    assert system.options(needs) == [*said, "-q", "long.q", "-m", "n"]
    assert system.options(Needs(nodes=3, cores=2))[:3] == ["-pe", "mpi-2", "6"]
    with pytest.raises(ComputeFailure, match="needs pe_nodes"):
        GridEngine(GridEngineConfig()).options(Needs(nodes=2))


# The real one


@pytest.fixture(scope="module")
def system(cell: Cell) -> Iterator[GridEngine]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cell.variables.items():
            patch.setenv(name, value)
        yield GridEngine(GridEngineConfig())


def test_its_nodes_are_hosts_with_their_slots(system: GridEngine, cell: Cell) -> None:
    [node] = system.nodes()
    assert (node.name, node.cores, node.gpus) == (cell.host, SLOTS, GPUS)
    assert node.memory > 0


def test_a_job_that_was_deleted_while_it_waited_is_cancelled(
    system: GridEngine, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waiting() -> str:
        job_id = cell.run("qsub", "-terse", "-h", "-b", "y", "true").strip()
        assert system.states([job_id])[job_id].is_waiting
        return job_id

    ours, theirs = waiting(), waiting()
    system.cancel(ours, Ending.IF_WAITING)
    system.cancel(ours, Ending.GENTLY)
    assert system.states([ours]) == {}
    own = system.past(ours)
    assert own is not None
    assert own.cause is Cause.CANCELLED
    cell.run("qdel", theirs)
    assert system.states([theirs]) == {}
    # Another user may have deleted it; or it has run, and the accounting does not know yet.
    open_end = system.past(theirs)
    assert open_end is not None
    assert open_end.phase is Phase.ENDING
    monkeypatch.setattr(gridengine, "_ACCOUNT_SECONDS", 0.0)
    end = system.past(theirs)
    assert end is not None
    assert end.cause is Cause.CANCELLED
    assert system.past("4711") is None


def test_a_qmaster_that_is_away_is_no_answer(system: GridEngine) -> None:
    port = os.environ["SGE_QMASTER_PORT"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGE_QMASTER_PORT", "9")
        with pytest.raises(ComputeFailure) as raised:
            system.find("rw-1")
    assert system.is_away(str(raised.value)), raised.value
    assert os.environ["SGE_QMASTER_PORT"] == port


def test_equal_attempts_are_submitted_as_one_array(system: GridEngine, tmp_path: Path) -> None:
    place = Place(folder=tmp_path, table='backend = "gridengine"')
    place.prepare()
    compute = place.open()
    watching = Watching(compute, place.updates)
    attempts = [place.attempt(compute) for _ in range(3)]
    for number, attempt in enumerate(attempts):
        compute.submit(place.job(attempt, f"echo {number}; exit {number}"))
    ends = watching.until_over(*attempts)
    compute.close()
    assert [end.exit_code for end in ends] == [0, 1, 2]
    assert [output_of(attempt) for attempt in attempts] == ["0\n", "1\n", "2\n"]
    numbers = {news.job_id for news in watching.news if news.job_id}
    [job] = {number.partition(".")[0] for number in numbers}
    assert numbers == {system.member(job, index) for index in range(3)}


IN_A_JOB = """
import os, subprocess, sys
from rankwise.backends.batch.gridengine import GridEngine
from rankwise.node.batch import BatchAllocation
allocation = BatchAllocation(GridEngine.dialect)
print(*allocation.names, *allocation.cores(), flush=True)
command = ["sh", "-c", 'printf "%s|" "$@"; echo "$ODD"; cat; exit 7', "sh", "a  b", "it's", "$ODD"]
done = subprocess.run([*allocation.reach(allocation.names[0]), *command], input=b"said\\n", check=False)
print("exit", done.returncode)
"""


def test_a_command_on_another_host_of_a_job_arrives_as_it_is(cell: Cell, tmp_path: Path) -> None:
    """There is one host only, so the job reaches itself: by qrsh, and a shell that reads words."""
    program, output = tmp_path / "program.py", tmp_path / "output"
    program.write_text(IN_A_JOB)
    line = f"ODD={shlex.quote(ODD['ODD'])} PYTHONPATH={shlex.quote(os.pathsep.join(sys.path))}"
    script = f"{line} {sys.executable} {program} >{output} 2>&1"
    options = [
        "-sync",
        "y",
        "-V",
        "-S",
        "/bin/bash",
        "-o",
        "/dev/null",
        "-j",
        "y",
        "-pe",
        "smp",
        "2",
    ]
    subprocess.run(
        ["qsub", *options],
        input=script,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, **cell.variables},
        stdout=subprocess.DEVNULL,
    )
    first, *rest = output.read_text().splitlines()
    assert first == f"{cell.host} 2"
    assert rest == [f"a  b|it's|$ODD|{ODD['ODD']}", "said", "exit 7"]


TABLES = {
    "cluster": "",
    "short": 'time = "0:00:02"',
    "unknown": 'pe = "nosuch"',
    "pilot": 'mode = "pilot"\npilot_idle = 0',
}
RANKS = """\
type: MpiJob
name: ranks
launcher:
  spec:
    command: >-
      mpirun -np 3 python -c "from mpi4py import MPI; c = MPI.COMM_WORLD;
      print('rank', c.rank, 'of', c.allreduce(1), flush=True); assert c.rank != 2"
process_count_per_instance: 3
"""
LONG = "type: command\nname: {name}\ncommand: echo begun; exec sleep {seconds}\n"
WHERE = """\
type: command
name: where
command: |
  command -v python; echo "<$ODD>"; env | grep -E '^(PE_HOSTFILE|NSLOTS|SGE_JOB)' || echo none
"""
# What a login shell, or a system that lists variables with commas, may get wrong.
ODD = {"ODD": "a, b; 'c'", "BASH_FUNC_odd%%": "() {  echo odd\n}"}


@pytest.fixture(scope="module")
def shop(cell: Cell, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Where documents run; its name is not only of letters."""
    with opened(tmp_path_factory.mktemp("shop") / "it's a folder") as made:
        made.variables |= cell.variables
        tables = [f'[compute.{n}]\nbackend = "gridengine"\n{more}\n' for n, more in TABLES.items()]
        made.write("rankwise.toml", "\n".join(tables))
        made.write("ranks.yaml", RANKS)
        made.write("where.yaml", WHERE)
        for name, seconds in {"limited": 100, "cancelled": 100, "deleted": 100, "left": 5}.items():
            made.write(f"{name}.yaml", LONG.format(name=name, seconds=seconds))
        yield made
    wait_until("no job is left", lambda: not jobs_of(cell))


def jobs_of(cell: Cell) -> list[str]:
    return [line.split()[0] for line in cell.run("qstat").splitlines()[2:]]


def begun(shop: Shop, run: str) -> str:
    """Wait until the task of a run has begun, and return the number of its job."""
    runs = shop.folder / ".rankwise" / "runs"
    wait_until(
        f"{run} has begun", lambda: any(runs.glob(f"{run}-1/*/1/processes/*/start.json")), 90
    )
    [log] = runs.glob(f"{run}-1/*/1/placement.json")
    return str(json.loads(log.read_text())["environment"]["RANKWISE_GRIDENGINE_JOB"])


@pytest.fixture(scope="module")
def runs(shop: Shop, cell: Cell) -> dict[str, Said]:
    """Return what became of runs that were there at the same time."""
    where = {"ranks": "cluster", "limited": "short"}
    where |= dict.fromkeys(("cancelled", "deleted", "left"), "cluster")
    started = {
        name: shop.start("run", f"{name}.yaml", "--on", place) for name, place in where.items()
    }
    variables = {**ODD, "PATH": f"/odd{os.pathsep}{os.environ['PATH']}"}
    started |= {
        "where": shop.start("run", "where.yaml", "--on", "pilot", variables=variables),
        "doctor": shop.start("doctor", "cluster"),
        "doctor of unknown": shop.start("doctor", "unknown"),
    }
    left = begun(shop, "left")
    started["left"].kill()
    # It announces that, too, by a signal that ends what does not heed it.
    cell.run("qmod", "-sj", left)
    cell.run("qmod", "-usj", left)
    cell.run("qdel", begun(shop, "deleted"))
    begun(shop, "cancelled")
    cancel = shop.start("cancel", "cancelled-1")
    refused = shop.start("run", "ranks.yaml", "--on", "unknown")
    resume = shop.start("resume", "left-1")
    started |= {"cancel": cancel, "refused": refused, "resume": resume}
    found = {}
    for name, process in started.items():
        output, errors = process.communicate(timeout=120)
        code = process.returncode
        found[name] = Said(command=name, exit_code=code, output=output, errors=errors)
    return found


def test_a_rank_that_fails_is_named(runs: dict[str, Said]) -> None:
    said = runs["ranks"]
    assert said.exit_code == 1, said
    assert "rank 1     | rank 1 of 3" in said.output, said
    assert "ranks failed: rank 2 exited with code 1" in said.output, said


def test_the_time_limit_of_a_job_is_reported(runs: dict[str, Said]) -> None:
    said = runs["limited"]
    assert said.exit_code == 124, said
    assert "reached its time limit in Grid Engine" in said.output, said


def test_a_job_that_is_deleted_is_cancelled_by_others(runs: dict[str, Said]) -> None:
    said = runs["deleted"]
    assert said.exit_code == 130, said
    assert "was cancelled in Grid Engine, not by rankwise" in said.output, said


def test_a_run_that_is_cancelled_ends(runs: dict[str, Said]) -> None:
    assert runs["cancelled"].exit_code == 130, runs["cancelled"]
    assert "not by rankwise" not in runs["cancelled"].output
    assert runs["cancel"].output == "cancelled-1 cancelled\n", runs["cancel"]


def test_a_job_goes_on_without_its_client_and_resume_takes_it_over(runs: dict[str, Said]) -> None:
    assert runs["left"].exit_code == -signal.SIGKILL
    said = runs["resume"]
    assert said.exit_code == 0, said
    assert "left-1 passed" in said.output, said


def test_a_job_that_grid_engine_refuses_is_not_run(runs: dict[str, Said]) -> None:
    said = runs["refused"]
    assert said.exit_code == 1, said
    assert (
        'not run: Unable to run job: job rejected: the requested parallel environment "nosuch"'
        in (said.output)
    ), said


def test_the_environment_of_a_job_is_that_of_the_client(runs: dict[str, Said]) -> None:
    said = runs["where"]
    assert said.exit_code == 0, said
    lines = [line.partition(" | ")[2] for line in said.output.splitlines() if " | " in line]
    assert lines == [shutil.which("python"), f"<{ODD['ODD']}>", "none"], said


def test_doctor_says_what_is_missing(runs: dict[str, Said]) -> None:
    said = runs["doctor"]
    assert said.exit_code == 0, said
    assert "qmaster answers: SGE 8" in said.output
    assert f"Grid Engine: 1 nodes, {SLOTS} cores, {GPUS} GPUs" in said.output
    assert "a job ran, with Python" in said.output
    said = runs["doctor of unknown"]
    assert said.exit_code == 1, said
    assert "there is no parallel environment nosuch" in said.output, said
    assert "allocation_rule is $pe_slots: smp" in " ".join(said.output.split()), said


# Tests

SUITE = """
import os
import resource
import pytest, rankwise

@pytest.mark.parametrize("number", range(3))
@rankwise.mark.parallel(2)
def test_two(comm, number):
    assert comm.allreduce(1) == 2
    # All of it is in one job.
    with open(f"job-{os.environ['JOB_ID']}", "a"):
        pass

@rankwise.mark.parallel(2)
def test_failing(comm):
    print("said by", comm.rank)
    assert comm.rank == 0

@rankwise.mark.parallel(2)
def test_crash(comm):
    # Jobs of Grid Engine leave core files.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), 11)
"""


def test_tests_run_in_one_job(tmp_path: Path, cell: Cell) -> None:
    schedulers = ("batch", "batch-pool")
    projects = [Project(tmp_path / scheduler, require("mpich")) for scheduler in schedulers]
    for project in projects:
        project.write({"test_suite.py": SUITE})
        project.write({"rankwise.toml": '[compute.sge]\nbackend = "gridengine"\n'})

    def run(project: Project, scheduler: str) -> Outcome:
        options = (f"--scheduler={scheduler}", "--on=sge", "--n-workers=4")
        return run_pytest(project, *options, ranks=None, environment=cell.variables, limit=100.0)

    with ThreadPoolExecutor() as pool:
        outcomes = list(pool.map(run, projects, schedulers))
    for project, outcome in zip(projects, outcomes, strict=True):
        assert outcome.counts() == {"passed": 3, "failed": 2}, outcome
        assert outcome.exit_code == 1
        assert "said by 1" in outcome.output
        assert "SIGSEGV" in outcome.output
        [job] = project.folder.glob("job-*")
        assert f"job {job.name.removeprefix('job-')} (submitted)" in outcome.output
        wait_until_gone(project)
        assert list(project.folder.glob(".rankwise-*")) == []
    wait_until("no job is left", lambda: not jobs_of(cell))
