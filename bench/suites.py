"""Write the suites that are run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from bench.spellings import RANKWISE, SERIAL, Spelling
from rankwise.pytest_plugin.schedulers.base import ScheduledTest

_TESTS_IN_A_MODULE = 100

# Loaded by every process; one reports, and sees all tests: rank 0 of an mpirun, or the pytest that
# has started a pool. The ranks of a pool are told so by `workerinput`.
_SPAN_RECORDER = """
import json, os
from pathlib import Path

times = []

def pytest_runtest_logreport(report):
    times.extend((report.start, report.stop))

def pytest_sessionfinish(session):
    reports = not hasattr(session.config, "workerinput")
    if reports and os.environ.get("PMI_RANK", "0") == "0":
        Path(os.environ["BENCH_SPAN"]).write_text(json.dumps(max(times) - min(times)))
"""

# A core dump would take longer than what is measured.
_FAULTY_OPENING = """
import os, resource, signal, time

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

"""
_SERIAL_FAULT = "def test_{name}():\n    {deed}\n\n"
# The other rank waits for the faulty one, as it mostly does.
_TWO_RANK_FAULT = """
@mark.parallel(2)
def test_{name}(comm):
    if comm.rank == 1:
        {deed}
    comm.barrier()

"""


class Fault(Enum):
    """What a test may do that no test should."""

    CRASH = "os.kill(os.getpid(), signal.SIGSEGV)"
    HANG = "time.sleep(3600)"


def write(folder: Path, count: int, spelling: Spelling, *, imports: Sequence[str] = ()) -> Path:
    """Write trivial tests, in modules that begin with these imports."""
    _make(folder, spelling.conftest)
    opening = "".join(f"import {name}\n" for name in imports) + spelling.opening
    for first in range(0, count, _TESTS_IN_A_MODULE):
        numbers = range(first, min(count, first + _TESTS_IN_A_MODULE))
        module = opening + "".join(spelling.test.format(number=number) for number in numbers)
        (folder / f"test_{first:06}.py").write_text(module)
    return folder


def write_faulty(folder: Path, count: int, faults: Sequence[Fault]) -> Path:
    """Write trivial tests on one and on two ranks in turn, and spread the faults among them."""
    _make(folder, "")
    step = count // len(faults) if faults else count + 1
    opening = _FAULTY_OPENING + RANKWISE.opening
    for first in range(0, count, _TESTS_IN_A_MODULE):
        module = opening
        for number in range(first, min(count, first + _TESTS_IN_A_MODULE)):
            module += (RANKWISE if number % 2 else SERIAL).test.format(number=number)
            if number % step == step - 1:
                module += _spell(faults[number // step], number // step)
        (folder / f"test_{first:06}.py").write_text(module)
    return folder


def _spell(fault: Fault, number: int) -> str:
    test = _TWO_RANK_FAULT if number % 2 else _SERIAL_FAULT
    return test.format(name=f"{fault.name.lower()}_{number}", deed=fault.value)


def _make(folder: Path, conftest: str) -> None:
    folder.mkdir(parents=True)
    # Its own root: nothing above this folder is looked for or read.
    (folder / "pytest.ini").write_text("[pytest]\n")
    if conftest:
        (folder / "conftest.py").write_text(conftest)


def mixed(count: int, width: int, area: float, seed: int) -> list[ScheduledTest]:
    """Draw tests of all sizes, of which a few are much longer than the others.

    Together they take `area` seconds times ranks.
    """
    chance = random.Random(seed)
    sizes = [chance.randint(1, width) for _ in range(count)]
    weights = [chance.lognormvariate(0.0, 1.0) for _ in range(count)]
    scale = area / sum(size * weight for size, weight in zip(sizes, weights, strict=True))
    return [
        ScheduledTest(index=index, size=size, seconds=round(weight * scale, 4))
        for index, (size, weight) in enumerate(zip(sizes, weights, strict=True))
    ]


def write_sleeping(folder: Path, cases: Sequence[ScheduledTest]) -> Path:
    """Write tests that wait for as long as the cases say, and note when the first and last ran."""
    _make(folder, _SPAN_RECORDER)
    lines = ["import time", "from rankwise import mark", ""]
    for case in cases:
        lines += [
            f"@mark.parallel({case.size})",
            f"def test_{case.index}(comm):",
            f"    time.sleep({case.seconds})",
            "",
        ]
    (folder / "test_sleeping.py").write_text("\n".join(lines))
    return folder


def many(count: int, seed: int) -> list[ScheduledTest]:
    """Draw a suite for a large machine: powers of two, mostly small, a few up to 512 ranks."""
    chance = random.Random(seed)
    cases = []
    for index in range(count):
        wide = chance.random() < 0.03
        size = 2 ** (chance.randint(4, 9) if wide else min(3, int(chance.expovariate(1.0))))
        seconds = min(60.0, chance.lognormvariate(0.0, 1.0))
        cases.append(ScheduledTest(index=index, size=size, seconds=seconds))
    return cases
