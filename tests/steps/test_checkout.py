"""Checkouts of git: at the state that is wanted, and never over somebody's work."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rankwise.errors import ComputeFailure, InputError
from rankwise.repositories import folder_for, git
from rankwise.steps.checkout import check_out

ME = ("-c", "user.name=me", "-c", "user.email=me@example.org")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    place = tmp_path / "origin.git"
    git("init", "--quiet", "--initial-branch=main", str(place))
    commit(place, "one")
    git("tag", "v1", folder=place)
    commit(place, "two")
    return place


def commit(place: Path, text: str) -> str:
    (place / "file").write_text(text)
    git("add", "file", folder=place)
    git(*ME, "commit", "--quiet", "-m", text, folder=place)
    return git("rev-parse", "HEAD", folder=place).strip()


def test_it_is_at_the_state_that_is_wanted(tmp_path: Path, repository: Path) -> None:
    copy = tmp_path / "copy"
    check_out(str(repository), copy, "", clean=False)
    assert (copy / "file").read_text() == "two"
    check_out(str(repository), copy, "v1", clean=False)
    assert (copy / "file").read_text() == "one"
    newest = commit(repository, "three")
    assert check_out(str(repository), copy, "main", clean=False) == (newest, False)
    assert (copy / "file").read_text() == "three"
    with pytest.raises(InputError, match="no branch, tag or commit 'v9'"):
        check_out(str(repository), copy, "v9", clean=False)


def test_work_of_others_is_not_overwritten(tmp_path: Path, repository: Path) -> None:
    copy = tmp_path / "copy"
    check_out(str(repository), copy, "v1", clean=False)
    (copy / "file").write_text("mine")
    (copy / "built").write_text("")
    with pytest.raises(InputError, match="changed by hand: file"):
        check_out(str(repository), copy, "main", clean=False)
    assert (copy / "file").read_text() == "mine"
    _, is_changed = check_out(str(repository), copy, "main", clean=True)
    assert is_changed
    assert sorted(path.name for path in copy.iterdir()) == [".git", "file"]
    assert not check_out(str(repository), copy, "main", clean=True)[1]
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("")
    with pytest.raises(InputError, match="no repository of git"):
        check_out(str(repository), other, "", clean=True)


def test_one_that_was_ended_goes_on(tmp_path: Path, repository: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["git", "init", "-q", copy], check=True)
    git("remote", "add", "origin", "nowhere", folder=copy)
    check_out(str(repository), copy, "main", clean=False)
    assert (copy / "file").read_text() == "two"
    with pytest.raises(ComputeFailure, match="git fetch"):
        check_out(str(tmp_path / "nothing"), copy, "main", clean=False)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://example.org/a/mpi4py.git", "mpi4py"),
        ("git@example.org:a/mpi4py", "mpi4py"),
        ("/some/where/", "where"),
    ],
)
def test_the_folder_is_that_of_git_clone(address: str, name: str) -> None:
    assert folder_for(address) == name
