"""The runner that is started is compiled, and is always the present one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise import runner
from rankwise.compute.compiled import compiled_runner


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled_runner.cache_clear()
    yield tmp_path
    compiled_runner.cache_clear()


def test_it_is_made_once_and_can_be_run(cache: Path) -> None:
    made = compiled_runner()
    assert made.parent == cache / "rankwise" / "runners"
    done = subprocess.run([sys.executable, "-I", "-S", made], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"usage: runner.py gang FOLDER" in done.stderr
    before = made.stat().st_mtime_ns
    compiled_runner.cache_clear()
    assert compiled_runner() == made
    assert made.stat().st_mtime_ns == before


def test_where_it_cannot_be_kept_the_source_is_run(cache: Path) -> None:
    (cache / "rankwise").touch()
    assert compiled_runner() == Path(str(runner.__file__))
