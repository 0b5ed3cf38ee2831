"""The runner that is started is compiled, and is always the present one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise import node
from rankwise.backends.orders import compiled_node, start_words


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled_node.cache_clear()
    yield tmp_path
    compiled_node.cache_clear()


def test_it_is_made_once_and_can_be_run(cache: Path) -> None:
    made = compiled_node()
    assert made.parent == cache / "rankwise" / "nodes"
    done = subprocess.run(start_words(sys.executable, made), capture_output=True, check=False)
    assert done.returncode == 2
    assert b"usage: run FOLDER" in done.stderr
    before = made.stat().st_mtime_ns
    compiled_node.cache_clear()
    assert compiled_node() == made
    assert made.stat().st_mtime_ns == before


def test_where_it_cannot_be_kept_the_source_is_run(cache: Path) -> None:
    (cache / "rankwise").touch()
    assert compiled_node() == Path(str(node.__file__)).parent
