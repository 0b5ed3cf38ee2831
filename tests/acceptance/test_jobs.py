"""Jobs on this machine, from the command line to the verdict."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import LAUNCH_VARIABLES

from rankwise.documents.load import TYPES
from tests.acceptance.conftest import require
from tests.acceptance.jobs import LIMIT_SECONDS, Shop, opened, wait_for
from tests.lengths import part
from tests.node.test_runner import without_privileges


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with opened(tmp_path / "shop") as one:
        yield one


def pytorch(command: str, *, processes: int = 4, more: str = "") -> str:
    return f"""\
type: PytorchJob
name: job
worker:
  spec:
    command: >-
      {command}
process_count_per_instance: {processes}
{more}
"""


def run_job(shop: Shop, text: str, *options: str) -> tuple[int, str]:
    (shop.folder / "job.yaml").write_text(text)
    said = shop.rankwise("run", "job.yaml", *options)
    return said.exit_code, said.output + said.errors


def test_the_exit_code_is_the_culprits_and_explain_names_it(shop: Shop) -> None:
    command = "echo here is $RANK; if [ $RANK = 2 ]; then exit 7; fi; exec sleep 100"
    code, output = run_job(shop, pytorch(command))
    assert code == 7, output
    explained = shop.rankwise("explain")
    assert "worker-2 exited with code 7" in explained.output, explained
    assert "| here is 2" in explained.output, explained
    shop.wait_until_empty()


def test_a_rank_that_is_killed_is_the_culprit(shop: Shop) -> None:
    command = "if [ $RANK = 1 ]; then kill -9 $$; fi; exec sleep 100"
    code, output = run_job(shop, pytorch(command))
    assert code == 128 + 9, output
    assert "worker-1 was ended by signal 9 (SIGKILL)" in output
    shop.wait_until_empty()


def test_a_worker_that_ignores_sigterm_is_ended_all_the_same(shop: Shop) -> None:
    command = "trap '' TERM; if [ $RANK = 0 ]; then exit 3; fi; while true; do sleep 0.1; done"
    code, output = run_job(shop, pytorch(command, processes=2))
    assert code == 3, output
    shop.wait_until_empty()


def test_what_a_rank_leaves_behind_is_ended_with_the_job(shop: Shop) -> None:
    command = "setsid sleep 100 & setsid nohup sleep 200 & exit 0"
    code, output = run_job(shop, pytorch(command, processes=2))
    assert code == 0, output
    shop.wait_until_empty(5.0)


def test_a_job_over_its_time_limit_is_ended(shop: Shop) -> None:
    code, output = run_job(shop, pytorch("sleep 100", more="timeout: 1s"))
    assert code == 124, output
    assert "timed out: the time limit of 1 s was reached" in output
    shop.wait_until_empty()


def test_a_job_is_started_again_as_often_as_it_may_be(shop: Shop) -> None:
    command = 'echo $RANK >> tries; if [ "$(grep -c 0 tries)" -lt 3 ]; then exit 75; fi'
    text = pytorch(command, processes=1, more="restart: {max: 2, on_exit_codes: [75]}")
    code, output = run_job(shop, text)
    assert code == 0, output
    assert (shop.folder / "tries").read_text() == "0\n" * 3


def test_a_job_is_not_started_again_after_another_exit_code(shop: Shop) -> None:
    text = pytorch(
        "echo >> tries; exit 1", processes=1, more="restart: {max: 2, on_exit_codes: [75]}"
    )
    code, output = run_job(shop, text)
    assert code == 1, output
    assert (shop.folder / "tries").read_text() == "\n"


def test_a_job_that_needs_gpus_where_there_are_none_is_not_run_and_not_green(shop: Shop) -> None:
    if Path("/dev/nvidia0").exists():
        shop.variables["CUDA_VISIBLE_DEVICES"] = ""
    text = pytorch("touch it-ran").replace(
        "    command", "    resource_limits: {gpu: 4}\n    command"
    )
    code, output = run_job(shop, text)
    assert code == 1, output
    assert "not run: needs 4 GPUs, found 0" in output
    assert not (shop.folder / "it-ran").exists()


def test_tasks_never_take_more_than_the_machine_has(shop: Shop) -> None:
    shop.write("rankwise.toml", "[compute.small]\nbackend = 'local'\ncores = 2\n")
    documents = [
        shop.write(
            f"t{number}.yaml",
            """\
            type: command
            compute: small
            command: echo + >> ledger; sleep 0.2; echo - >> ledger
            """,
        )
        for number in range(8)
    ]
    said = shop.rankwise("run", *documents, "--quiet")
    assert said.exit_code == 0, said
    level = highest = 0
    for line in (shop.folder / "ledger").read_text().split():
        level += 1 if line == "+" else -1
        highest = max(highest, level)
    assert highest == 2


def test_a_secret_reaches_the_program_and_nothing_else(shop: Shop) -> None:
    shop.variables["TOKEN"] = "Aj7-qqz-tell-nobody"
    command = 'test "$TOKEN" = Aj7-qqz-tell-nobody && echo "it is $TOKEN" && ps -ef > listing'
    code, output = run_job(shop, pytorch(command, processes=2, more="secrets: [TOKEN]"))
    assert code == 0, output
    # The document has it here because the test must compare it with something.
    for place in (shop.folder / ".rankwise").rglob("*"):
        if place.is_file() and place.suffix == ".log":
            assert b"tell-nobody" not in place.read_bytes(), place
    assert "it is ***" in output
    planned = shop.rankwise("plan", "job.yaml")
    assert "TOKEN" in planned.output, planned


def test_no_value_of_a_secret_is_kept(shop: Shop) -> None:
    shop.variables["TOKEN"] = "Aj7-qqz-tell-nobody"
    command = "ps -eo args > listing; sleep 0.1; env > /dev/null; echo $TOKEN"
    code, output = run_job(shop, pytorch(command, processes=2, more="secrets: [TOKEN]"))
    assert code == 0, output
    for verb in ("status", "explain", "logs", "list"):
        said = shop.rankwise(verb)
        assert "tell-nobody" not in said.output + said.errors
    held = [
        path
        for path in shop.folder.rglob("*")
        if path.is_file() and b"tell-nobody" in path.read_bytes()
    ]
    assert held == []


def test_no_report_has_a_secret_that_tests_and_checks_have_quoted(shop: Shop) -> None:
    shop.variables["TOKEN"] = 'Aj7-"qqz-tell-nobody'
    shop.write(
        "test_it.py",
        """
        import os, urllib.parse

        def test_one():
            assert os.environ["TOKEN"] == "x", urllib.parse.quote(os.environ["TOKEN"])
        """,
    )
    shop.write(
        "job.yaml",
        """
        type: Suite
        name: job
        secrets: [TOKEN]
        tests:
          - {name: single, pytest: test_it.py}
          - name: quoted
            run: echo "it is $TOKEN" > out.txt
            checks: [{absent: it is, on: out.txt}]
        """,
    )
    said = shop.rankwise("run", "job.yaml", "--junit", "junit.xml", "--markdown", "said.md")
    assert said.exit_code == 1, said
    told = [said, shop.rankwise("explain"), shop.rankwise("status"), shop.rankwise("logs")]
    told.append(shop.rankwise("report", "--html", "r.html", "--csv", "-", "--json", "r.json"))
    assert not [one for one in told if "tell-nobody" in one.output + one.errors]
    assert "found once in out.txt" in told[1].output, told[1]
    made = [shop.folder / name for name in ("junit.xml", "said.md", "r.html", "r.json")]
    made += (shop.folder / ".rankwise").glob("store.db*")
    assert [path for path in made if b"tell-nobody" in path.read_bytes()] == []
    assert all("***" in path.read_text() for path in made[:3])


def test_a_secret_without_a_value_stops_everything_before_it_begins(shop: Shop) -> None:
    code, output = run_job(shop, pytorch("touch it-ran", more="secrets: [NO_SUCH_TOKEN]"))
    assert code == 2, output
    assert "NO_SUCH_TOKEN" in output
    assert "export NO_SUCH_TOKEN=" in output
    assert not (shop.folder / "it-ran").exists()


def test_a_port_that_is_taken_is_not_given_to_a_job(shop: Shop) -> None:
    """Half of the ports are taken: the one that a job gets is free all the same."""
    taken: list[socket.socket] = []
    for port in range(20000, 32768, 2):
        try:
            line = socket.socket()
            line.bind(("127.0.0.1", port))
        except OSError:
            line.close()
            if len(taken) > 500:
                break
            continue
        taken.append(line)
        if len(taken) >= 800:
            break
    try:
        command = (
            'python -c "import os, socket; '
            "s = socket.socket(); s.bind((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))"
            '"'
        )
        for _ in range(3):
            code, output = run_job(shop, pytorch(command, processes=1))
            assert code == 0, output
    finally:
        for line in taken:
            line.close()


@pytest.mark.parametrize("instances", [1, 2])
def test_mpi_needs_no_right_to_a_host_name(shop: Shop, instances: int) -> None:
    """What root may have, and other users may not: a launcher takes each node for another host."""
    shop.write(
        "job.yaml",
        f"""
        type: command
        command: python -c "from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1), 'ranks')"
        distribution:
          type: mpi
          process_count_per_instance: 2
        resources:
          instance_count: {instances}
        """,
    )
    done = subprocess.run(
        shop.command("run", "job.yaml"),
        cwd=shop.folder,
        env=shop.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
        preexec_fn=without_privileges,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"| {2 * instances} ranks\n") == 2 * instances, done.stdout


@pytest.mark.skipif(
    os.geteuid() != 0, reason="without the right to a host name, Hydra takes no quotes in paths"
)
def test_a_folder_may_have_quotes_in_its_name(tmp_path: Path) -> None:
    with opened(tmp_path / 'it\'s a "shop"') as shop:
        shop.write(
            "job.yaml",
            """
            type: MpiJob
            launcher:
              spec:
                command: mpirun -np 2 python -c "import os; print('in', os.getcwd())"
            compute:
              instance_count: 1
            """,
        )
        said = shop.rankwise("run", "job.yaml")
        assert said.exit_code == 0, said
        assert said.output.count(f"| in {shop.folder}") == 2, said


def test_ctrl_c_ends_everything(shop: Shop) -> None:
    (shop.folder / "job.yaml").write_text(pytorch("echo $$ >> began; exec sleep 100"))
    client = shop.start("run", "job.yaml")
    wait_for(shop.folder / "began")
    client.send_signal(signal.SIGINT)
    output, errors = client.communicate(timeout=60)
    assert client.returncode == 130, output + errors
    shop.wait_until_empty()
    assert json.loads(shop.rankwise("status", "--json").output)["state"] == "cancelled"


def test_a_run_that_another_client_drives_can_be_cancelled(shop: Shop) -> None:
    (shop.folder / "job.yaml").write_text(pytorch("echo $$ >> began; exec sleep 100"))
    submitted = shop.rankwise("submit", "job.yaml")
    assert submitted.exit_code == 0, submitted
    wait_for(shop.folder / "began")
    cancelled = shop.rankwise("cancel", "job-1")
    assert cancelled.exit_code == 0, cancelled
    shop.wait_until_empty()
    assert json.loads(shop.rankwise("status", "--json").output)["state"] == "cancelled"


def test_a_job_goes_on_without_its_client_and_status_knows_how_it_ended(shop: Shop) -> None:
    command = "touch began; while [ ! -e go ]; do sleep 0.05; done; echo over"
    (shop.folder / "job.yaml").write_text(pytorch(command, processes=1))
    client = shop.start("run", "job.yaml")
    deadline = time.monotonic() + 30
    while not (shop.folder / "began").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(client.pid, signal.SIGKILL)
    client.communicate()
    assert json.loads(shop.rankwise("status", "--json").output)["state"] == "running"
    (shop.folder / "go").touch()
    shop.wait_until_empty()
    status = json.loads(shop.rankwise("status", "--json").output)
    assert (status["state"], status["exit_code"]) == ("passed", 0)
    assert "over" in shop.rankwise("logs").output


def test_a_runner_that_is_killed_is_told_of_and_leaves_nothing(shop: Shop) -> None:
    command = "echo $PPID > runner; exec sleep 100"
    (shop.folder / "job.yaml").write_text(pytorch(command, processes=1))
    client = shop.start("run", "job.yaml")
    os.kill(int(wait_for(shop.folder / "runner")), signal.SIGKILL)
    output, errors = client.communicate(timeout=60)
    assert client.returncode != 0
    assert "lost" in output + errors
    shop.wait_until_empty()


def test_logs_follow_a_job_until_its_end(shop: Shop) -> None:
    command = "for n in 1 2 3; do echo line $n of $RANK; sleep 0.2; done"
    (shop.folder / "job.yaml").write_text(pytorch(command, processes=2))
    assert shop.rankwise("submit", "job.yaml").exit_code == 0
    followed = shop.rankwise("logs", "-f", "--rank", "1")
    assert followed.exit_code == 0, followed
    assert [f"line {n} of 1" in followed.output for n in (1, 2, 3)] == [True] * 3
    assert "of 0" not in followed.output


def test_a_log_folder_that_is_removed_changes_no_verdict(shop: Shop) -> None:
    command = 'rm -rf "$RANKWISE_FOLDER/processes"; echo still here; exit 4'
    code, output = run_job(shop, pytorch(command, processes=1))
    assert code == 4, output


def test_a_full_disk_changes_no_verdict(shop: Shop) -> None:
    """The disk is a small one of its own, where this process may make such."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    store = shop.folder / "small"
    store.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", store], check=True)
    try:
        command = "head -c 3000000 /dev/zero | tr '\\0' x; echo; exit 6"
        (shop.folder / "job.yaml").write_text(pytorch(command, processes=1))
        said = shop.rankwise("run", "job.yaml", "--quiet", "--store", store, seconds=200)
        assert said.exit_code != 0, said
        assert "Traceback" not in said.errors
        shop.wait_until_empty(120)
    finally:
        shop.kill_all()
        subprocess.run(["umount", "-l", store], check=True)


