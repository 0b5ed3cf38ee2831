"""Two hundred runs in which something dies or hangs: every test has its one true verdict.

A suite is a module of innocent tests with none, one or two faulty ones among them. Which fault, on
which rank, in which phase, and how the ranks are started, is drawn from a seed; what must come of
it is worked out here from the same draw, with nothing of rankwise in it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from tests.acceptance.conftest import require
from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.leftovers import check_that_nothing_is_left, short_folder
from tests.lengths import part

WORKERS = 3
BATCHES = 10
BATCHES_TO_RUN = part(1, BATCHES)
RUNS_IN_A_BATCH = part(12, 20)

Phase = Literal["setup", "call", "teardown"]
PHASES: Sequence[Phase] = ("setup", "call", "teardown")

# How each innocent test ends: the reports of its setup and of its call.
INNOCENT = {
    "pass": ("passed", "passed"),
    "assert": ("passed", "failed"),
    "assert_on_one": ("passed", "failed"),
    "skip": ("passed", "skipped"),
    "xfail": ("passed", "xfailed"),
    "assert_in_setup": ("failed", ""),
}

# What is said of a rank that ends in each of these ways; those that hang are rare, for they take long.
CRASHES: Mapping[str, str | tuple[str, ...]] = {
    "SIGSEGV": "was killed by SIGSEGV (segmentation fault)",
    "SIGKILL": "was killed by SIGKILL",
    "SIGABRT": "was killed by SIGABRT (abort)",
    "exit 0": "exited with code 0",
    "exit 3": "exited with code 3",
    # With Open MPI, it is mpirun that prints why.
    "abort": ("exited with code 5", "called MPI_Abort (exit code 5)"),
}
HANGS = ("receive", "loop", "lock")

CONFTEST = """
    import os
    import signal
    import time

    import pytest


    def commit(fault, comm):
        if fault.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, fault))
            time.sleep(1000)
        if fault.startswith("exit"):
            os._exit(int(fault[5:]))
        if fault == "abort":
            comm.Abort(5)
        if fault == "raise":
            raise ValueError("drawn")
        if fault == "receive":
            comm.recv(source=comm.rank, tag=77)
        if fault == "loop":
            while True:
                pass
        if fault == "lock":
            sum(range(10**12))


    def act(comm, phase, *, fault, when, ranks, meet):
        if phase != when:
            return
        if comm.rank in ranks:
            commit(fault, comm)
        elif meet:
            comm.Barrier()


    @pytest.fixture
    def fault(request, comm):
        plan = request.module.PLANS[request.node.originalname]
        act(comm, "setup", **plan)
        yield
        act(comm, "teardown", **plan)


    @pytest.fixture
    def wrong():
        assert "setup" == "right"
"""

BODIES = {
    "pass": "assert comm.allreduce(1) == comm.size",
    "assert": 'assert comm.allreduce(1) == 0, "own words"',
    "assert_on_one": 'assert comm.rank != comm.size - 1, "own words"',
    "skip": 'pytest.skip("drawn")',
    "xfail": 'pytest.xfail("drawn")',
    "assert_in_setup": "pass",
}


@dataclass(frozen=True, kw_only=True)
class Test:
    """A test of a drawn suite; an innocent one has no ranks that commit a fault."""

    __test__ = False  # not for pytest to collect here

    name: str
    size: int
    world: bool
    deed: str
    when: Phase = "call"
    ranks: tuple[int, ...] = ()
    meet: bool = False

    @property
    def plan(self) -> dict[str, object]:
        return {"fault": self.deed, "when": self.when, "ranks": self.ranks, "meet": self.meet}

    @property
    def source(self) -> str:
        mark = f"@mark.parallel({self.size}, world={self.world})\n"
        if self.ranks:
            body = f"act(comm, 'call', **PLANS[{self.name!r}])"
            return f"{mark}def {self.name}(comm, fault): {body}\n"
        wrong = ", wrong" if self.deed == "assert_in_setup" else ""
        # However busy the machine is, these must not take too long.
        return (
            f"@pytest.mark.timeout(100)\n{mark}def {self.name}(comm{wrong}): {BODIES[self.deed]}\n"
        )

    @property
    def expected(self) -> list[tuple[str, str]]:
        """The reports on this test, all of them."""
        if self.ranks:
            outcomes = ["failed" if phase == self.when else "passed" for phase in PHASES]
            setup, call, teardown = outcomes
        else:
            (setup, call), teardown = INNOCENT[self.deed], "passed"
        reports = [("setup", setup), ("call", call), ("teardown", teardown)]
        return reports if setup == "passed" else [reports[0], reports[2]]


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A suite and the way to run it."""

    seed: int
    mpi: str
    options: tuple[str, ...]
    tests: tuple[Test, ...]

    @property
    def source(self) -> str:
        plans = {test.name: test.plan for test in self.tests if test.ranks}
        tests = "\n".join(test.source for test in self.tests)
        return (
            "import pytest\nfrom conftest import act\nfrom rankwise import mark\n\n"
            f"PLANS = {plans!r}\n\n{tests}"
        )

    @property
    def fails(self) -> bool:
        return any(what == "failed" for test in self.tests for _, what in test.expected)


def draw_innocent(chance: random.Random, name: str) -> Test:
    deed = chance.choices(list(INNOCENT), weights=(8, 1, 1, 1, 1, 1))[0]
    return Test(
        name=name, size=chance.choice((1, 1, 2, 2, 3)), world=chance.random() < 0.1, deed=deed
    )


