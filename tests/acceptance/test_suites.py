"""Suites, from the command line to the reports."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from environments import ROOT

from rankwise.git import git
from rankwise.store import State, Store, TaskRow
from tests.acceptance.jobs import Shop, opened, wait_for
from tests.lengths import part

EXAMPLE = ROOT / "examples" / "suite"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with opened(tmp_path / "shop") as one:
        yield one


def states(shop: Shop, run: str = "") -> dict[str, str]:
    said = shop.rankwise("status", *([run] if run else []), "--json")
    assert said.exit_code == 0, said
    return {task["key"]: task["state"] for task in json.loads(said.output)["tasks"]}


TESTS_OF_A_REPOSITORY = """
    type: Suite
    name: theirs
    repository: origin
    outputs: results
    tests:
      - {run: "cat page.html; echo mine > page.html; cp page.html $RANKWISE_FOLDER", name: first}
      - {run: "grep -x theirs page.html", name: second}
      - {run: ranks_test.py, ranks: 2}
"""


def test_each_test_of_a_repository_has_a_clone_of_its_own(shop: Shop) -> None:
    shop.variables["XDG_CACHE_HOME"] = str(shop.folder / "cache")
    shop.write("origin/page.html", "theirs\n")
    shop.write("origin/ranks_test.py", "from mpi4py import MPI\nprint(open('page.html').read())\n")
    origin = shop.folder / "origin"
    git("init", "--quiet", folder=origin)
    git("add", ".", folder=origin)
    me = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    git(*me, "commit", "--quiet", "--message", "tests", folder=origin)
    shop.write("theirs.yaml", TESTS_OF_A_REPOSITORY)
    said = shop.rankwise("run", "theirs.yaml")
    assert said.exit_code == 0, said
    assert (
        shop.folder / "results" / "theirs-1" / "first" / "1" / "page.html"
    ).read_text() == "mine\n"
    assert (origin / "page.html").read_text() == "theirs\n"
    # What was fetched may be removed at any time between two runs.
    shutil.rmtree(shop.folder / "cache")
    git("rm", "--quiet", "ranks_test.py", folder=origin)
    git(*me, "commit", "--quiet", "--message", "less", folder=origin)
    said = shop.rankwise("run", "theirs.yaml")
    assert said.exit_code == 2, said
    assert "there is no script ranks_test.py" in said.errors, said


def test_the_example_shows_every_kind_of_end(shop: Shop) -> None:
    shutil.copytree(EXAMPLE, shop.folder / "suite")
    github = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(shop.folder),
        "GITHUB_STEP_SUMMARY": str(shop.folder / "summary.md"),
    }
    said = shop.rankwise(*("run", "suite/suite.yaml", "--junit", "results.xml"), variables=github)
    # That of the first that failed: a crash by signal 11.
    assert said.exit_code == 128 + signal.SIGSEGV, said
    assert states(shop) == {
        "dummy_distributed_test": "passed",
        "print_rank": "passed",
        "checkpoint-alone": "passed",
        "checkpoint": "passed",
        "all_reduce_test": "not run",
        "all-reduce-on-64-gpus": "skipped",
        "broken-crash_test": "crashed",
        "broken-hang_test": "timed out",
        "broken-wrong_test": "failed",
        "pytest-unit": "passed",
    }
    lines = said.output.splitlines()
    assert "Running: dummy_distributed_test" in lines
    assert "1 test did not run, which the suite requires: needs 2 GPUs, found 0" in (said.output)
    assert "  | AssertionError: rank 1 has 1.0" in lines
    assert "13 tests: 7 passed, 1 failed, 1 crashed, 1 timed out, 1 not run, 2 skipped" in (
        said.output
    )
    assert any(
        line.startswith("::error file=suite/suite.yaml,line=") and "needs 2 GPUs" in line
        for line in lines
    )
    root = ElementTree.parse(shop.folder / "results.xml").getroot()
    counts = [root.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == ["13", "1", "3", "2"]
    summary = (shop.folder / "summary.md").read_text()
    assert "| all\\_reduce\\_test | **not run** |  | needs 2 GPUs, found 0 |" in summary
    shop.wait_until_empty()
    # What was not green is known the next time.
    planned = shop.rankwise("plan", "suite/suite.yaml", "--failed", "--json")
    assert [task["key"] for task in json.loads(planned.output)["tasks"]] == [
        *("all_reduce_test", "broken-crash_test", "broken-hang_test", "broken-wrong_test")
    ]


def test_all_mistakes_are_told_with_their_places_before_anything_runs(shop: Shop) -> None:
    shop.write("a_test.py", "#!/usr/bin/env python\n# rankwise: rank=4\n")
    shop.write("checks.py", "def is_small(): return True\n")
    shop.write(
        "suite.yaml",
        """\
        type: Suite
        tests:
        - run: touch ran
        - b_test.py
        - a_test.py
        - files: 'none/*.py'
        - run: 'true'
          checks:
          - python: checks.py:is_smal
        """,
    )
    said = shop.rankwise("run", "suite.yaml")
    assert said.exit_code == 2, said
    assert said.errors.splitlines() == [
        "rankwise: suite.yaml:4:3: there is no script b_test.py: did you mean `a_test.py`?",
        f"{shop.folder}/a_test.py:2:13: unknown field `rank`: did you mean `ranks`?",
        f"suite.yaml:6:10: no file in {shop.folder} matches",
        (
            f"suite.yaml:9:13: {shop.folder}/checks.py has no function `is_smal`: "
            "did you mean `is_small`?"
        ),
    ]
    shop.write("suite.yaml", "type: Suite\ntests:\n- run: touch ran\n  checks:\n  - contain: x\n")
    said = shop.rankwise("run", "suite.yaml")
    assert said.errors == (
        "rankwise: suite.yaml:5:5: unknown field `contain`: did you mean `contains`?\n"
    )
    assert not (shop.folder / "ran").exists()


FLAKY = """\
type: Suite
tests:
- run: 'true'
  name: good
