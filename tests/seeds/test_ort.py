"""The page about ONNX Runtime's distributed CI: its steps, its driver and its command lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import containers
import pytest
from environments import ENVIRONMENTS, why_unavailable
from ruamel.yaml import YAML

from tests.acceptance.jobs import Said, Shop, opened
from tests.backends.places import need
from tests.seeds.sentences import sentence
from tests.seeds.typed import type_in_shop

PAGE = "ort-distributed-ci"
GPUS = "a count of 2 GPUs"

# The function and its call are those of the page.
DRIVER = """\
import logging
import subprocess
import sys

logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(message)s")


def run_subprocess(command, cwd, log):
    log.debug("Running subprocess in %s: %s", cwd, command)
    return subprocess.run(command, cwd=cwd)


def run_checkpoint_tests(cwd, log):
    log.debug('Running: Checkpoint tests')

    command = [sys.executable, 'checkpoint_test.py']

    run_subprocess(command, cwd=cwd, log=log).check_returncode()


def run_dummy_distributed_tests(cwd, log):
    log.debug('Running: Dummy distributed tests')

    command = [sys.executable, 'dummy_distributed_test.py']

    run_subprocess(command, cwd=cwd, log=log).check_returncode()


def main():
    log, cwd = logging.getLogger("DistributedTests"), "."
    run_checkpoint_tests(cwd, log)
    run_dummy_distributed_tests(cwd, log)


main()
"""
# Runs a command line that it is given, as the one of the page does.
LAUNCH = """\
import subprocess, sys

sys.exit(subprocess.run(sys.argv[1], shell=True).returncode)
"""
DUMMY = """\
import os
from mpi4py import MPI

comm = MPI.COMM_WORLD
assert comm.allreduce(1) == comm.size
print(f"rank {comm.rank} of {comm.size}, NCCL_DEBUG is {os.environ.get('NCCL_DEBUG')}")
"""
SUITE = """\
type: Suite
name: orttraining-distributed
timeout: 60s
tests:
  - python orttraining_distributed_tests.py
"""
NEW_TEST = "  - dummy_distributed_test.py\n"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """The folder of a build: the driver of the page, its scripts, and a suite that runs them."""
    with opened(tmp_path / "build") as shop:
        shop.variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        shop.write("orttraining_distributed_tests.py", DRIVER)
        shop.write("launch_test.py", LAUNCH)
        shop.write("dummy_distributed_test.py", DUMMY)
        shop.write("checkpoint_test.py", "print('written and read')\n")
        shop.write("suite.yaml", SUITE)
        yield shop
        shop.wait_until_empty()


def run(shop: Shop, tests: str, *options: str) -> Said:
    shop.write("suite.yaml", f"type: Suite\nname: suite\ntimeout: 60s\ntests:\n{tests}")
    return shop.rankwise("run", "suite.yaml", *options)


SEARCH = f"{sys.executable} -m rankwise.cli.main logs | grep 'Running: Dummy distributed tests'"
RANKS_OF_TWO = [f"rank {rank} of 2, NCCL_DEBUG is INFO" for rank in range(2)]


@sentence(PAGE, ran="rankwise run suite.yaml: `mpirun -n 2 …` and `ranks: 2`")
def test_a_suite_is_for_tests_that_need_several_processes(shop: Shop) -> None:
    """The pipeline runs tests that require a distributed environment (run with mpirun)."""
    said = run(
        shop,
        """\
  - run: mpirun -n 2 -x NCCL_DEBUG=INFO python dummy_distributed_test.py
    name: by-mpirun
    checks: [{contains: "rank {rank} of 2", rank: all}]
  - run: dummy_distributed_test.py
    name: by-ranks
    ranks: 2
    checks: [{contains: "rank {rank} of 2", rank: all}]
""",
    )
    assert said.exit_code == 0, said
    assert "2 tests: 2 passed" in said.output, said


@sentence(
    PAGE,
    ran="rankwise init --ci azure suite.yaml, and the steps that it writes",
    stand_in="a shell that runs the steps, but for pip install,",
)
def test_a_pipeline_runs_on_every_commit_of_a_pull_request(shop: Shop) -> None:
    """The pipeline's yml file; it runs on every pull request commit."""
    assert shop.rankwise("init", "--ci", "azure", "suite.yaml").exit_code == 0
    pipeline = YAML(typ="safe").load(shop.folder / "azure-pipelines.yml")
    assert pipeline["pr"]["branches"]["include"] == ["*"]
    scripts = [step["script"] for step in pipeline["steps"] if "script" in step]
    assert scripts.pop(0).startswith("python -m pip install")
    for line in scripts:
        done = type_in_shop(shop, line)
        assert done.returncode == 0, done
    (published,) = [
        step["inputs"]["testResultsFiles"]
        for step in pipeline["steps"]
        if step["task" if "task" in step else "script"] == "PublishTestResults@2"
    ]
    root = ElementTree.parse(shop.folder / published).getroot()
    assert [case.get("name") for case in root.iter("testcase")] == ["orttraining_distributed_tests"]


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    line = ["git", "-C", str(folder), *who, *words]
    subprocess.run(line, check=True, capture_output=True)


