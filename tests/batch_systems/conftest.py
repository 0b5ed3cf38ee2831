"""A real Grid Engine for the tests of this folder, one for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gridengine import Cell, gridengine, obstacle

from tests.backends.places import need


@pytest.fixture(scope="session")
def cell() -> Iterator[Cell]:
    need(obstacle())
    with gridengine() as made:
        yield made