def draw_fault(chance: random.Random, name: str) -> Test:
    size = chance.choice((1, 2, 2, 3, 3))
    kind = chance.choices(("crash", "raise", "hang"), weights=(12, 2, 2))[0]
    deed = {
        "crash": chance.choice(list(CRASHES)),
        "raise": "raise",
        "hang": chance.choice(HANGS),
    }[kind]
    ranks = [chance.randrange(size)]
    if chance.random() < 0.1:
        ranks = list(range(size))
    return Test(
        name=name,
        size=size,
        world=chance.random() < 0.2,
        deed=deed,
        when=chance.choices(PHASES, weights=(1, 2, 1))[0],
        ranks=tuple(ranks),
        meet=chance.random() < 0.7,
    )


def draw(seed: int) -> Draw:
    chance = random.Random(seed)
    tests = [draw_innocent(chance, f"test_{number}") for number in range(chance.randint(4, 7))]
    for number in range(chance.choice((0, 1, 1, 1, 2, 2))):
        place = chance.randint(0, len(tests))
        tests.insert(place, draw_fault(chance, f"test_fault_{number}"))
    options = [
        f"--scheduler={chance.choice(('pool', 'pool', 'shell'))}",
        f"--policy={chance.choice(('dynamic', 'dynamic', 'static', 'sequential'))}",
    ]
    if chance.random() < 0.05:
        options.append("--no-warm-start")
    mpi = chance.choice(("mpich", "mpich", "mpich", "openmpi5"))
    return Draw(seed=seed, mpi=mpi, options=tuple(options), tests=tuple(tests))


def run(drawn: Draw, folder: Path) -> str:
    """Make a run; gives what is wrong with it, which is nothing."""
    folder.mkdir()
    project = Project(folder, require(drawn.mpi))
    project.write({"conftest.py": CONFTEST, "test_drawn.py": drawn.source})
    with short_folder() as temporary:
        outcome = run_pytest(
            project,
            *(f"--n-workers={WORKERS}", *drawn.options),
            *("--rank-grace=0.5", "--test-timeout=1.5"),
            ranks=None,
            limit=100.0,
            environment={"TMPDIR": str(temporary)},
        )
        check_that_nothing_is_left(project, temporary)
    wrong = list(mistakes(drawn, outcome))
    if not wrong:
        return ""
    return "\n".join((f"seed {drawn.seed}, {drawn.mpi}", *wrong, drawn.source, str(outcome)))


def mistakes(drawn: Draw, outcome: Outcome) -> list[str]:
    """Say in what a run differs from the draw."""
    found: dict[str, list[tuple[str, str]]] = {test.name: [] for test in drawn.tests}
    for nodeid, when, what in outcome.reports:
        found.setdefault(nodeid.partition("::")[2], []).append((when, what))
    expected = {test.name: test.expected for test in drawn.tests}
    wrong = [
        f"{name}: expected {expected.get(name)}, reported {reports}"
        for name, reports in found.items()
        if reports != expected.get(name)
    ]
    if outcome.exit_code != int(drawn.fails):
        wrong.append(f"exit code {outcome.exit_code}")
    crashes = {test.name: blame(test) for test in drawn.tests if test.deed in CRASHES}
    return wrong + [
        f"{name}: nothing like {words!r}"
        for name, words in crashes.items()
        if not re.search(words, outcome.output)
    ]


def blame(test: Test) -> str:
    """Return a regular expression for how the output tells of a crash."""
    who = f"rank {test.ranks[0]} of {test.size}" if test.size > 1 else "its rank"
    if len(test.ranks) > 1:
        who = r"(?:ranks? [-\d, ]+ of \d|all \d ranks)"
    said = CRASHES[test.deed]
    ways = [said] if isinstance(said, str) else said
    how = f"(?:{'|'.join(map(re.escape, ways))})"
    if len(test.ranks) > 1:
        how = how.replace("was", "(?:was|were)")
    return rf"{test.name} _+\nE   {who} {how}.* in {test.when}\n"


@pytest.mark.parametrize("batch", range(BATCHES_TO_RUN))
def test_whatever_dies_or_hangs_every_test_has_its_one_true_verdict(
    tmp_path: Path, batch: int
) -> None:
    seeds = range(batch * RUNS_IN_A_BATCH, (batch + 1) * RUNS_IN_A_BATCH)
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run, draw(seed), tmp_path / str(seed)) for seed in seeds]
        wrong = [found for found in (one.result() for one in runs) if found]
    assert not wrong, f"{len(wrong)} of {len(seeds)} runs\n" + "\n\n".join(wrong)


def test_the_drawn_runs_have_everything_in_them() -> None:
    """A draw that never crashes in a teardown of a fresh process would prove nothing about it."""
    runs = [draw(seed) for seed in range(BATCHES * RUNS_IN_A_BATCH)]
    faults = [(run.options[0], test) for run in runs for test in run.tests if test.ranks]
    assert {(test.deed, test.when) for _, test in faults} >= {
        (deed, when) for deed in CRASHES for when in PHASES
    }
    for scheduler in ("pool", "shell"):
        drawn = [test for option, test in faults if option.endswith(scheduler)]
        assert {test.deed for test in drawn} == {*CRASHES, *HANGS, "raise"}
        assert {test.when for test in drawn} == {*PHASES}
        assert {len(test.ranks) for test in drawn if test.size == 3} == {1, 3}
    assert {option for run in runs for option in run.options} == {
        *("--scheduler=pool", "--scheduler=shell", "--no-warm-start"),
        *(f"--policy={policy}" for policy in ("dynamic", "static", "sequential")),
    }
    assert {run.mpi for run in runs} == {"mpich", "openmpi5"}
    assert {sum(bool(test.ranks) for test in run.tests) for run in runs} == {0, 1, 2}
