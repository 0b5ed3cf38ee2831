"""Notebooks for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

Cell = str | tuple[str, Mapping[str, object]]
"""The source of a cell, or that and what differs from the default: `tags`, `outputs`, …"""

PYTHON: Mapping[str, object] = {
    "kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}
}


def notebook(*cells: Cell, metadata: Mapping[str, object] = PYTHON) -> dict[str, object]:
    """Return a notebook with cells of code, or of Markdown where they begin with `#: `."""
    return {
        "cells": [_cell(cell) for cell in cells],
        "metadata": dict(metadata),
        "nbformat": 4,
        "nbformat_minor": 4,
    }


def _cell(cell: Cell) -> dict[str, object]:
    source, more = cell if isinstance(cell, tuple) else (cell, {})
    if source.startswith("#: "):
        return {"cell_type": "markdown", "metadata": {}, "source": source[3:]}
    metadata = {"tags": list(tags)} if isinstance(tags := more.get("tags"), Sequence) else {}
    return {
        "cell_type": "code",
        "metadata": {**metadata, **dict(_mapping(more.get("metadata")))},
        "source": source,
        "outputs": more.get("outputs", []),
        "execution_count": None,
    }


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def write_notebook(path: Path, *cells: Cell, metadata: Mapping[str, object] = PYTHON) -> Path:
    """Write a notebook."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook(*cells, metadata=metadata)))
    return path
