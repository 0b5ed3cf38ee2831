"""Matrices on this machine: cells that pass, fail, cannot run, and clients that are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.store import State, Store, TaskRow
from tests.acceptance.jobs import Shop, opened
from tests.lengths import part

EXAMPLE = Path(__file__).parents[2] / "examples" / "matrix" / "matrix.yaml"
NOTE = 'echo "$RUNTIME $MACHINE {what}" >> "$LEDGER"\n'
PYTHON_NOTE = """\
import os
with open(os.environ["LEDGER"], "a") as ledger:
    print(os.environ["RUNTIME"], os.environ["MACHINE"], "{what}", file=ledger)
"""
MATRIX = """\
type: Matrix
name: light
runtimes:
  one: {runtime: current, environment_variables: {RUNTIME: one}}
  two: {runtime: current, environment_variables: {RUNTIME: two}}
machines:
  here: {compute: local, environment_variables: {MACHINE: here}, max_parallel: 2}
  there: {compute: local, environment_variables: {MACHINE: there}, features: [odd]}
"""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with opened(tmp_path / "shop") as made:
        made.variables["LEDGER"] = str(made.folder / "ledger")
        yield made


def write_notebook(shop: Shop, name: str, source: str) -> None:
    cell: dict[str, object] = {
        "cell_type": "code",
        "source": source,
        "metadata": {},
        "outputs": [],
        "execution_count": None,
        "id": "only",
    }
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    shop.write(name, json.dumps(notebook))


def rows_of(shop: Shop, run: str) -> dict[str, TaskRow]:
    with Store.open(shop.folder / ".rankwise", read_only=True) as store:
        return {row.key: row for row in store.task_rows(run)}


def attempt_folder(shop: Shop, run: str, key: str) -> Path:
    with Store.open(shop.folder / ".rankwise", read_only=True) as store:
        return store.attempts(run, key)[-1].folder


def test_every_cell_ends_as_its_tests_and_its_machine_say(shop: Shop) -> None:
    shop.write("good.sh", NOTE.format(what="sh"))
    shop.write("bad.py", "import os, sys\nsys.exit(3 if os.environ['RUNTIME'] == 'two' else 0)\n")
    write_notebook(shop, "good.ipynb", PYTHON_NOTE.format(what="ipynb"))
    write_notebook(shop, "asks.ipynb", "input('Which one? ')")
    shop.write(
        "matrix.yaml",
        f"""{MATRIX}
  nowhere: {{compute: local, features: [gpu, "gpus>=99"]}}
tests:
  - good.sh
  - {{run: bad.py, machines: here}}
  - {{run: good.ipynb, needs: odd, runtimes: one}}
  - {{run: asks.ipynb, runtimes: one, machines: there, soft_fail: true}}
