"""Copies of people's code."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise import files
from rankwise.errors import ComputeFailure
from rankwise.files import copy_code


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for name in ("train.py", "data/a.bin", "data/b.txt", ".git/HEAD", "pkg/__pycache__/m.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def test_everything_is_copied_but_what_is_never_code(source: Path, tmp_path: Path) -> None:
    copy_code(source, tmp_path / "copy")
    assert names(tmp_path / "copy") == ["data/a.bin", "data/b.txt", "train.py"]


@pytest.mark.parametrize("file", [".rankwiseignore", ".amlignore"])
@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("*.bin", ["data/b.txt", "train.py"]),
        ("data/", ["train.py"]),
        ("data/a*", ["data/b.txt", "train.py"]),
        ("# data", ["data/a.bin", "data/b.txt", "train.py"]),
    ],
)
def test_what_the_ignore_file_names_is_left_out(
    source: Path, tmp_path: Path, file: str, pattern: str, left: list[str]
) -> None:
    (source / file).write_text(f"\n{pattern}\n")
    copy_code(source, tmp_path / "copy")
    assert names(tmp_path / "copy") == sorted([file, *left])


def test_a_link_stays_a_link(source: Path, tmp_path: Path) -> None:
    (source / "nowhere").symlink_to("/no/such/file")
    copy_code(source, tmp_path / "copy")
    assert (tmp_path / "copy" / "nowhere").readlink() == Path("/no/such/file")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ComputeFailure, match=r"/src: there is no such folder; `code\.path` must"):
        copy_code(tmp_path / "src", tmp_path / "copy")


def test_too_much_is_refused_with_the_way_out(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MOST_BYTES", 10)
    with pytest.raises(ComputeFailure, match=r"source: more than .* in .*/\.rankwiseignore"):
        copy_code(source, tmp_path / "copy")
