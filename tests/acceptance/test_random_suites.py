"""A thousand suites made at random: every scheduler gives the verdicts of the rules.

A suite is a module. Each of its tests does, on each of its ranks and in each of its phases, what a
draw from a seed has decided; what must come of it is worked out here from the same draw, with
nothing of rankwise in it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pytest

from tests.acceptance.harness import Outcome, Project
from tests.lengths import part

RANKS = 4
BATCHES = 5
BATCHES_TO_RUN = part(1, BATCHES)
ALL_SUITES = 1000
SUITES_IN_A_BATCH = part(80, ALL_SUITES // BATCHES)

Phase = Literal["setup", "call", "teardown"]
PHASES: Sequence[Phase] = ("setup", "call", "teardown")

MARKS = {
    "": "",
    "xfail": '@pytest.mark.xfail(reason="expected")',
    "strict": '@pytest.mark.xfail(reason="expected", strict=True)',
    "raises": '@pytest.mark.xfail(raises=ValueError, reason="expected")',
    "skip": '@pytest.mark.skip(reason="by mark")',
}

CONFTEST = """
    import pytest
    from mpi4py.MPI import COMM_WORLD

    def act(action):
        if action == "assert":
            assert action == "what it should be"
        if action == "raise":
            raise ValueError("drawn")
        if action == "skip":
            pytest.skip("drawn")
        if action == "xfail":
            pytest.xfail("drawn")

    @pytest.fixture
    def deed(request, comm):
        plan = request.module.PLANS[request.node.originalname]
        assert COMM_WORLD.allreduce(1) == comm.size, "reaches ranks of other tests, or too few"
        act(plan["setup"].get(comm.rank))
        yield plan["call"].get(comm.rank)
        act(plan["teardown"].get(comm.rank))
"""


@dataclass(frozen=True, kw_only=True)
class Test:
    """A test of a drawn suite: what it does on which rank."""

    __test__ = False  # not for pytest to collect here

    name: str
    size: int
    mark: str
    plan: dict[Phase, dict[int, str]]

    @property
    def source(self) -> str:
        marks = "\n".join(filter(None, (MARKS[self.mark], f"@pytest.mark.parallel({self.size})")))
        # Ranks that all come to the end meet there; with one missing they would wait for ever.
        meeting = "" if self.plan["call"] else "; assert comm.allreduce(1) == comm.size"
        return f"{marks}\ndef {self.name}(comm, deed): act(deed){meeting}\n"


def draw_test(chance: random.Random, name: str) -> Test:
    size = chance.choice((1, 1, 1, 2, 2, 3, 4, RANKS + 1))
    plan: dict[Phase, dict[int, str]] = {phase: {} for phase in PHASES}
    actions: dict[Phase, Sequence[str]] = {
        "setup": ("assert", "raise", "skip", "xfail"),
        "call": ("assert", "assert", "raise", "skip", "xfail"),
        "teardown": ("assert", "raise"),
    }
    if chance.random() < 0.6:
        for phase in chance.choices(PHASES, weights=(1, 4, 1), k=chance.choice((1, 1, 1, 2))):
            affected = chance.sample(range(size), chance.randint(1, size))
            # Ranks fail in the same way more often than each in its own.
            common = chance.choice(actions[phase]) if chance.random() < 0.6 else None
            for rank in affected:
                plan[phase][rank] = common or chance.choice(actions[phase])
    mark = chance.choices(list(MARKS), weights=(12, 2, 2, 1, 1))[0]
    return Test(name=name, size=size, mark=mark, plan=plan)


def draw_suite(seed: int) -> list[Test]:
    chance = random.Random(seed)
    return [draw_test(chance, f"test_{number}") for number in range(chance.randint(1, 6))]


def write(suite: Sequence[Test]) -> str:
    plans = {test.name: test.plan for test in suite}
    tests = "\n".join(test.source for test in suite)
    return f"import pytest\nfrom conftest import act\n\nPLANS = {plans!r}\n\n{tests}"


# The rules


def outcome_on_a_rank(action: str | None, mark: str, phase: Phase) -> str:
    """What pytest makes of one process's part in one phase."""
    if action is None:
        if phase == "call" and mark in ("xfail", "raises"):
            return "xpassed"
        if phase == "call" and mark == "strict":
            return "too good"
        return "passed"
    if action == "skip":
        return "skipped"
    if action == "xfail":
        return "xfailed"
    if mark in ("xfail", "strict") or (mark == "raises" and action == "raise"):
        return "xfailed"
    return "failed"


