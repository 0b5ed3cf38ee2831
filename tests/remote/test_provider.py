"""Jobs on instances that a provider's command line makes, and that are always given back."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.node import equipment
from rankwise.node.order import Placement
from rankwise.plan import TOOLS_PYTHON
from tests.acceptance.jobs import wait_for
from tests.backends.places import wait_until
from tests.lengths import part
from tests.remote.shops import cloud_shop, gets_packages, instances, job, kill_after, recorded, run

_SUITE = """\
type: Suite
name: job
compute: cloud
tests:
  - {name: one, run: "cat data.txt"}
  - {name: two, run: "echo two; exit 3"}
  - {name: three, run: "echo three"}
"""


def _calls(folder: Path, verb: str) -> int:
    log = folder / "cloud" / "calls.log"
    return sum(line.split()[0] == verb for line in log.read_text().splitlines())


def test_one_instance_serves_a_run_and_is_given_back(tmp_path: Path) -> None:
    with cloud_shop(tmp_path) as shop:
        shop.write("data.txt", "from here\n")
        said = run(shop, _SUITE)
        assert said.exit_code != 0, said
        assert "2 passed" in said.output, said
        assert "1 failed" in said.output, said
        assert "instances: 1 made, 1 deleted" in said.output, said
        assert _calls(tmp_path, "create") == _calls(tmp_path, "delete") == 1
        assert instances(tmp_path) == []
        assert recorded(shop) == []


def test_a_delete_that_fails_is_tried_again_said_loudly_and_kept(tmp_path: Path) -> None:
    with cloud_shop(tmp_path) as shop:
        fault = tmp_path / "cloud" / "fail-delete"
        fault.write_text("")
        said = run(shop, job("true", "cloud"))
        assert said.exit_code == 0, said
        assert "WARNING: the instance rankwise-" in said.output + said.errors, said
        assert "instances: 1 made, 0 deleted" in said.output, said
        assert _calls(tmp_path, "delete") == 3
        [number] = instances(tmp_path)
        clean = shop.rankwise("clean")
        assert clean.exit_code == 1
        assert "STILL THERE" in clean.output
        assert number in clean.output
        assert "out of order: delete" in clean.output

        fault.write_text("1")
        clean = shop.rankwise("clean")
        assert clean.exit_code == 0, clean
        assert "gone: instance rankwise-" in clean.output
        assert _calls(tmp_path, "delete") == 8, "the second of its tries succeeds"
        page = shop.rankwise("report", "job-1", "--html", "-").output
        assert "1 made, 1 deleted" in page
        assert instances(tmp_path) == recorded(shop) == []


def test_an_instance_whose_id_was_lost_is_found_by_its_name(tmp_path: Path) -> None:
    """The client is killed while `create` has made it, and has not said so yet."""
    with cloud_shop(tmp_path) as shop:
        (tmp_path / "cloud" / "slow-create").touch()
        shop.write("job.yaml", job("true", "cloud"))
        client = shop.start("run", "job.yaml")
        wait_until(
            "it is being made", lambda: bool(list((tmp_path / "cloud").glob("i-*/about.json")))
        )
        os.killpg(client.pid, signal.SIGKILL)
        client.communicate()

        clean = shop.rankwise("clean")
        assert clean.exit_code == 0, clean
        assert "its id was lost" in clean.output
        assert instances(tmp_path) == recorded(shop) == []
        # The task was never sent: it runs now, once, on another.
        (tmp_path / "cloud" / "slow-create").unlink()
        said = shop.rankwise("resume", "job-1")
        assert said.exit_code == 0, said
        assert "instances: 2 made, 2 deleted" in said.output, said
        assert instances(tmp_path) == recorded(shop) == []


@pytest.mark.parametrize(
    ("metrics", "why"),
    {
        'metrics = ["echo", "no data"]': "this is neither JSON nor CSV: 'no data'",
        'metrics = ["sh", "-c", "echo no such thing >&2; exit 3"]': "`metrics` failed: no such thing",
        'metrics = ["/no/such/program", "${{id}}"]': "/no/such/program cannot be started",
    }.items(),
)
def test_a_provider_that_has_no_metrics_is_named_and_the_task_has_passed(
    tmp_path: Path, metrics: str, why: str
) -> None:
    with cloud_shop(tmp_path, metrics) as shop:
        said = run(shop, job("true", "cloud"))
        assert said.exit_code == 0, said
        assert "nothing is known of what rankwise-" in said.output, said
        assert why in " ".join(said.output.split()), said


def test_ctrl_c_gives_the_instance_back(tmp_path: Path) -> None:
    with cloud_shop(tmp_path) as shop:
        shop.write("job.yaml", job(f"echo x > {tmp_path}/begun; sleep 300", "cloud"))
        client = shop.start("run", "job.yaml")
        wait_for(tmp_path / "begun")
        client.send_signal(signal.SIGINT)
        output, errors = client.communicate(timeout=120)
        assert client.returncode == 130, (output, errors)
        assert instances(tmp_path) == recorded(shop) == []


@pytest.mark.parametrize("seed", range(part(1, 20)))
def test_a_client_killed_at_any_moment_leaves_nothing_and_loses_nothing(
    tmp_path: Path, seed: int
) -> None:
    """Each task runs once in the end, and every instance is deleted."""
    with cloud_shop(tmp_path, "instances = 2") as shop:
        count = tmp_path / "count"
        tests = "".join(
            f'  - {{name: t{n}, run: "echo {n} >> {count}; sleep 0.3"}}\n' for n in range(3)
        )
        shop.write("job.yaml", f"type: Suite\nname: job\ncompute: cloud\ntests:\n{tests}")
        client = shop.start("run", "job.yaml")
        kill_after(client.pid, shop, random.Random(seed).uniform(0.3, 5.0))
        client.communicate()
        said = shop.rankwise("resume", "job-1")
        assert said.exit_code == 0, said
        assert sorted(count.read_text().split()) == ["0", "1", "2"]
        assert instances(tmp_path) == recorded(shop) == []


_NOTEBOOK = """\
import importlib.util, sys
import iniconfig
assert importlib.util.find_spec("nbclient") is None, "the runtime is not what was asked for"
print("from", sys.prefix)
"""


@pytest.mark.usefixtures("package_index")
def test_notebooks_of_a_matrix_bring_what_runs_them_and_leave_the_runtime_as_it_is(
    tmp_path: Path,
) -> None:
    with cloud_shop(tmp_path, gets_packages()) as shop:
        cell: dict[str, object]
        cell = {"cell_type": "code", "id": "a", "metadata": {}, "outputs": []}
        cell |= {"execution_count": None, "source": _NOTEBOOK}
        book = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        shop.write("book.ipynb", json.dumps(book))
        shop.write(
            "job.yaml",
            """\
            type: Matrix
            name: job
            machines: {there: {compute: cloud}}
            runtimes:
              made: {requirements: [iniconfig==2.0.0]}
            tests: [book.ipynb]
            """,
        )
        said = shop.rankwise("run", "job.yaml")
        assert said.exit_code == 0, said
        attempt = shop.folder / ".rankwise/runs/job-1/made@there@book.ipynb/1"
        assert json.loads((attempt / "outcome.json").read_text())["outcome"] == "passed"
        log = (attempt / "processes/worker-0/output.log").read_text()
        assert "/rankwise/runtimes/" in log, "it ran in the runtime that was made there"
        assert instances(tmp_path) == recorded(shop) == []


def test_a_python_that_has_the_tools_of_a_task_is_taken_as_it_is(tmp_path: Path) -> None:
    """Nothing is installed where nothing is missing: a machine may have no way to packages."""
    choice = {"kind": "current", "host_python": sys.executable, "has_path": False}
    choice |= {"tools": ["pytest"], "tools_python": TOOLS_PYTHON}
    (tmp_path / "runtime.json").write_text(json.dumps(choice))
    equipment.equip(str(tmp_path), str(tmp_path / "root"))
    there = Placement.read(json.loads((tmp_path / "placement.json").read_text()))
    path = (*there.path, *there.path_behind)
    found = shutil.which(TOOLS_PYTHON, path=":".join(path))
    assert found is not None
    said = subprocess.run(
        [found, "-c", "import sys; print(sys.executable)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == sys.executable
    assert not (tmp_path / "root" / "runtimes").exists()
