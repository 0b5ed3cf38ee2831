"""Folders with names that a program which is not careful stumbles over, and a suite for them."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.conftest import require
from tests.acceptance.harness import Project

# Everything that a shell, a launcher or a format of ours could take for something else.
AWKWARD = 'it\'s a "place" %n $HOME;é'
TWO_TESTS = {
    "test_places.py": """
        import os, tempfile
        import pytest

        @pytest.mark.parallel(2)
        def test_two(comm, tmp_path):
            assert comm.allreduce(1) == 2
            assert str(tmp_path).startswith(os.environ["TMPDIR"])

        def test_one():
            assert tempfile.gettempdir() == os.environ["TMPDIR"]
    """
}


def folder_of_length(base: Path, length: int) -> Path:
    """Make a folder whose name has so many characters, and a blank, quotes and more in it."""
    folder = base / AWKWARD
    filler = length - len(str(folder)) - 1
    assert filler > 0, f"{base} is too long"
    folder = folder / ("x" * filler)
    folder.mkdir(parents=True)
    return folder


def awkward_project(base: Path, mpi: str = "mpich") -> Project:
    """Make a project in a folder with an awkward name."""
    folder = base / AWKWARD / "project"
    folder.mkdir(parents=True)
    return Project(folder, require(mpi))
