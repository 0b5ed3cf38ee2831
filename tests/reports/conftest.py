"""What tests of views need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / ".rankwise") as opened:
        yield opened
