"""Suites, from the command line to the reports."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from environments import ROOT

from tests.acceptance.jobs import Shop, opened, wait_for

EXAMPLE = ROOT / "examples" / "suite"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with opened(tmp_path / "shop") as one:
        yield one


def states(shop: Shop, run: str = "") -> dict[str, str]:
    said = shop.rankwise("status", *([run] if run else []), "--json")
    assert said.exit_code == 0, said
    return {task["key"]: task["state"] for task in json.loads(said.output)["tasks"]}


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
    assert "1 test did not run, and the suite is not green without: needs 2 GPUs, found 0" in (
        said.output
    )
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


def test_what_ended_while_nobody_drove_is_checked_as_well(shop: Shop) -> None:
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


def test_a_named_pipe_in_the_place_of_results_keeps_nobody_waiting(shop: Shop) -> None:
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
