"""Files that attempts leave, and files by patterns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankwise.checks.judge import read_tests
from rankwise.checks.sources import Missing, read_text
from rankwise.files import matching, open_left, read_left, without_match
from rankwise.logs import last_lines
from rankwise.node.output import open_log
from rankwise.records import read_end, read_exports


def test_only_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").mkdir()
    assert read_left(tmp_path / "file") == b"text"
    with open_left(tmp_path / "link", follows_links=True) as file:
        assert file.read() == b"text"
    for name in ("pipe", "link", "folder", "none"):
        with pytest.raises(OSError, match=name):
            open_left(tmp_path / name)


def test_a_named_pipe_keeps_no_reader_waiting(tmp_path: Path) -> None:
    """Whatever a job leaves under the names that are looked at."""
    for name in ("end.json", "exports", "output.log", "results.xml", "text"):
        os.mkfifo(tmp_path / name)
    assert read_end(tmp_path) is None
    assert read_exports(tmp_path) == {}
    assert last_lines(tmp_path, 3) == []
    with pytest.raises(OSError, match="not a regular file"):
        list(read_tests(tmp_path / "results.xml"))
    with pytest.raises(Missing, match="text cannot be read: not a regular file"):
        read_text(tmp_path / "text")


def test_a_log_is_written_whatever_was_put_in_its_place(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    os.mkfifo(log)
    os.close(open_log(str(log)))
    assert log.is_file()
    os.mkfifo(tmp_path / "other")
    log.unlink()
    log.symlink_to("other")
    os.close(open_log(str(log)))
    assert log.is_file()


def test_patterns_that_no_file_fits_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("")
    (tmp_path / "empty").mkdir()
    assert matching(["*.c"], tmp_path) == ["a.c"]
    assert without_match(["*.c", "*.h", "empty", "a.c"], tmp_path) == ["*.h", "empty"]