@sentence(PAGE, ran="rankwise run pipeline.yaml: a stage `checkout`, then the driver")
def test_the_branch_of_the_pull_request_is_checked_out(shop: Shop, tmp_path: Path) -> None:
    """1. Clone the git repository and check out the branch of the pull request."""
    upstream = tmp_path / "upstream"
    upstream.mkdir()
    git(upstream, "init", "--initial-branch=main")
    for name in ("orttraining_distributed_tests.py", "dummy_distributed_test.py"):
        (upstream / name).write_text((shop.folder / name).read_text())
    (upstream / "checkpoint_test.py").write_text("raise SystemExit('of main')\n")
    git(upstream, "add", ".")
    git(upstream, "commit", "--message", "main")
    git(upstream, "checkout", "-b", "pull/1")
    (upstream / "checkpoint_test.py").write_text("print('of the pull request')\n")
    git(upstream, "commit", "--all", "--message", "pull request")
    git(upstream, "checkout", "main")
    shop.write(
        "pipeline.yaml",
        f"""\
        type: Pipeline
        name: ci
        stages:
          source: {{checkout: {{repository: {upstream}, ref: pull/1, into: source}}}}
          test:
            run: cd source && python orttraining_distributed_tests.py
            checks: [of the pull request]
        """,
    )
    said = shop.rankwise("run", "pipeline.yaml")
    assert said.exit_code == 0, said


# An image of this machine's files, with an MPI that comes from the context of the build.
DOCKERFILE = """\
FROM {image}
COPY [".", "{place}"]
ENV PATH="{place}/bin:/usr/local/bin:/usr/bin:/bin"
"""


@sentence(
    PAGE,
    ran="rankwise run suite.yaml: `image: {build: Dockerfile}`, then `mpirun -n 2 …` in it",
    stand_in="an image of this machine's files, in place of one from a registry,",
)
def test_the_container_is_built_with_all_that_the_tests_need(shop: Shop) -> None:
    """2. Build the docker container installing all dependencies, for example open-mpi."""
    mpi = ENVIRONMENTS["openmpi5"]
    need(containers.obstacle() or why_unavailable(mpi))
    folder = mpi.folder
    shop.write("Dockerfile", DOCKERFILE.format(image=containers.IMAGE, place=folder))
    image = f'image: {{build: Dockerfile, context: "{folder}"}}'
    line = "mpirun -n 2 -x NCCL_DEBUG=INFO python dummy_distributed_test.py"
    check = "checks: [{contains: 'rank {rank} of 2, NCCL_DEBUG is INFO', rank: all}]"
    tests = f"tests:\n  - {{run: {line}, {check}}}\n  - python checkpoint_test.py\n"
    shop.write("suite.yaml", f"type: Suite\nname: boxed\ntimeout: 60s\n{image}\n{tests}")
    with containers.podman() as engine:
        shop.variables |= {**engine.variables, "XDG_CACHE_HOME": str(shop.folder / "cache")}
        said = shop.rankwise("run", "suite.yaml")
        assert said.exit_code == 0, said
        assert "boxed: STEP 2/3: COPY" in said.output, said
        assert "2 tests: 2 passed" in said.output, said
        again = shop.rankwise("run", "suite.yaml")
        assert again.exit_code == 0, again
        assert "is there already" in again.output, again
        assert "STEP" not in again.output, again


@sentence(PAGE, ran="rankwise run suite.yaml: `python launch_test.py …`")
def test_the_tests_of_the_driver_are_run_by_another_script(shop: Shop) -> None:
    """3. Run all tests of orttraining_distributed_tests.py through launch_test.py."""
    line = "python launch_test.py 'python orttraining_distributed_tests.py'"
    said = run(shop, f"  - {line}\n")
    assert said.exit_code == 0, said
    log = shop.rankwise("logs").output
    assert "Running: Checkpoint tests" in log
    assert "rank 0 of 1" in log


@sentence(PAGE, ran="rankwise run suite.yaml --junit results.xml --markdown summary.md")
def test_the_status_of_the_tests_is_reported(shop: Shop) -> None:
    """4. Report the status of the tests."""
    shop.write("checkpoint_test.py", "raise SystemExit('the checkpoint is broken')\n")
    tests = f"  - python orttraining_distributed_tests.py\n{NEW_TEST}"
    said = run(shop, tests, "--junit", "results.xml", "--markdown", "summary.md")
    assert said.exit_code == 1, said
    root = ElementTree.parse(shop.folder / "results.xml").getroot()
    failed = [case.get("name") for case in root.iter("testcase") if len(case)]
    assert failed == ["orttraining_distributed_tests"]
    summary = (shop.folder / "summary.md").read_text()
    assert "1 passed, 1 failed" in summary
    assert "the checkpoint is broken" in shop.rankwise("explain").output