- run: case $RANKWISE_FOLDER in *flaky.[13]/*) exit 0;; esac; exit 1
  name: flaky
- run: exit 3
  name: bad
- run: exit 3
  name: expected
  checks:
  - exit_code: 3
"""


def test_flaky_tests_are_found_and_shares_add_up(shop: Shop) -> None:
    shop.write("suite.yaml", FLAKY)
    said = shop.rankwise("run", "suite.yaml", "--only", "flaky", "--only", "good", "--repeat", "4")
    assert said.exit_code == 1, said
    assert "flaky is flaky: it passed 2 of 4 times" in said.output, said
    assert states(shop).keys() == {f"{name}.{n}" for name in ("good", "flaky") for n in range(1, 5)}
    found: list[str] = []
    for number in (1, 2):
        planned = shop.rankwise("plan", "suite.yaml", "--shard", f"{number}/2", "--json")
        found += [task["key"] for task in json.loads(planned.output)["tasks"]]
    assert sorted(found) == ["bad", "expected", "flaky", "good"]


def test_the_first_failure_may_be_the_last(shop: Shop) -> None:
    shop.write(
        "suite.yaml",
        """\
        type: Suite
        tests:
        - {run: sleep 100, name: long, requires: {cores: 1}}
        - {run: sleep 0.3; exit 4, name: bad, requires: {cores: 1}}
        - {run: touch ran, name: never, requires: {cores: 1}}
        """,
    )
    shop.write("rankwise.toml", "[compute.local]\ncores = 2\n")
    said = shop.rankwise("run", "suite.yaml", "--fail-fast", seconds=30.0)
    assert said.exit_code == 4, said
    assert states(shop) == {"long": "cancelled", "bad": "failed", "never": "not run"}
    assert "fail-fast: bad did not pass" in said.output
    assert not (shop.folder / "ran").exists()
    shop.wait_until_empty()


def test_tests_of_pytest_on_ranks_show_one_by_one(shop: Shop) -> None:
    shop.write(
        "tests/test_sum.py",
        """\
        import rankwise

        @rankwise.mark.parallel(2)
        def test_sum(comm):
            assert comm.allreduce(1) == 2

        @rankwise.mark.parallel(2)
        def test_wrong(comm):
            assert comm.rank == 0

        def test_plain():
            pass
        """,
    )
    shop.write("suite.yaml", "type: Suite\ntests:\n- pytest: tests --n-workers=2\n- 'true'\n")
    said = shop.rankwise("run", "suite.yaml", "--junit", "results.xml")
    assert said.exit_code == 1, said
    assert re.search(r"1 of 3 tests failed: \S*test_wrong", said.output), said
    status = json.loads(shop.rankwise("status", "--json").output)
    results = {one["name"]: one["state"] for one in status["results"]["pytest-tests"]}
    assert sorted(results.values()) == ["failed", "passed", "passed"]
    root = ElementTree.parse(shop.folder / "results.xml").getroot()
    assert len(root.findall(".//testcase")) == 4
    shop.wait_until_empty()


def test_attempts_that_ended_without_a_client_are_checked_as_well(shop: Shop) -> None:
    shop.write(
        "suite.yaml",
        """\
        type: Suite
        name: kept
        tests:
        - run: echo begun > begun; while [ ! -e go ]; do sleep 0.05; done; echo all is well
          name: one
          checks: [all is not well]
        """,
    )
    client = shop.start("run", "suite.yaml")
    wait_for(shop.folder / "begun")
    os.killpg(client.pid, signal.SIGKILL)
    client.communicate()
    (shop.folder / "go").touch()
    deadline = time.monotonic() + 30
    while states(shop, "kept-1")["one"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    explained = shop.rankwise("explain", "kept-1")
    assert "one failed: check 1 (contains 'all is not well'): not found in" in explained.output
    assert "  | all is well" in explained.output
    shop.wait_until_empty()


def test_the_starter_runs(shop: Shop) -> None:
    assert shop.rankwise("init", "Suite", "suite.yaml").exit_code == 0
    said = shop.rankwise("run", "suite.yaml")
    assert said.exit_code == 0, said
    assert "my-suite-1 passed" in said.output


def test_after_a_run_of_several_suites_the_commands_to_repeat_it_name_all_of_them(
    shop: Shop,
) -> None:
    shop.write("one.yaml", "type: Suite\nname: one\ntests: [{name: good, run: 'true'}]\n")
    shop.write("two.yaml", "type: Suite\nname: two\ntests: [{name: bad, run: exit 3}]\n")
    said = shop.rankwise("run", "one.yaml", "two.yaml")
    assert said.exit_code == 3, said
    assert "again  rankwise run one.yaml two.yaml --failed\n" in said.output
    page = shop.rankwise("report", "--html", "-").output
    assert "rankwise run one.yaml two.yaml --only bad" in page
    # The first one alone does not have what failed: that must not pass for all being well.
    assert shop.rankwise("run", "one.yaml", "--failed").exit_code == 2
    again = shop.rankwise("run", "one.yaml", "two.yaml", "--failed")
    assert again.exit_code == 3, again
    assert states(shop) == {"bad": "failed"}


def test_a_named_pipe_in_the_place_of_results_does_not_block(shop: Shop) -> None:
    shop.write("suite.yaml", "type: Suite\ntests: [{name: unit, pytest: test_it.py}]\n")
    shop.write(
        "test_it.py",
        """\
        import atexit
        import os


        @atexit.register
        def leave_a_pipe():
            path = os.path.join(os.environ["RANKWISE_FOLDER"], "results.xml")
            os.unlink(path)
            os.mkfifo(path)


        def test_it():
            pass
        """,
    )
    said = shop.rankwise("run", "suite.yaml", seconds=60)
    assert said.exit_code == 1, said
    assert "not a regular file" in said.output
    assert states(shop) == {"unit": "failed"}


# Matrices on this machine: cells that pass, fail, cannot run, and clients that are killed

MATRIX_EXAMPLE = Path(__file__).parents[2] / "examples" / "matrix" / "matrix.yaml"
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
def shop_matrix(tmp_path: Path) -> Iterator[Shop]:
    with opened(tmp_path / "shop") as made:
        made.variables["LEDGER"] = str(made.folder / "ledger")
        yield made


def write_notebook(shop_matrix: Shop, name: str, source: str) -> None:
    cell: dict[str, object] = {
        "cell_type": "code",
        "source": source,
        "metadata": {},
        "outputs": [],
        "execution_count": None,
        "id": "only",
    }
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    shop_matrix.write(name, json.dumps(notebook))


def rows_of(shop_matrix: Shop, run: str) -> dict[str, TaskRow]:
    with Store.open(shop_matrix.folder / ".rankwise", read_only=True) as store:
        return {row.key: row for row in store.task_rows(run)}


def attempt_folder(shop_matrix: Shop, run: str, key: str) -> Path:
    with Store.open(shop_matrix.folder / ".rankwise", read_only=True) as store:
        return store.attempts(run, key)[-1].folder


def test_every_cell_ends_as_its_tests_and_its_machine_say(shop_matrix: Shop) -> None:
    shop_matrix.write("good.sh", NOTE.format(what="sh"))
    shop_matrix.write(
        "bad.py", "import os, sys\nsys.exit(3 if os.environ['RUNTIME'] == 'two' else 0)\n"
    )
    write_notebook(shop_matrix, "good.ipynb", PYTHON_NOTE.format(what="ipynb"))
    write_notebook(shop_matrix, "asks.ipynb", "input('Which one? ')")
    shop_matrix.write(
        "matrix.yaml",
        f"""{MATRIX}
  nowhere: {{compute: local, features: [gpu, "gpus>=99"]}}
tests:
  - good.sh
  - {{run: bad.py, machines: here}}
  - {{run: good.ipynb, needs: odd, runtimes: one}}
  - {{run: asks.ipynb, runtimes: one, machines: there, soft_fail: true}}
exclude: [{{when: {{runtime: two, machine: there}}, reason: it is not needed}}]
set: [{{when: {{runtime: two, test: bad.py}}, soft_fail: true}}]
""",
    )
    listed = shop_matrix.rankwise("run", "matrix.yaml", "--list")
    assert listed.exit_code == 0, listed
    assert "one  here     good.sh and bad.py" in listed.output, listed
    assert "two  there    skipped: it is not needed" in listed.output, listed
    assert not (shop_matrix.folder / ".rankwise").exists()
    refused = shop_matrix.rankwise("run", "matrix.yaml", "--limit", "2")
    assert refused.exit_code == 2, refused
    assert "3 cells are more than 2" in refused.errors, refused
    assert "--yes" in refused.errors, refused

    said = shop_matrix.rankwise("run", "matrix.yaml", "--limit", "2", "--yes", "--junit", "all.xml")
    rows = rows_of(shop_matrix, "light-1")
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
    assert rows["two@there@good.sh"].reason == "it is not needed"
    for reason in ("gpu was not found on this machine", "it is not needed"):
        assert reason in said.output, said
        assert reason in (shop_matrix.folder / "all.xml").read_text()
    assert Counter((shop_matrix.folder / "ledger").read_text().splitlines()) == {
        "one here sh": 1,
        "two here sh": 1,
        "one there sh": 1,
        "one there ipynb": 1,
    }
    environment = attempt_folder(shop_matrix, "light-1", "one@here@environment")
    [log] = environment.glob("processes/*/*.log")
    assert json.loads(log.read_text())["packages"]
    made = attempt_folder(shop_matrix, "light-1", "one@there@good.ipynb")
    assert (made / "good.html").exists()
    executed = json.loads((made / "good.ipynb").read_text())
    assert executed["cells"][0]["execution_count"] == 1

    again = shop_matrix.rankwise("run", "matrix.yaml", "--failed", "--only", "machine=here")
    assert again.exit_code == 0, again
    # The whole cell: its green tests are what the red one is compared with.
    assert set(rows_of(shop_matrix, "light-2")) == {
        *("two@here@environment", "two@here@good.sh", "two@here@bad.py"),
    }
    shop_matrix.wait_until_empty()


