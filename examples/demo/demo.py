"""Run the tests and the jobs of this folder on four ranks, and say what the reader sees.

    make demo

Exits with 0 if everything came out as it should, what fails on purpose included. Standard library
only; `mpiexec`, `pytest` and `rankwise` are those that come first on PATH.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
JOBS = HERE / "jobs"
LIMIT_SECONDS = 120
GRACE_SECONDS = 10

EXPECTED: Mapping[str, str] = {
    "test_halo::test_halo_holds_the_cells_of_the_neighbours": "passed",
    "test_mean::test_mean": "failed on rank 2 of 4",
    "test_sum::test_distributed_sum": "passed",
    "test_sum::test_shares_cover_everything_once": "passed",
    "test_sum::test_sum_is_the_same_on_any_number_of_ranks[1]": "passed",
    "test_sum::test_sum_is_the_same_on_any_number_of_ranks[2]": "passed",
    "test_sum::test_sum_is_the_same_on_any_number_of_ranks[4]": "passed",
}

BEFORE = """\
1. Tests: seven of them on four MPI processes ("ranks"): an ordinary one, a
halo exchange on three ranks, sums on one, two and four. One test is wrong on
purpose, on one of its four ranks.
"""

AFTER_TESTS = """\
What you see
  - The line that begins with "rankwise:" says how many ranks there are, on
    which MPI, and how tests are given to them. With --scheduler=dynamic,
    small tests share the ranks.
  - Each test has one verdict, however many ranks it ran on: 7 tests,
    6 passed, 1 failed.
  - test_mean failed on purpose. "rank 2 of 4" is the rank that was wrong, and
    what follows is its own assertion with its own values. What was printed is
    shown once for ranks 0, 1 and 3, which printed the same, and once for
    rank 2.

2. Jobs: a program that is not a test: pi.py, on four nodes that are all this
machine. Then the same with a rank that raises, while the others would wait
for it for ever.
"""

AFTER_JOBS = """\
What you see
  - "4 ranks on node0, node1, ...": each node has a folder and cores of its
    own, and a host name where the kernel permits that. On a cluster, the same
    file runs on its nodes.
  - The broken job ended at once, and the rank that failed first is named,
    with its last output. The exit code is that of the rank.
Everything came out as expected: the demo has succeeded.

Where to look next
  docs/index.md              where to start, for six kinds of readers
  examples/demo/tests/       the tests that just ran
  docs/writing-tests.md      write your own
  docs/hangs-and-crashes.md  a suite that hangs, and pytest --n-workers=4
  docs/how-tests-run.md      what --scheduler=dynamic did
  examples/demo/jobs/        the jobs that just ran
  docs/jobs.md               from one rank to four nodes
  {again}
"""


class DemoFailure(Exception):
    """The demo did not come out as it should; the message says how."""


def environment() -> dict[str, str]:
    """Return what the pytest of the demo needs, and no more: it prints the same in every venv."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return ours | {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "rankwise.pytest_plugin.plugin",
        # Ranks have no terminal that they could ask.
        "COLUMNS": str(min(100, shutil.get_terminal_size().columns)),
    }


def run(command: Sequence[str], folder: Path = HERE, *, expected: int) -> None:
    """Run a command with a time limit; what it prints goes straight to the reader.

    Raises DemoFailure if it leaves with another exit code than expected.
    """
    print(f"$ cd {os.path.relpath(folder)}\n$ {shlex.join(command)}", flush=True)
    try:
        job = subprocess.Popen(command, cwd=folder, env=environment(), stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise DemoFailure(f"{command[0]} is not on PATH: start the demo with `make demo`") from None
    try:
        code = job.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise DemoFailure(f"{command[0]} did not end within {LIMIT_SECONDS} s") from None
    finally:
        end(job)
    if code != expected:
        raise DemoFailure(f"exit code {expected} was expected, not {code}")


def end(job: subprocess.Popen[bytes]) -> None:
    """End an mpiexec that still runs; terminated, it ends its ranks, which killed it could not."""
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()


def read_outcomes(report: Path) -> dict[str, str]:
    """Read the verdict on each test from a JUnit file.

    Raises DemoFailure when there is none.
    """
    if not report.exists():
        raise DemoFailure("pytest wrote no JUnit file")
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        module = case.get("classname", "").removeprefix("tests.")
        outcomes[f"{module}::{case.get('name')}"] = verdict_on(case)
    return outcomes


def verdict_on(case: ElementTree.Element) -> str:
    """Say how a test came out and, if the report says so, on which ranks."""
    for child in case:
        if child.tag in ("failure", "error", "skipped"):
            ranks = re.match(r"\[(.+?)\]", child.get("message", ""))
            word = {"failure": "failed"}.get(child.tag, child.tag)
            return f"{word} on {ranks[1]}" if ranks else word
    return "passed"


def compare(outcomes: Mapping[str, str]) -> None:
    """Raise DemoFailure unless every test came out as expected."""
    differences = [
        f"  {name}: expected {EXPECTED.get(name, 'no such test')}, "
        f"came out {outcomes.get(name, 'not run')}"
        for name in sorted(EXPECTED.keys() | outcomes.keys())
        if EXPECTED.get(name) != outcomes.get(name)
    ]
    if differences:
        raise DemoFailure("\n".join(["not every test came out as it should:", *differences]))


def run_tests() -> None:
    """Run the tests, and see that one failed and the others did not."""
    with tempfile.TemporaryDirectory(prefix="rankwise-demo-") as folder:
        report = Path(folder) / "report.xml"
        colour = ["--color=yes"] if sys.stdout.isatty() and "NO_COLOR" not in os.environ else []
        command = ["mpiexec", "-n", "4", "pytest", "--scheduler=dynamic", *colour]
        run([*command, f"--junitxml={report}"], expected=1)
        compare(read_outcomes(report))


def run_jobs() -> None:
    """Run the job that works and the one that does not, and see that its culprit was found."""
    run(["rankwise", "run", "pi.yaml"], JOBS, expected=0)
    print()
    run(["rankwise", "run", "broken.yaml"], JOBS, expected=1)
    ends = sorted((JOBS / ".rankwise" / "runs").glob("broken-*/broken/1/end.json"), key=_age)
    culprit = json.loads(ends[0].read_bytes())["culprit"] if ends else "no rank"
    if culprit != "rank-2":
        raise DemoFailure(f"rank-2 is to blame for the broken job, not {culprit}")


def _age(path: Path) -> float:
    return -path.stat().st_mtime


def again() -> str:
    """Say how to look at the run that failed, with the rankwise that ran it."""
    program = shutil.which("rankwise") or "rankwise"
    shown = os.path.relpath(program) if "/" in program else program
    return f"{shown} explain --store {os.path.relpath(JOBS)}/.rankwise    why it failed, once more"


def main() -> int:
    try:
        print(BEFORE)
        run_tests()
        print(f"\n{AFTER_TESTS}")
        run_jobs()
        print(f"\n{AFTER_JOBS.format(again=again())}", end="")
    except DemoFailure as failure:
        print(f"\nThe demo failed: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nThe demo was interrupted.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
