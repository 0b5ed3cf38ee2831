"""Stages of pipelines: what each costs beyond the process that it runs."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.contestants import Contestant
from bench.environment import program
from bench.measure import take_turns
from bench.table import Table, judge

_STAGES = 300
_TARGET_MILLISECONDS = 20.0
_MOST_REPETITIONS = 3
_MOST_SECONDS = 600.0


def run(folder: Path, repetitions: int) -> Table:
    rounds = min(repetitions, _MOST_REPETITIONS)
    contestants = [
        _pipeline(folder / "row", "a row of stages", is_row=True),
        _pipeline(folder / "wide", "stages side by side", is_row=False),
        _processes(folder / "bare"),
    ]
    row, wide, bare = take_turns(contestants, rounds)
    table = Table(
        title=f"A pipeline of {_STAGES} stages of `true`; medians of {rounds}",
        headings=("wall s", "ms a stage", "beyond its process", "CPU ms", "peak MB", "target"),
    )
    for result in (row, wide, bare):
        name = result.contestant.name
        if result.obstacle or bare.obstacle:
            table.rows.append((name, *("-" for _ in table.headings)))
            table.remarks += [f"{name} {result.obstacle}"] if result.obstacle else []
            continue
        each = 1000 * result.wall / _STAGES
        beyond = each - 1000 * bare.wall / _STAGES
        is_ours = result is not bare
        table.rows.append(
            (
                name,
                f"{result.wall:.2f}",
                f"{each:.1f}",
                f"{beyond:.1f}" if is_ours else "",
                f"{1000 * result.cpu / _STAGES:.1f}",
                f"{result.memory / 1e6:.0f}",
                judge(beyond, _TARGET_MILLISECONDS if is_ours else None),
            )
        )
    table.remarks.append("Its process: bash, started anew for each line by a shell in a loop.")
    return table


def _pipeline(folder: Path, name: str, *, is_row: bool) -> Contestant:
    first = ["  s0: 'true'\n"]
    others = [
        f"  s{n}: {{run: 'true', needs: s{n - 1 if is_row else 0}}}\n" for n in range(1, _STAGES)
    ]
    text = "".join(["type: Pipeline\nname: bench\nstages:\n", *first, *others])

    def prepare() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "pipeline.yaml").write_text(text)

    return Contestant(
        name=f"rankwise run ({name})",
        command=program("rankwise", "run", "pipeline.yaml"),
        folder=folder,
        shows=f"{_STAGES} tasks: {_STAGES} passed",
        prepare=prepare,
        most_seconds=_MOST_SECONDS,
        variables={"HOME": str(folder), "TMPDIR": str(folder)},
    )


def _processes(folder: Path) -> Contestant:
    loop = f"for i in $(seq {_STAGES}); do bash -c true; done; echo all done"

    def prepare() -> None:
        folder.mkdir(parents=True, exist_ok=True)

    return Contestant(
        name="bash -c true, in a loop",
        command=["/bin/sh", "-c", loop],
        folder=folder,
        shows="all done",
        prepare=prepare,
        most_seconds=_MOST_SECONDS,
    )
