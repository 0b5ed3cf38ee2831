"""Trivial notebooks: what each costs, beside what else runs notebooks."""

from __future__ import annotations

import json
from pathlib import Path

from bench.contestants import Contestant
from bench.environment import ROOT, Framework, prepare, pytest, python
from bench.measure import Result, take_turns
from bench.peers import Peer, version
from bench.table import Table, judge

_NOTEBOOKS = 20
_SECONDS_EACH = 0.55
# Twenty seconds a round.
_PEER_ROUNDS = 3

_OURS = Framework(
    name="bench-notebooks",
    folder=ROOT / ".venvs" / "bench-notebooks",
    requirements=("-e", ".[notebooks]"),
    library="nbclient",
    arguments=("-c", "import nbclient\nprint(2, 'nbclient')"),
)

# Each is written, as papermill does it and as we do.
_ONE_BY_ONE = """
import sys
from pathlib import Path
import nbclient, nbformat
for path in map(Path, sys.argv[1:]):
    book = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(book, resources={"metadata": {"path": "."}}).execute()
    nbformat.write(book, path.with_suffix(".executed"))
print(len(sys.argv) - 1, "done")
"""
_PAPERMILL = """
import sys
from pathlib import Path
import papermill
for path in map(Path, sys.argv[1:]):
    papermill.execute_notebook(path, path.with_suffix(".executed"), progress_bar=False)
print(len(sys.argv) - 1, "done")
"""


def run(folder: Path, repetitions: int) -> Table:
    prepare(_OURS)
    books = [_write(folder, number) for number in range(_NOTEBOOKS)]
    shows = f"{_NOTEBOOKS} passed"
    nbclient, papermill, nbmake = (
        peer.environment for peer in (Peer.NBCLIENT, Peer.PAPERMILL, Peer.NBMAKE)
    )
    contestants = [
        Contestant(
            name="nbclient, one by one",
            command=python("-c", _ONE_BY_ONE, *books, environment=nbclient),
            folder=folder,
            shows=f"{_NOTEBOOKS} done",
            peer=Peer.NBCLIENT,
            most_rounds=_PEER_ROUNDS,
        ),
        Contestant(
            name="papermill, one by one",
            command=python("-c", _PAPERMILL, *books, environment=papermill),
            folder=folder,
            shows=f"{_NOTEBOOKS} done",
            peer=Peer.PAPERMILL,
            most_rounds=_PEER_ROUNDS,
        ),
        Contestant(
            name="pytest --nbmake -n 2",
            command=pytest("--nbmake", "-n2", "-q", ".", environment=nbmake),
            folder=folder,
            shows=shows,
            peer=Peer.NBMAKE,
            most_rounds=_PEER_ROUNDS,
        ),
        Contestant(
            name="pytest --notebooks .",
            command=pytest("--notebooks", ".", "-q", environment=_OURS),
            folder=folder,
            shows=shows,
        ),
        Contestant(
            name="pytest --notebooks . --notebooks-reuse-kernel",
            command=pytest("--notebooks", ".", "--notebooks-reuse-kernel", "-q", environment=_OURS),
            folder=folder,
            shows=shows,
        ),
    ]
    return _table(take_turns(contestants, repetitions))


def _write(folder: Path, number: int) -> str:
    """Write a notebook in which next to nothing is computed."""
    cells: list[dict[str, object]] = [
        {
            "cell_type": "code",
            "metadata": {},
            "source": source,
            "outputs": [],
            "execution_count": None,
        }
        for source in (f"x = {number}", "print(x)", "x + 1")
    ]
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    content = {
        "cells": cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 4,
    }
    path = folder / f"book{number:02}.ipynb"
    path.write_text(json.dumps(content))
    return str(path)


def _table(results: list[Result]) -> Table:
    table = Table(
        title=f"{_NOTEBOOKS} trivial notebooks; medians of the runs",
        headings=("wall s", "s each", "CPU s", "ratio", "runs", "target, s each"),
    )
    ours = next(one for one in results if one.contestant.peer is None)
    for result in results:
        name = result.contestant.name
        if result.obstacle is not None:
            table.rows.append((name, *("-" for _ in table.headings)))
            table.remarks.append(f"{name} {result.obstacle}")
            continue
        each = result.wall / _NOTEBOOKS
        table.rows.append(
            (
                name,
                f"{result.wall:.2f}",
                f"{each:.2f}",
                f"{result.cpu:.2f}",
                f"{result.wall / ours.wall:.2f}",
                f"{len(result.samples)}",
                judge(each, _SECONDS_EACH if result.contestant.peer is None else None),
            )
        )
    table.remarks.append("The ratio is that to pytest --notebooks: a fresh kernel for each.")
    there = {one.contestant.peer for one in results if one.obstacle is None}
    if shown := sorted(f"{peer} {version(peer)}" for peer in there if peer is not None):
        table.remarks.append(f"Peers: {', '.join(shown)}.")
    return table