@sentence(PAGE, ran="python orttraining_distributed_tests.py, by itself and as a test of a suite")
def test_the_whole_set_runs_locally(shop: Shop) -> None:
    """To run the entire set locally: python orttraining_distributed_tests.py."""
    done = type_in_shop(shop, "python orttraining_distributed_tests.py")
    assert done.returncode == 0, done
    said = shop.rankwise("run", "suite.yaml")
    assert said.exit_code == 0, said
    assert "1 test: 1 passed" in said.output, said


@sentence(PAGE, ran="rankwise run suite.yaml: `requires: {gpus: 2}`", stand_in=GPUS)
def test_without_two_gpus_the_tests_do_not_run_and_nothing_is_green(shop: Shop) -> None:
    """These tests need multiple GPUs; they terminate if there are less than 2."""
    test = "  - {run: dummy_distributed_test.py, ranks: 2, requires: {gpus: 2}}\n"
    for gpus, code, words in ((1, 1, "needs 2 GPUs, found 1"), (2, 0, "1 test: 1 passed")):
        shop.write("rankwise.toml", f'[compute.local]\nbackend = "local"\ngpus = {gpus}\n')
        said = run(shop, test)
        assert said.exit_code == code, said
        assert words in said.output, said


@sentence(
    PAGE,
    ran="rankwise run suite.yaml, with `ranks: gpus`",
    stand_in="a site file that says that there are two GPUs",
)
def test_there_are_as_many_ranks_as_gpus(shop: Shop) -> None:
    """mpirun -n <num_gpus> -x NCCL_DEBUG=INFO python dummy_distributed_test.py."""
    test = "  - {run: dummy_distributed_test.py, ranks: gpus, environment_variables: {NCCL_DEBUG: INFO}"
    checks = ", checks: [{contains: 'rank {rank} of 2, NCCL_DEBUG is INFO', rank: all}]}\n"
    said = run(shop, f"{test}}}\n")
    assert said.exit_code == 1, said
    assert "needs 1 GPU, found 0" in said.output, said
    shop.write("rankwise.toml", '[compute.local]\nbackend = "local"\ngpus = 2\n')
    said = run(shop, test + checks)
    assert said.exit_code == 0, said


@sentence(PAGE, ran="rankwise run suite.yaml: both lines of the page, for 2 GPUs")
def test_a_new_test_runs_as_a_script_or_as_ranks(shop: Shop) -> None:
    """A new file runs by python dummy_distributed_test.py or mpirun -n <num_gpus> -x …."""
    said = run(
        shop,
        """\
  - {run: python dummy_distributed_test.py, name: alone}
  - run: mpirun -n 2 -x NCCL_DEBUG=INFO python dummy_distributed_test.py
    name: ranks
""",
    )
    assert said.exit_code == 0, said
    alone = shop.rankwise("logs", "--task", "alone").output
    assert "rank 0 of 1, NCCL_DEBUG is None" in alone
    ranks = shop.rankwise("logs", "--task", "ranks").output
    assert all(line in ranks for line in RANKS_OF_TWO), ranks


@sentence(PAGE, ran="rankwise run suite.yaml: the function of the page, or an entry of a suite")
def test_adding_a_test_is_a_function_or_an_entry(shop: Shop) -> None:
    """Create a function in the driver, and add a call of it to main()."""
    shop.write("suite.yaml", SUITE + NEW_TEST)
    said = shop.rankwise("run", "suite.yaml")
    assert said.exit_code == 0, said
    assert "2 tests: 2 passed" in said.output, said
    driver = shop.rankwise("logs", "--task", "orttraining_distributed_tests").output
    assert "Running: Dummy distributed tests" in driver
    assert "rank 0 of 1" in driver


@sentence(PAGE, ran="rankwise run suite.yaml")
def test_a_failure_of_any_test_of_the_driver_is_one(shop: Shop) -> None:
    """Call the suite on a local machine and ensure that there are no failures."""
    assert shop.rankwise("run", "suite.yaml").exit_code == 0
    shop.write("dummy_distributed_test.py", "assert False, 'the dummy fails'\n")
    said = shop.rankwise("run", "suite.yaml")
    assert said.exit_code == 1, said
    assert "the dummy fails" in shop.rankwise("explain").output


