"""Files and folders that are there as a whole or not at all, and locks."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.node.files import Beside, Locked, lock, unlock, write_file


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_a_file_is_written_with_its_folder_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    write_file(tmp_path / "new" / "file", "text")
    write_file(tmp_path / "new" / "file", b"other")
    assert (tmp_path / "new" / "file").read_text() == "other"
    assert names(tmp_path / "new") == ["file"]


def test_a_secret_is_its_owners_alone_whatever_was_there_before(tmp_path: Path) -> None:
    place = tmp_path / "secret"
    left = Path(Beside(place).__enter__())
    for one in (place, left):  # The latter as if a process of our number was killed here.
        one.write_text("old")
        one.chmod(0o666)
    write_file(place, "value", 0o600)
    assert names(tmp_path) == ["secret"]
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["a" * 255, "\N{GRINNING FACE}" * 63])
def test_the_longest_names_can_be_written(tmp_path: Path, name: str) -> None:
    write_file(tmp_path / name, "text")
    assert names(tmp_path) == [name]


def test_what_cannot_be_moved_into_place_is_removed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path / "folder", "text")
    assert names(tmp_path) == ["folder"]


def test_a_block_that_raises_leaves_what_was_there(tmp_path: Path) -> None:
    write_file(tmp_path / "file", "old")

    def make_half(name: str, *, is_folder: bool) -> None:
        with Beside(tmp_path / name) as beside:
            if is_folder:
                Path(beside).mkdir()
            Path(beside, "half" if is_folder else "").write_text("half")
            raise KeyboardInterrupt

    for name in ("file", "folder"):
        with pytest.raises(KeyboardInterrupt):
            make_half(name, is_folder=name == "folder")
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_of_two_folders_the_first_one_stays(tmp_path: Path) -> None:
    with Beside(tmp_path / "folder") as beside:
        Path(beside).mkdir()
        Path(beside, "second").touch()
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "first").touch()
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["first"]


def test_a_lock_is_held_by_one_process_or_shared_by_several(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Locked(path):
        assert not locked_by_another(path)
    first = os.open(path, os.O_RDWR)
    assert lock(first, is_shared=True)
    assert not locked_by_another(path)
    assert locked_by_another(path, is_shared=True)
    unlock(first)
    assert locked_by_another(path)
    os.close(first)


def locked_by_another(path: Path, *, is_shared: bool = False) -> bool:
    program = (
        "import os, sys; from rankwise.node.files import lock\n"
        f"file = os.open(sys.argv[1], os.O_RDWR)\n"
        f"sys.exit(not lock(file, waits=False, is_shared={is_shared}))"
    )
    return subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == 0


@pytest.mark.parametrize(
    ("path", "folder"), [("/name", "/"), ("name", "."), ("there/name", "there"), ("/a/b", "/a")]
)
def test_what_is_moved_to_a_path_is_made_in_its_folder(path: str, folder: str) -> None:
    assert Path(Beside(path).__enter__()).parent == Path(folder)