exclude: [{{when: {{runtime: two, machine: there}}, reason: nobody wants it}}]
set: [{{when: {{runtime: two, test: bad.py}}, soft_fail: true}}]
""",
    )
    listed = shop.rankwise("run", "matrix.yaml", "--list")
    assert listed.exit_code == 0, listed
    assert "one  here     good.sh and bad.py" in listed.output, listed
    assert "two  there    skipped: nobody wants it" in listed.output, listed
    assert not (shop.folder / ".rankwise").exists()
    refused = shop.rankwise("run", "matrix.yaml", "--limit", "2")
    assert refused.exit_code == 2, refused
    assert "3 cells are more than 2" in refused.errors, refused
    assert "--yes" in refused.errors, refused

    said = shop.rankwise("run", "matrix.yaml", "--limit", "2", "--yes", "--junit", "all.xml")
    rows = rows_of(shop, "light-1")
    assert {key: str(row.state) for key, row in rows.items()} == {
        "one@here@environment": "passed",
        "one@here@good.sh": "passed",
        "one@here@bad.py": "passed",
        "one@here@good.ipynb": "skipped",
        "one@there@environment": "passed",
        "one@there@good.sh": "passed",
        "one@there@good.ipynb": "passed",
        "one@there@asks.ipynb": "not run",
        "one@nowhere@good.sh": "not run",
        "one@nowhere@good.ipynb": "skipped",
        "two@here@environment": "passed",
        "two@here@good.sh": "passed",
        "two@here@bad.py": "failed",
        "two@there@good.sh": "skipped",
        "two@nowhere@good.sh": "not run",
    }, said
    # What is soft is forgiven, a machine that is not there is not.
    assert said.exit_code == 1, said
    assert rows["two@here@bad.py"].exit_code == 3
    assert rows["one@there@asks.ipynb"].reason == "it needs a person first: cell 1 calls input()"
    assert rows["one@nowhere@good.sh"].reason == "gpu was not found on this machine"
    assert rows["two@there@good.sh"].reason == "nobody wants it"
    for reason in ("gpu was not found on this machine", "nobody wants it"):
        assert reason in said.output, said
        assert reason in (shop.folder / "all.xml").read_text()
    assert Counter((shop.folder / "ledger").read_text().splitlines()) == {
        "one here sh": 1,
        "two here sh": 1,
        "one there sh": 1,
        "one there ipynb": 1,
    }
    environment = attempt_folder(shop, "light-1", "one@here@environment")
    [log] = environment.glob("processes/*/*.log")
    assert json.loads(log.read_text())["packages"]
    made = attempt_folder(shop, "light-1", "one@there@good.ipynb")
    assert (made / "good.html").exists()
    executed = json.loads((made / "good.ipynb").read_text())
    assert executed["cells"][0]["execution_count"] == 1

    again = shop.rankwise("run", "matrix.yaml", "--failed", "--only", "machine=here")
    assert again.exit_code == 0, again
    # The whole cell: its green tests are what the red one is compared with.
    assert set(rows_of(shop, "light-2")) == {
        *("two@here@environment", "two@here@good.sh", "two@here@bad.py"),
    }
    shop.wait_until_empty()


@pytest.mark.usefixtures("package_index")
def test_a_runtime_that_cannot_be_installed_makes_its_row_red_and_nothing_else(shop: Shop) -> None:
    shop.write("good.sh", "true\n")
    shop.write(
        "matrix.yaml",
        """\
        type: Matrix
        name: broken
        runtimes:
          bad: {requirements: [rankwise-has-no-such-package==4.2]}
          good: current
        machines: {a: local, b: local}
        tests: [good.sh]
        """,
    )
    said = shop.rankwise("run", "matrix.yaml")
    assert said.exit_code == 1, said
    rows = rows_of(shop, "broken-1")
    assert {key for key, row in rows.items() if row.state is State.PASSED} == {
        f"good@{machine}@{test}" for machine in "ab" for test in ("environment", "good.sh")
    }
    for machine in "ab":
        row = rows[f"bad@{machine}@good.sh"]
        assert row.state is State.NOT_RUN
        assert "rankwise-has-no-such-package was not found" in row.reason
        assert row.reason.startswith('the environment of runtime "bad" (rankwise-has-no-such')
    # It is tried once, not once for each of four tasks.
    assert said.output.count("making the environment") == 1, said
    assert "rankwise-has-no-such-package was not found" in said.output, said


@pytest.mark.parametrize("seed", range(part(2, 20)))
def test_a_client_may_be_killed_at_any_moment(shop: Shop, seed: int) -> None:
    chance = random.Random(seed)
    shop.write("a.sh", NOTE.format(what="sh"))
    shop.write("a.py", PYTHON_NOTE.format(what="py"))
    write_notebook(shop, "a.ipynb", PYTHON_NOTE.format(what="ipynb"))
    shop.write(
        "matrix.yaml",
        f"{MATRIX}tests: [a.sh, a.py, a.ipynb]\n"
        "exclude: [{when: {runtime: two, machine: there}, reason: enough}]\n",
    )
    has_begun = False
    for _ in range(3):
        client = shop.start(*(("resume",) if has_begun else ("run", "matrix.yaml")), "--quiet")
        time.sleep(chance.uniform(0.0, 4.0))
        os.killpg(client.pid, signal.SIGKILL)
        client.communicate()
        has_begun = has_begun or _runs(shop) == ["light-1"]
    end = shop.rankwise(*(("resume",) if has_begun else ("run", "matrix.yaml")))
    assert end.exit_code == 0, end
    assert _runs(shop) == ["light-1"]
    assert Counter((shop.folder / "ledger").read_text().splitlines()) == {
        f"{cell} {what}": 1
        for cell in ("one here", "one there", "two here")
        for what in ("sh", "py", "ipynb")
    }
    states = Counter(str(row.state) for row in rows_of(shop, "light-1").values())
    assert states == {"passed": 12, "skipped": 3}
    # Neither runners nor kernels.
    shop.wait_until_empty()


def _runs(shop: Shop) -> list[str]:
    if not (shop.folder / ".rankwise" / "store.db").exists():
        return []
    with Store.open(shop.folder / ".rankwise", read_only=True) as store:
        return [run.id for run in store.runs(10)]


@pytest.mark.usefixtures("package_index")
def test_the_example_shows_what_works_in_which_generation(shop: Shop) -> None:
    said = shop.rankwise(
        *("run", EXAMPLE),
        *("--only", "runtime=old,machine=laptop,test=*-ways.ipynb"),
        *("--only", "runtime=new,machine=laptop,test=*-ways.ipynb"),
        *("--only", "machine=workstation,test=look.sh"),
    )
    rows = rows_of(shop, "runtimes-1")
    assert {key: str(row.state) for key, row in rows.items() if "environment" not in key} == {
        "old@laptop@old-ways.ipynb": "passed",
        "old@laptop@new-ways.ipynb": "failed",
        "new@laptop@old-ways.ipynb": "failed",
        "new@laptop@new-ways.ipynb": "passed",
        "old@workstation@look.sh": "skipped",
        "new@workstation@look.sh": "not run",
        "torch@workstation@look.sh": "not run",
    }, said
    assert said.exit_code == 1, said
    explained = shop.rankwise("explain", "runtimes-1")
    assert "module 'numpy' has no attribute 'vecdot'" in explained.output, explained
    assert "`np.float_` was removed in the NumPy 2.0 release" in explained.output, explained
    packages = [_packages(shop, f"{runtime}@laptop@environment") for runtime in ("old", "new")]
    assert packages[0]["numpy"] == "1.26.4"
    assert packages[1]["numpy"] >= "2"


def _packages(shop: Shop, key: str) -> dict[str, str]:
    [log] = attempt_folder(shop, "runtimes-1", key).glob("processes/*/*.log")
    packages: dict[str, str] = json.loads(log.read_text())["packages"]
    return packages


@pytest.mark.full_length
def test_the_whole_example_runs_as_it_is_written(shop: Shop) -> None:
    said = shop.rankwise("run", EXAMPLE, seconds=1200)
    assert said.exit_code == 1, said
    states = {key: str(row.state) for key, row in rows_of(shop, "runtimes-1").items()}
    here = {key: state for key, state in states.items() if "@laptop@" in key}
    assert {key for key, state in here.items() if state != "passed"} == {
        "old@laptop@new-ways.ipynb",
        "new@laptop@old-ways.ipynb",
        "torch@laptop@training-on-gpu",
    }, said
    assert here["torch@laptop@training.ipynb"] == "passed"
    # There is neither a cluster nor a GPU for this test.
    elsewhere = {state for key, state in states.items() if key not in here}
    assert elsewhere == {"not run", "skipped"}