def test_a_store_that_is_no_store_is_refused_in_words(shop: Shop) -> None:
    (shop.folder / ".rankwise").mkdir()
    (shop.folder / ".rankwise" / "store.db").write_bytes(b"no database" * 1000)
    code, output = run_job(shop, pytorch("true"))
    assert code == 2, output
    assert "store.db" in output
    assert "Traceback" not in output


def test_a_store_of_a_newer_rankwise_is_left_alone(shop: Shop) -> None:
    assert run_job(shop, pytorch("true", processes=1))[0] == 0
    with sqlite3.connect(shop.folder / ".rankwise" / "store.db") as database:
        database.execute("PRAGMA user_version = 9999")
    code, output = run_job(shop, pytorch("true"))
    assert code == 2, output
    assert "newer" in output


def test_a_named_pipe_in_the_place_of_a_log_does_not_block(shop: Shop) -> None:
    log = "$RANKWISE_FOLDER/processes/worker-0/output.log"
    command = f"rm {log}; mkfifo {log}; echo it goes on; exit 3"
    code, output = run_job(shop, pytorch(command, processes=1))
    assert code == 3, output
    assert "it goes on" in shop.rankwise("logs").output
    assert "exited with code 3" in shop.rankwise("explain").output
    shop.wait_until_empty()