@sentence(PAGE, ran="rankwise run suite.yaml: one entry that starts mpirun twice")
def test_a_test_may_start_several_programs(shop: Shop) -> None:
    """If a test requires multiple run_subprocess() calls, give it a single entry point."""
    line = "mpirun -n 2 python dummy_distributed_test.py"
    test = f"  - {{name: both, run: '{line} && python checkpoint_test.py && {line}'}}\n"
    said = run(shop, test)
    assert said.exit_code == 0, said
    log = shop.rankwise("logs").output
    assert log.count("rank 1 of 2") == 2, log
    assert "written and read" in log
    shop.write("checkpoint_test.py", "raise SystemExit(3)\n")
    assert run(shop, test).exit_code == 3


@sentence(PAGE, ran="rankwise logs | grep 'Running: Dummy distributed tests', and a check of it")
def test_the_log_shows_that_a_new_test_ran(shop: Shop) -> None:
    """Search for 'Running: Dummy distributed tests' in the logs to ensure that it ran."""
    tests = "  - run: python orttraining_distributed_tests.py\n"
    tests += "    checks: ['Running: Dummy distributed tests']\n"
    assert run(shop, tests).exit_code == 0
    assert type_in_shop(shop, SEARCH).returncode == 0
    without = DRIVER.replace("    run_dummy_distributed_tests(cwd, log)\n", "")
    shop.write("orttraining_distributed_tests.py", without)
    said = run(shop, tests)
    assert said.exit_code == 1, said
    assert type_in_shop(shop, SEARCH).returncode == 1


CASES = """\
  - run: python orttraining_distributed_tests.py
    cases: 'Running:'
"""


def cases_of(shop: Shop) -> list[tuple[str, str]]:
    said = json.loads(shop.rankwise("status", "--json").output)["results"]
    return [(one["name"], one["state"]) for one in said["orttraining_distributed_tests"]]


@sentence(PAGE, ran="rankwise run suite.yaml, with `cases: 'Running:'`")
@sentence(
    PAGE,
    ran="rankwise run suite.yaml --junit results.xml, with `cases: 'Running:'`",
    said="log.debug('Running: Dummy distributed tests')",
)
def test_each_function_of_the_driver_is_a_case(shop: Shop) -> None:
    """Create a new function: each that logs `Running: NAME` shows with a verdict of its own."""
    shop.write("checkpoint_test.py", "import time\ntime.sleep(0.3)\n")
    said = run(shop, CASES, "--junit", "results.xml")
    assert said.exit_code == 0, said
    names = ["Checkpoint tests", "Dummy distributed tests"]
    assert cases_of(shop) == [(name, "passed") for name in names]
    found = ElementTree.parse(shop.folder / "results.xml").getroot().findall(".//testcase")
    assert [case.get("name") for case in found] == names
    assert float(found[0].get("time", "0")) >= 0.3
    assert type_in_shop(shop, SEARCH).returncode == 0


@sentence(PAGE, ran="rankwise run suite.yaml --junit results.xml, with `cases: 'Running:'`")
def test_the_case_that_ran_when_the_driver_failed_is_the_one_that_failed(shop: Shop) -> None:
    """run_subprocess(…).check_returncode(): ensure that there are no failures."""
    shop.write("dummy_distributed_test.py", "assert False, 'the dummy fails'\n")
    said = run(shop, CASES, "--junit", "results.xml")
    assert said.exit_code == 1, said
    assert "1 of 2 tests failed: Dummy distributed tests" in said.output, said
    assert cases_of(shop) == [("Checkpoint tests", "passed"), ("Dummy distributed tests", "failed")]
    (failure,) = ElementTree.parse(shop.folder / "results.xml").getroot().findall(".//failure")
    assert "returned non-zero exit status 1" in (failure.text or ""), failure.text
    shop.write("checkpoint_test.py", "raise SystemExit(4)\n")
    assert run(shop, CASES).exit_code == 1
    assert cases_of(shop) == [("Checkpoint tests", "failed")]


@sentence(PAGE, ran="rankwise run suite.yaml, with `cases: 'Running:'` and no such line")
def test_a_driver_that_names_no_case_is_not_green(shop: Shop) -> None:
    """Make sure to search for it to ensure that the newly added tests were successfully run."""
    shop.write("orttraining_distributed_tests.py", "print('nothing to do')\n")
    said = run(shop, CASES)
    assert said.exit_code == 1, said
    assert "no test results: no line has 'Running:'" in said.output, said


@sentence(PAGE, ran="rankwise run suite.yaml: `files: '*_distributed_test.py'`")
def test_a_test_of_a_pull_request_runs_without_being_listed(shop: Shop) -> None:
    """Submit a pull request, and the new tests are executed in the pipeline."""
    tests = "  - files: '*_distributed_test.py'\n"
    assert "1 test: 1 passed" in run(shop, tests).output
    shop.write("new_distributed_test.py", "print('new')\n")
    said = run(shop, tests)
    assert "2 tests: 2 passed" in said.output, said
    assert "new_distributed_test" in said.output, said