@pytest.mark.usefixtures("package_index")
def test_a_runtime_that_cannot_be_installed_makes_its_row_red_and_nothing_else(
    shop_matrix: Shop,
) -> None:
    shop_matrix.write("good.sh", "true\n")
    shop_matrix.write(
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
    said = shop_matrix.rankwise("run", "matrix.yaml")
    assert said.exit_code == 1, said
    rows = rows_of(shop_matrix, "broken-1")
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
def test_a_client_may_be_killed_at_any_moment(shop_matrix: Shop, seed: int) -> None:
    chance = random.Random(seed)
    shop_matrix.write("a.sh", NOTE.format(what="sh"))
    shop_matrix.write("a.py", PYTHON_NOTE.format(what="py"))
    write_notebook(shop_matrix, "a.ipynb", PYTHON_NOTE.format(what="ipynb"))
    shop_matrix.write(
        "matrix.yaml",
        f"{MATRIX}tests: [a.sh, a.py, a.ipynb]\n"
        "exclude: [{when: {runtime: two, machine: there}, reason: enough}]\n",
    )
    has_begun = False
    for _ in range(3):
        client = shop_matrix.start(
            *(("resume",) if has_begun else ("run", "matrix.yaml")), "--quiet"
        )
        time.sleep(chance.uniform(0.0, 4.0))
        os.killpg(client.pid, signal.SIGKILL)
        client.communicate()
        has_begun = has_begun or _runs(shop_matrix) == ["light-1"]
    end = shop_matrix.rankwise(*(("resume",) if has_begun else ("run", "matrix.yaml")))
    assert end.exit_code == 0, end
    assert _runs(shop_matrix) == ["light-1"]
    assert Counter((shop_matrix.folder / "ledger").read_text().splitlines()) == {
        f"{cell} {what}": 1
        for cell in ("one here", "one there", "two here")
        for what in ("sh", "py", "ipynb")
    }
    states = Counter(str(row.state) for row in rows_of(shop_matrix, "light-1").values())
    assert states == {"passed": 12, "skipped": 3}
    # Neither runners nor kernels.
    shop_matrix.wait_until_empty()


def _runs(shop_matrix: Shop) -> list[str]:
    if not (shop_matrix.folder / ".rankwise" / "store.db").exists():
        return []
    with Store.open(shop_matrix.folder / ".rankwise", read_only=True) as store:
        return [run.id for run in store.runs(10)]


@pytest.mark.usefixtures("package_index")
def test_the_example_shows_what_works_in_which_generation(shop_matrix: Shop) -> None:
    said = shop_matrix.rankwise(
        *("run", MATRIX_EXAMPLE),
        *("--only", "runtime=old,machine=laptop,test=*-ways.ipynb"),
        *("--only", "runtime=new,machine=laptop,test=*-ways.ipynb"),
        *("--only", "machine=workstation,test=look.sh"),
    )
    rows = rows_of(shop_matrix, "runtimes-1")
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
    explained = shop_matrix.rankwise("explain", "runtimes-1")
    assert "module 'numpy' has no attribute 'vecdot'" in explained.output, explained
    assert "`np.float_` was removed in the NumPy 2.0 release" in explained.output, explained
    packages = [
        _packages(shop_matrix, f"{runtime}@laptop@environment") for runtime in ("old", "new")
    ]
    assert packages[0]["numpy"] == "1.26.4"
    assert packages[1]["numpy"] >= "2"


def _packages(shop_matrix: Shop, key: str) -> dict[str, str]:
    [log] = attempt_folder(shop_matrix, "runtimes-1", key).glob("processes/*/*.log")
    packages: dict[str, str] = json.loads(log.read_text())["packages"]
    return packages


@pytest.mark.full_length
def test_the_whole_example_runs_as_it_is_written(shop_matrix: Shop) -> None:
    said = shop_matrix.rankwise("run", MATRIX_EXAMPLE, seconds=1200)
    assert said.exit_code == 1, said
    states = {key: str(row.state) for key, row in rows_of(shop_matrix, "runtimes-1").items()}
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


# Sweeps are run, measured and kept, whatever happens to the client

_SWEEP = """\
    type: Sweep
    name: timing
    command: {command}
    parameters:
      size: [1, 2, 3]
    trials: 4
    warmup: 1
    metrics:
      - name: time
        unit: s
        better: lower
        pattern: 'took (?P<value>[0-9.]+) s'
    """


@pytest.fixture
def shop_sweeps(tmp_path: Path) -> Iterator[Shop]:
    with opened(tmp_path / "shop") as made:
        yield made


def test_each_case_has_a_sample_for_each_trial_with_its_conditions(shop_sweeps: Shop) -> None:
    shop_sweeps.write("sweep.yaml", _SWEEP.format(command='echo "took ${{size}}.${{trial}} s"'))
    said = shop_sweeps.rankwise("run", "sweep.yaml")
    assert said.exit_code == 0, said
    assert "3 cases, 4 trials each and 1 to warm up: 15 tasks" in said.output, said
    with Store.open(shop_sweeps.folder / ".rankwise", read_only=True) as store:
        series = store.series(metric="time")
        assert [(one.case, one.unit, one.better) for one in series] == [
            ("size=1", "s", "lower"),
            ("size=2", "s", "lower"),
            ("size=3", "s", "lower"),
        ]
        history = store.history(series[1].id)
        assert [row.value for row in history] == [2.1, 2.2, 2.3, 2.4]
        conditions = store.conditions("timing-1")
        assert len(conditions) == 12
        assert all({"host", "cpu", "load"} <= one.keys() for one in conditions.values())


def test_a_case_that_prints_no_metric_has_failed(shop_sweeps: Shop) -> None:
    command = 'if [ ${{size}} = 2 ]; then echo "took nan s"; else echo "took 1 s"; fi'
    shop_sweeps.write("sweep.yaml", _SWEEP.format(command=f"'{command}'"))
    said = shop_sweeps.rankwise("run", "sweep.yaml")
    assert said.exit_code != 0, said
    assert "15 tasks: 11 passed, 4 failed" in said.output, said
    assert "regex has found no metric" in said.output, said


def test_a_sweep_whose_client_is_killed_measures_everything_once(shop_sweeps: Shop) -> None:
    line = 'echo ${{size}}.${{trial}} >> ledger; sleep 0.05; echo "took 0.${{size}} s"'
    shop_sweeps.write("sweep.yaml", _SWEEP.format(command=f"'{line}'"))
    ledger = shop_sweeps.folder / "ledger"
    for arguments, count in ((("run", "sweep.yaml"), 3), (("resume",), 7), (("resume",), 11)):
        client = shop_sweeps.start(*arguments)
        deadline = time.monotonic() + 60
        while len(wait_for(ledger, 60).split()) < count:
            assert time.monotonic() < deadline, ledger.read_text()
            time.sleep(0.01)
        os.killpg(client.pid, signal.SIGKILL)
        client.communicate()
    said = shop_sweeps.rankwise("resume")
    assert said.exit_code == 0, said
    assert Counter(ledger.read_text().split()) == {
        f"{size}.{trial}": 1 for size in (1, 2, 3) for trial in range(5)
    }
    with Store.open(shop_sweeps.folder / ".rankwise", read_only=True) as store:
        values = Counter(row.value for row in store.samples_of_run("timing-1"))
    assert values == {0.1: 4, 0.2: 4, 0.3: 4}


_PARSER = """\
    from rankwise.metrics.base import Collector

    def read_ticks(wish, text):
        found = Collector(wish)
        for line in text.splitlines():
            name, _, ticks = line.partition(" ticks: ")
            if ticks:
                found.add(name, float(ticks), "ticks", better="lower")
        return found.parsed()
    """


def test_a_parser_of_another_package_measures_a_sweep(shop_sweeps: Shop) -> None:
    shop_sweeps.variables["PYTHONPATH"] = str(shop_sweeps.folder / "site")
    shop_sweeps.write("site/ticker.py", _PARSER)
    shop_sweeps.write("site/ticker-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: ticker\n")
    entry = "[rankwise.metric_parsers]\nticks = ticker:read_ticks\n"
    shop_sweeps.write("site/ticker-1.0.dist-info/entry_points.txt", entry)
    sweep = "type: Sweep\nname: t\ncommand: 'echo \"work ticks: 1${{trial}}\"'\ntrials: 2\n"
    shop_sweeps.write("wrong.yaml", f"{sweep}metrics: [tick]\n")
    said = shop_sweeps.rankwise("run", "wrong.yaml")
    assert said.exit_code == 2, said
    assert "there is no parser `tick`; did you mean `ticks`?" in said.errors, said
    shop_sweeps.write("sweep.yaml", f"{sweep}metrics: [ticks]\n")
    said = shop_sweeps.rankwise("run", "sweep.yaml")
    assert said.exit_code == 0, said
    with Store.open(shop_sweeps.folder / ".rankwise", read_only=True) as store:
        (series,) = store.series(metric="work")
        assert (series.unit, series.better) == ("ticks", "lower")
        assert [row.value for row in store.history(series.id)] == [11.0, 12.0]