# Clients, ranks and runners that are killed: nothing is lost, nothing runs twice

TASKS = 20
KILLS_IN_A_RUN = 5


def write_tasks(shop: Shop) -> list[Path]:
    """Write documents of tasks that note in a ledger when they begin and when they end."""
    return [
        shop.write(
            f"task-{number}.yaml",
            f"""\
            type: command
            name: task-{number}
            command: >-
              echo begin {number} >> "$LEDGER"; sleep 0.05; echo end {number} >> "$LEDGER"
            """,
        )
        for number in range(TASKS)
    ]


def run_ids(shop: Shop) -> list[str]:
    if not (shop.folder / ".rankwise" / "store.db").exists():
        return []
    said = shop.rankwise("list", "--json")
    assert said.exit_code == 0, said
    return [run["id"] for run in json.loads(said.output)]


def next_command(shop: Shop, documents: list[Path]) -> list[str | Path]:
    """Take up the run that there is, or begin."""
    if ids := run_ids(shop):
        return ["resume", *ids, "--quiet"]
    return ["run", *documents, "--quiet"]


@pytest.mark.parametrize("seed", range(part(5, 10)))
def test_a_client_may_be_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with opened(tmp_path / "shop") as shop:
        ledger = shop.folder / "ledger"
        shop.variables["LEDGER"] = str(ledger)
        documents = write_tasks(shop)
        for _ in range(KILLS_IN_A_RUN):
            client = shop.start(*next_command(shop, documents))
            time.sleep(chance.uniform(0.0, 2.0))
            os.killpg(client.pid, signal.SIGKILL)
            client.communicate()
        end = shop.rankwise(*next_command(shop, documents))
        assert end.exit_code == 0, end
        assert len(run_ids(shop)) == 1
        lines = Counter(ledger.read_text().splitlines())
        assert lines == {f"{what} {n}": 1 for what in ("begin", "end") for n in range(TASKS)}
        status = json.loads(shop.rankwise("status", "--json").output)
        assert status["counts"] == {"passed": TASKS}
        shop.wait_until_empty()


