from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.store.store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a store's folder, which is not there yet."""
    return tmp_path / "project" / ".rankwise"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with Store.open(folder) as opened:
        yield opened
