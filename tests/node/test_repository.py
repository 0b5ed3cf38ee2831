"""Repositories: fetched once, cloned for each attempt, at the commit that is meant."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rankwise.git import git
from rankwise.node.repository import DEFAULT, GitFailure, UnknownRef, clone, fetched

ME = ("-c", "user.name=me", "-c", "user.email=me@example.org")


def commit(place: Path, text: str) -> str:
    (place / "file").write_text(text)
    git("add", "file", folder=place)
    git(*ME, "commit", "--quiet", "-m", text, folder=place)
    return git("rev-parse", "HEAD", folder=place).strip()


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    place = tmp_path / "it's the origin"
    git("init", "--quiet", "--initial-branch=trunk", str(place))
    commit(place, "one")
    git("tag", "v1", folder=place)
    commit(place, "two")
    return place


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "a store")


def cloned(store: str, origin: Path | str, ref: str, target: Path) -> str:
    """Clone what a ref means; return what the file says."""
    found = fetched(store, str(origin), {}, ref)
    clone(store, str(origin), {}, found, str(target))
    assert git("rev-parse", "HEAD", folder=target).strip() == found
    assert git("remote", "get-url", "origin", folder=target).strip() == str(origin)
    return (target / "file").read_text()


def test_a_ref_is_a_branch_a_tag_a_commit_or_the_default(
    tmp_path: Path, origin: Path, store: str
) -> None:
    first = git("rev-parse", "v1", folder=origin).strip()
    wanted = {"v1": "one", first: "one", first[:8]: "one", DEFAULT: "two", "trunk": "two"}
    for number, (ref, said) in enumerate(wanted.items()):
        assert cloned(store, origin, ref, tmp_path / f"clone {number}") == said
    assert cloned(store, f"file://{origin}", "v1", tmp_path / "by address") == "one"


def test_a_branch_is_as_it_is_there_now(tmp_path: Path, origin: Path, store: str) -> None:
    git("branch", "topic", folder=origin)
    assert cloned(store, origin, "topic", tmp_path / "first") == "two"
    # The branch is gone, and its name is a folder of names now: the old one is in the way.
    git("branch", "-D", "topic", folder=origin)
    git("checkout", "--quiet", "-b", "topic/new", folder=origin)
    commit(origin, "three")
    assert cloned(store, origin, "topic/new", tmp_path / "second") == "three"
    with pytest.raises(UnknownRef, match="no branch, tag or commit 'topic'"):
        fetched(store, str(origin), {}, "topic")


def test_what_was_fetched_is_cloned_without_the_origin(
    tmp_path: Path, origin: Path, store: str
) -> None:
    found = fetched(store, str(origin), {}, "v1")
    origin.rename(tmp_path / "moved away")
    clone(store, str(origin), {}, found, str(tmp_path / "clone"))
    assert (tmp_path / "clone" / "file").read_text() == "one"
    with pytest.raises(GitFailure, match=r"git fetch: .*origin"):
        fetched(store, str(origin), {}, "v1")


def test_a_repository_without_a_default_branch_has_its_others(
    tmp_path: Path, origin: Path, store: str
) -> None:
    git("symbolic-ref", "HEAD", "refs/heads/nowhere", folder=origin)
    assert cloned(store, origin, "trunk", tmp_path / "clone") == "two"
    with pytest.raises(GitFailure, match=r"git fetch: .*HEAD"):
        fetched(store, str(origin), {}, DEFAULT)


def test_a_commit_of_no_branch_is_found(tmp_path: Path, origin: Path, store: str) -> None:
    git("checkout", "--quiet", "--detach", folder=origin)
    lonely = commit(origin, "of a request to merge")
    git("update-ref", "refs/pull/7/head", lonely, folder=origin)
    git("checkout", "--quiet", "trunk", folder=origin)
    assert cloned(store, origin, "refs/pull/7/head", tmp_path / "pull") == "of a request to merge"


def test_a_variable_in_an_address_has_a_value_and_leaves_no_trace(
    tmp_path: Path, origin: Path, store: str
) -> None:
    address = "$PLACE_OF_TESTS"
    found = fetched(store, address, {"PLACE_OF_TESTS": str(origin)}, "v1")
    clone(store, address, {"PLACE_OF_TESTS": str(origin)}, found, str(tmp_path / "clone"))
    kept = [path for path in Path(store).rglob("*") if path.is_file() and path.name != "FETCH_HEAD"]
    assert kept
    assert not [path for path in kept if str(origin).encode() in path.read_bytes()]
    with pytest.raises(GitFailure, match="no value for the variable 'PLACE_OF_TESTS'"):
        fetched(store, address, {}, "v1")


def test_in_a_hook_the_repository_of_the_user_is_left_alone(
    tmp_path: Path, origin: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    git("init", "--quiet", "--initial-branch=mine", str(mine))
    commit(mine, "my work")
    monkeypatch.setenv("GIT_DIR", str(mine / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(mine))
    assert cloned(store, origin, "trunk", tmp_path / "clone") == "two"
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_WORK_TREE")
    assert git("branch", "--format=%(refname:short)", folder=mine).split() == ["mine"]
    assert (mine / "file").read_text() == "my work"


def test_several_at_a_time_share_one_store(tmp_path: Path, origin: Path, store: str) -> None:
    said: list[str] = []
    threads = [
        threading.Thread(
            target=lambda number=number: said.append(
                cloned(store, origin, "trunk", tmp_path / f"clone {number}")
            )
        )
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert said == ["two"] * 4
    assert len(list(Path(store).iterdir())) == 1
