"""A document with 10,000 tests: how soon `rankwise plan` has planned them all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from bench.contestants import Contestant
from bench.environment import program
from bench.measure import take_turns
from bench.table import Table, judge

_TESTS = 10_000
_TARGET_SECONDS = 2.0
_MOST_REPETITIONS = 5


def run(folder: Path, repetitions: int) -> Table:
    rounds = min(repetitions, _MOST_REPETITIONS)
    contestants = [
        _contestant(folder / "lines", "a line each", _write_lines),
        _contestant(folder / "scripts", "scripts found by a pattern", _write_scripts),
    ]
    table = Table(
        title=f"rankwise plan of a suite of {_TESTS} tests; medians of {rounds}",
        headings=("wall s", "CPU s", "peak MB", "target"),
    )
    for result in take_turns(contestants, rounds):
        table.rows.append(
            (
                result.contestant.name,
                f"{result.wall:.2f}",
                f"{result.cpu:.2f}",
                f"{result.memory / 1e6:.0f}",
                judge(result.wall, _TARGET_SECONDS),
            )
        )
    table.remarks.append("From the file to the last line on the screen.")
    return table


def _contestant(folder: Path, name: str, write: Callable[[Path], None]) -> Contestant:
    def prepare() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write(folder)

    return Contestant(
        name=name,
        command=program("rankwise", "plan", "suite.yaml"),
        folder=folder,
        shows=f"suite: Suite, {_TESTS} tasks",
        prepare=prepare,
    )


def _write_lines(folder: Path) -> None:
    tests = "".join(f"- echo test {number}\n" for number in range(_TESTS))
    (folder / "suite.yaml").write_text(f"type: Suite\ntests:\n{tests}")


def _write_scripts(folder: Path) -> None:
    (folder / "suite.yaml").write_text("type: Suite\ntests:\n- files: 'tests/*_test.py'\n")
    (folder / "tests").mkdir()
    for number in range(_TESTS):
        text = f"# rankwise: ranks={1 + number % 4} timeout=60\n"
        (folder / "tests" / f"{number}_test.py").write_text(text)
