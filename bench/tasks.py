"""Trivial tasks: what it costs to run one, and whether memory grows with their number."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.contestants import Contestant
from bench.environment import BENCH, program, python, variables
from bench.measure import Result, take_turns
from bench.peers import Peer, version
from bench.table import Table, judge

_AT_ONCE = 2
_TARGET_MILLISECONDS = 20.0
_FEW, _MANY = 100, 1000
# ReFrame takes ten times as long: this many show it as well.
_FEW_SLOW, _MANY_SLOW = 20, 100
# A round takes minutes, and is the sum of thousands of starts already.
_MOST_REPETITIONS = 3
_MOST_SECONDS = 1800.0

_DOCUMENT = """
name: {name}
type: command
command: "true"
"""
_SITE = f"""
[compute.local]
cores = {_AT_ONCE}
"""
_STORE = """
import sys, time
from pathlib import Path
from rankwise.planning import plan_from
from rankwise.store import Store

plan, text = plan_from([Path(name) for name in sys.argv[1:]])
with Store.open(Path(".rankwise")) as store:
    store.create_run(plan, text, now=time.time())
"""
_SNAKEFILE = """
rule all:
    input: expand("done/{{number}}", number=range({count}))

rule task:
    output: touch("done/{{number}}")
    shell: "true"
"""
_REFRAME = """
import reframe as rfm

@rfm.simple_test
class Task(rfm.RunOnlyRegressionTest):
    number = parameter(range({count}))
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    sourcesdir = None
    executable = "true"

    @sanity_function
    def has_run(self):
        return True
"""
_REFRAME_SETTINGS = f"""
partition = {{"name": "default", "scheduler": "local", "launcher": "local"}}
partition |= {{"environs": ["builtin"], "max_jobs": {_AT_ONCE}}}
site_configuration = {{
    "systems": [{{"name": "here", "hostnames": [".*"], "partitions": [partition]}}],
    "environments": [{{"name": "builtin"}}],
}}
"""


def run(folder: Path, repetitions: int) -> Table:
    rounds = min(repetitions, _MOST_REPETITIONS)
    entries = (
        (_documents, _FEW, _MANY),
        (_stored, _FEW, _MANY),
        (_snakemake, _FEW, _MANY),
        (_reframe, _FEW_SLOW, _MANY_SLOW),
    )
    few = take_turns([make(folder / f"{make.__name__}-few", n) for make, n, _ in entries], rounds)
    # The few have compiled and loaded everything.
    large = [make(folder / f"{make.__name__}-many", n) for make, _, n in entries]
    many = take_turns(large, rounds, is_warm=True)
    table = Table(
        title=f"Trivial tasks of one process each, {_AT_ONCE} at a time; medians of {rounds}",
        headings=("tasks", "wall s", "ms a task", "ms each further", "CPU ms", "peak MB", "target"),
    )
    for (_, least, most), small, big in zip(entries, few, many, strict=True):
        _add_rows(table, {least: small, most: big})
    table.remarks += [
        "A task: the whole command and all that it starts, divided by the tasks.",
        "Each further: what one task more adds to many.",
        "Peak: of the largest process, which is the command itself.",
        *_growth(few[:2], many[:2]),
        f"Peers: {', '.join(_versions(many)) or 'none'}.",
    ]
    return table


def _add_rows(table: Table, by_count: Mapping[int, Result]) -> None:
    least, most = by_count
    for count, result in by_count.items():
        name = result.contestant.name
        if any(one.obstacle for one in by_count.values()):
            table.rows.append((name, str(count), *("-" for _ in table.headings[1:])))
            table.remarks += [f"{name} {result.obstacle}"] if result.obstacle else []
            continue
        further = ""
        if count == most:
            more = result.wall - by_count[least].wall
            further = f"{1000 * more / (most - least):.1f}"
        each = 1000 * result.wall / count
        target = _TARGET_MILLISECONDS if count == _MANY and not result.contestant.peer else None
        table.rows.append(
            (
                name,
                str(count),
                f"{result.wall:.2f}",
                f"{each:.1f}",
                further,
                f"{1000 * result.cpu / count:.1f}",
                f"{result.memory / 1e6:.0f}",
                judge(each, target),
            )
        )


def _growth(few: Sequence[Result], many: Sequence[Result]) -> list[str]:
    return [
        f"{big.contestant.name}: {_MANY} tasks take {big.memory / small.memory:.2f} times the "
        f"memory of {_FEW}."
        for small, big in zip(few, many, strict=True)
    ]


def _versions(results: Sequence[Result]) -> list[str]:
    there = [one.contestant.peer for one in results if one.obstacle is None]
    return [f"{peer} {version(peer)}" for peer in there if peer is not None]


# Contestants, each of which is written anew before each run


def _contestant(
    name: str,
    command: Sequence[str],
    folder: Path,
    write: Callable[[], object],
    *,
    shows: str,
    peer: Peer | None = None,
) -> Contestant:
    def prepare() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write()

    return Contestant(
        name=name,
        command=command,
        folder=folder,
        shows=shows,
        peer=peer,
        prepare=prepare,
        most_seconds=_MOST_SECONDS,
        # Where they leave logs and what they remember.
        variables={"HOME": str(folder), "TMPDIR": str(folder)},
    )


def _documents(folder: Path, count: int) -> Contestant:
    names = _names(count)
    return _contestant(
        "rankwise run (a document each)",
        program("rankwise", "run", *names),
        folder,
        partial(_write_documents, folder, names),
        shows=f"{count} tasks: {count} passed",
    )


def _stored(folder: Path, count: int) -> Contestant:
    names = _names(count)

    def write() -> None:
        _write_documents(folder, names)
        subprocess.run(python("-c", _STORE, *names), cwd=folder, env=variables(BENCH), check=True)

    return _contestant(
        "rankwise resume (stored before)",
        program("rankwise", "resume"),
        folder,
        write,
        shows=f"{count} tasks: {count} passed",
    )


def _snakemake(folder: Path, count: int) -> Contestant:
    return _contestant(
        f"snakemake --cores {_AT_ONCE}",
        program("snakemake", "--cores", str(_AT_ONCE), environment=Peer.SNAKEMAKE.environment),
        folder,
        lambda: (folder / "Snakefile").write_text(_SNAKEFILE.format(count=count)),
        # One for `all`.
        shows=f"{count + 1} of {count + 1} steps (100%) done",
        peer=Peer.SNAKEMAKE,
    )


def _reframe(folder: Path, count: int) -> Contestant:
    def write() -> None:
        (folder / "settings.py").write_text(_REFRAME_SETTINGS)
        (folder / "tasks.py").write_text(_REFRAME.format(count=count))

    arguments = ("-C", "settings.py", "-c", "tasks.py", "--prefix", ".", "--run")
    return _contestant(
        "reframe --run",
        program("reframe", *arguments, environment=Peer.REFRAME.environment),
        folder,
        write,
        shows=f"Ran {count}/{count} test case(s) from {count} check(s) (0 failure(s)",
        peer=Peer.REFRAME,
    )


def _names(count: int) -> list[str]:
    return [f"task-{number}.yaml" for number in range(count)]


def _write_documents(folder: Path, names: Sequence[str]) -> None:
    (folder / "rankwise.toml").write_text(_SITE)
    for name in names:
        (folder / name).write_text(_DOCUMENT.format(name=Path(name).stem))
