"""Every document that `rankwise init` writes runs as it is, in a folder that holds nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import LAUNCH_VARIABLES

from rankwise.documents.load import TYPES
from tests.acceptance.conftest import require
from tests.acceptance.jobs import Shop, opened


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """An empty folder, and an environment of rankwise with an MPI and without any other extra."""
    bare = require("openmpi5")
    with opened(tmp_path / "shop") as made:
        made.python = bare.python
        made.variables |= {**LAUNCH_VARIABLES, "PATH": f"{bare.python.parent}:/usr/bin:/bin"}
        yield made


@pytest.mark.parametrize("name", TYPES)
def test_a_starter_runs_as_it_is_written(shop: Shop, name: str) -> None:
    assert shop.rankwise("init", name, "first.yaml").exit_code == 0
    said = shop.rankwise("run", "first.yaml")
    assert said.exit_code == 0, said
    shop.wait_until_empty()


def test_the_list_of_starters_says_what_each_type_is(shop: Shop) -> None:
    lines = shop.rankwise("init").output.splitlines()
    described = dict(line.split(maxsplit=1) for line in lines)
    assert list(described) == list(TYPES)
    assert all(words.startswith("A") for words in described.values()), described
