"""A runtime that was made before: what it costs to have it again, beside making one anew."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.contestants import Contestant
from bench.environment import ROOT, Framework, prepare, program, variables
from bench.measure import BenchError, take_turns
from bench.table import Table, judge

_TARGET_SECONDS = 0.5
_PACKAGES = ("numpy", "ipykernel")

_OURS = Framework(
    name="bench-runtimes",
    folder=ROOT / ".venvs" / "bench-runtimes",
    requirements=("-e", ".[uv]"),
    library="uv",
    arguments=("-c", "import importlib.metadata as about\nprint(2, 'uv', about.version('uv'))"),
)


def run(folder: Path, repetitions: int) -> Table:
    prepare(_OURS)
    of_ours = {name: _matrix(folder, name) for name in ("current", "made")}
    names = ("rankwise run, in its own environment", "rankwise run, in one that is kept")
    contestants = [
        Contestant(
            name=name,
            command=program("rankwise", "run", str(file), environment=_OURS),
            folder=folder,
            shows="passed",
        )
        for name, file in zip(names, of_ours.values(), strict=True)
    ]
    contestants.append(
        Contestant(
            name="uv venv, uv pip install, from its cache",
            command=["sh", "-c", _by_hand(folder)],
            folder=folder,
            shows="done",
        )
    )
    # Made here, and kept from now on; packages come from wherever this machine has them.
    _do(contestants[1].command, folder)
    _do(contestants[2].command, folder)
    own, kept, by_hand = results = take_turns(contestants, repetitions)
    table = Table(
        title=f"A runtime with {' and '.join(_PACKAGES)}; medians of {repetitions}",
        headings=("wall s", "for the runtime", "CPU s", "target"),
    )
    for result in results:
        if result.obstacle is not None:
            raise BenchError(f"{result.contestant.name} {result.obstacle}")
        beyond = result.wall - own.wall if result is kept else result.wall
        table.rows.append(
            (
                result.contestant.name,
                f"{result.wall:.2f}",
                "" if result is own else f"{beyond:.2f}",
                f"{result.cpu:.2f}",
                judge(beyond, _TARGET_SECONDS) if result is kept else "",
            )
        )
    table.remarks.append("For the runtime: beyond the same run in rankwise's own environment.")
    assert by_hand.obstacle is None
    return table


def _matrix(folder: Path, name: str) -> Path:
    runtime = "current" if name == "current" else json.dumps({"requirements": _PACKAGES})
    path = folder / f"{name}.yaml"
    path.write_text(
        f"type: Matrix\nname: {name}\nruntimes: {{one: {runtime}}}\nmachines: {{here: local}}\n"
        "tests: [{run: 'true', name: nothing}]\n"
    )
    return path


def _by_hand(folder: Path) -> str:
    uv, place = shlex.quote(program("uv", environment=_OURS)[0]), shlex.quote(f"{folder}/by-hand")
    packages = shlex.join(_PACKAGES)
    make = f"{uv} venv --quiet --clear {place}"
    return f"{make} && {uv} pip install --quiet --python {place} {packages} && echo done"


def _do(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, env=variables(_OURS), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchError(f"{shlex.join(command)}: {(done.stdout + done.stderr)[-500:]}")