def outcome_of_all(outcomes: Sequence[str]) -> str:
    """What one report says of all ranks."""
    for decisive in ("failed", "xfailed", "too good", "skipped"):
        if decisive in outcomes:
            return "failed" if decisive == "too good" else decisive
    return outcomes[0]


def expected_reports(test: Test) -> list[tuple[str, str]]:
    if test.size > RANKS or test.mark == "skip":
        return [("setup", "skipped"), ("teardown", "passed")]
    reports: list[tuple[str, str]] = []
    for phase in PHASES:
        if phase == "call" and reports != [("setup", "passed")]:
            continue
        outcomes = []
        for rank in range(test.size):
            # A fixture that has raised has no second half.
            broken = phase == "teardown" and rank in test.plan["setup"]
            action = None if broken else test.plan[phase].get(rank)
            outcomes.append(outcome_on_a_rank(action, test.mark, phase))
        reports.append((phase, outcome_of_all(outcomes)))
    return reports


def reports_by_test(outcome: Outcome) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for nodeid, when, what in outcome.reports:
        found.setdefault(nodeid, []).append((when, what))
    return found


@pytest.mark.parametrize("batch", range(BATCHES_TO_RUN))
def test_all_schedulers_give_every_test_of_the_drawn_suites_its_verdict(
    project: Project, batch: int
) -> None:
    seeds = range(batch * SUITES_IN_A_BATCH, (batch + 1) * SUITES_IN_A_BATCH)
    suites = {f"test_suite_{seed:04}.py": draw_suite(seed) for seed in seeds}
    project.write({name: write(suite) for name, suite in suites.items()})
    project.write({"conftest.py": CONFTEST})
    expected = {
        f"{name}::{test.name}": expected_reports(test)
        for name, suite in suites.items()
        for test in suite
    }
    for scheduler in ("sequential", "static", "dynamic"):
        outcome = project.pytest(
            *("-p", "no:randomly", "-p", "no:asyncio", "--tb=line", "--assert=plain", "-q"),
            f"--scheduler={scheduler}",
            ranks=RANKS,
            limit=120.0,
        )
        found = reports_by_test(outcome)
        wrong = {
            nodeid: {"expected": expected.get(nodeid), "reported": found.get(nodeid)}
            for nodeid in sorted(expected.keys() | found.keys())
            if expected.get(nodeid) != found.get(nodeid)
        }
        assert not wrong, f"{scheduler}: {len(wrong)} wrong\n{outcome.errors}"
        assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome


def test_the_drawn_suites_have_everything_in_them() -> None:
    """A draw that never fails in a teardown on one rank only would prove nothing about it."""
    tests = [test for seed in range(ALL_SUITES) for test in draw_suite(seed)]
    reports = {
        (test.size, *report)
        for test in tests
        for report in expected_reports(test)
        if test.size <= RANKS
    }
    for size in range(1, RANKS + 1):
        for outcome in ("passed", "failed", "skipped", "xfailed"):
            assert (size, "setup", outcome) in reports
            assert (size, "call", outcome) in reports
        assert (size, "call", "xpassed") in reports
        assert (size, "teardown", "failed") in reports
    partly = [
        test for test in tests if any(0 < len(ranks) < test.size for ranks in test.plan.values())
    ]
    assert len(partly) > 500