# Every document that `rankwise init` writes runs as it is, in a folder that holds nothing else


@pytest.fixture
def shop_starters(tmp_path: Path) -> Iterator[Shop]:
    """An empty folder, and an environment of rankwise with an MPI and without any other extra."""
    bare = require("openmpi5")
    with opened(tmp_path / "shop") as made:
        made.python = bare.python
        made.variables |= {**LAUNCH_VARIABLES, "PATH": f"{bare.python.parent}:/usr/bin:/bin"}
        yield made


@pytest.mark.parametrize(
    "words",
    [
        *TYPES,
        "MpiJob --nodes=1 --ranks=3",
        "TensorflowJob --nodes=1",
        "command --launcher=mpi --ranks=1",
        "Suite --ranks=2",
        "Suite --ranks=2 --launcher=pytorch",
        "Sweep --nodes=1,2 --ranks=1",
    ],
)
def test_a_starter_runs_as_it_is_written(shop_starters: Shop, words: str) -> None:
    assert shop_starters.rankwise("init", *words.split(), "first.yaml").exit_code == 0
    said = shop_starters.rankwise("run", "first.yaml")
    assert said.exit_code == 0, said
    shop_starters.wait_until_empty()


def test_the_list_of_starters_says_what_each_type_is(shop_starters: Shop) -> None:
    lines = shop_starters.rankwise("init").output.splitlines()
    described = dict(line.split(maxsplit=1) for line in lines)
    assert list(described) == list(TYPES)
    assert all(words.startswith("A") for words in described.values()), described
