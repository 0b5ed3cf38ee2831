"""Write the suites that are run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from rankwise.testing.policy import Case

_TESTS_IN_A_MODULE = 100

_WORLD_FIXTURE = """
import pytest
from mpi4py import MPI

@pytest.fixture
def comm():
    return MPI.COMM_WORLD
"""

# Loaded by every rank; rank 0 is the one that reports, and sees all tests.
_SPAN_RECORDER = """
import json, os
from pathlib import Path

times = []

def pytest_runtest_logreport(report):
    times.extend((report.start, report.stop))

def pytest_sessionfinish():
    if os.environ.get("PMI_RANK", "0") == "0":
        Path(os.environ["BENCH_SPAN"]).write_text(json.dumps(max(times) - min(times)))
"""


def write_serial(folder: Path, count: int) -> Path:
    """Write tests on one rank that do next to nothing."""
    return _write(folder, count, "", "def test_{number}():\n    assert True\n\n")


def write_two_rank(folder: Path, count: int) -> Path:
    """Write tests that only look at their communicator, with rankwise's mark and fixture."""
    test = "@mark.parallel(2)\ndef test_{number}(comm):\n    assert comm.size == 2\n\n"
    return _write(folder, count, "from rankwise import mark\n\n", test)


def write_two_rank_by_hand(folder: Path, count: int) -> Path:
    """Write the same tests as one would without any plugin: on the world's communicator."""
    path = _write(folder, count, "", "def test_{number}(comm):\n    assert comm.size == 2\n\n")
    (folder / "conftest.py").write_text(_WORLD_FIXTURE)
    return path


def _write(folder: Path, count: int, opening: str, test: str) -> Path:
    folder.mkdir(parents=True)
    # Its own root: nothing above this folder is looked for or read.
    (folder / "pytest.ini").write_text("[pytest]\n")
    for first in range(0, count, _TESTS_IN_A_MODULE):
        numbers = range(first, min(count, first + _TESTS_IN_A_MODULE))
        module = opening + "".join(test.format(number=number) for number in numbers)
        (folder / f"test_{first:06}.py").write_text(module)
    return folder


def mixed(count: int, width: int, area: float, seed: int) -> list[Case]:
    """Draw tests of all sizes, of which a few are much longer than the others.

    Together they take `area` seconds times ranks.
    """
    chance = random.Random(seed)
    sizes = [chance.randint(1, width) for _ in range(count)]
    weights = [chance.lognormvariate(0.0, 1.0) for _ in range(count)]
    scale = area / sum(size * weight for size, weight in zip(sizes, weights, strict=True))
    return [
        Case(index=index, size=size, seconds=round(weight * scale, 4))
        for index, (size, weight) in enumerate(zip(sizes, weights, strict=True))
    ]


def write_sleeping(folder: Path, cases: Sequence[Case]) -> Path:
    """Write tests that wait for as long as the cases say, and note when the first and last ran."""
    folder.mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(_SPAN_RECORDER)
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


def many(count: int, seed: int) -> list[Case]:
    """Draw a suite for a large machine: powers of two, mostly small, a few up to 512 ranks."""
    chance = random.Random(seed)
    cases = []
    for index in range(count):
        wide = chance.random() < 0.03
        size = 2 ** (chance.randint(4, 9) if wide else min(3, int(chance.expovariate(1.0))))
        seconds = min(60.0, chance.lognormvariate(0.0, 1.0))
        cases.append(Case(index=index, size=size, seconds=seconds))
    return cases
