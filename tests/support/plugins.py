"""Packages that stand in a folder with their entry points, as an installer would leave them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest


def write_distribution(
    folder: Path, name: str, entry_points: Mapping[str, Mapping[str, str]]
) -> None:
    """Write what `importlib.metadata` finds: groups of names, each with its `module:object`."""
    made = folder / f"{name}-1.0.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = (
        "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in points.items())])
        for group, points in entry_points.items()
    )
    (made / "entry_points.txt").write_text("\n".join(groups) + "\n")


@contextlib.contextmanager
def importable(folder: Path) -> Iterator[dict[str, str]]:
    """Have packages of a folder found in this process; yields what others need for the same."""
    before = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, [str(folder), before]))
    modules = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield {"PYTHONPATH": path}
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


@contextlib.contextmanager
def spool(folder: Path) -> Iterator[dict[str, str]]:
    """Have the batch system `spool` installed; yields the variables of a client elsewhere."""
    folder.mkdir()
    (folder / "spool_system.py").write_text(Path(__file__).with_name("spool_system.py").read_text())
    write_distribution(folder, "spool", {"rankwise.batch_systems": {"spool": "spool_system:Spool"}})
    with importable(folder) as variables:
        yield variables
