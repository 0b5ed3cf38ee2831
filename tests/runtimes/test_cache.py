"""Things that are made once and kept."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from rankwise.errors import ComputeFailure
from rankwise.runtimes import uv
from rankwise.runtimes.base import cache_folder
from rankwise.runtimes.uv import COMPLETE, made_once

LIMIT_SECONDS = 60


class Workshop:
    """Makes things, and counts them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = 0
        self.said: list[str] = []

    def make(self, place: Path, lock: int) -> Mapping[str, object]:
        assert not place.exists()
        os.fstat(lock)
        self.made += 1
        place.mkdir()
        (place / "thing").write_text(str(self.made))
        return {"by": "a test"}

    def get(self) -> Path:
        return made_once(
            self.folder,
            self.make,
            is_sound=lambda place: (place / "thing").exists(),
            say=self.said.append,
            what="the thing",
        )


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path / "cache" / "thing")


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.01)


def test_a_thing_is_made_once(workshop: Workshop) -> None:
    assert workshop.get() == workshop.get()
    assert workshop.made == 1
    assert json.loads((workshop.folder / COMPLETE).read_text()) == {"by": "a test"}


def test_a_thing_that_was_left_half_made_is_made_anew(workshop: Workshop) -> None:
    half = workshop.folder / "content"
    half.mkdir(parents=True)
    (half / "thing").write_text("half")
    assert (workshop.get() / "thing").read_text() == "1"


def test_a_thing_that_has_broken_is_made_anew(workshop: Workshop) -> None:
    (workshop.get() / "thing").unlink()
    assert (workshop.get() / "thing").read_text() == "2"


def test_a_failure_leaves_nothing_behind(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(place: Path, lock: int) -> Mapping[str, object]:
        del lock
        place.mkdir()
        (place / "thing").write_text("half")
        raise ComputeFailure("no")

    with monkeypatch.context() as patch:
        patch.setattr(workshop, "make", fail)
        with pytest.raises(ComputeFailure, match="no"):
            workshop.get()
    assert [path.name for path in workshop.folder.iterdir()] == ["lock"]
    assert (workshop.get() / "thing").read_text() == "1"


def test_many_at_once_make_a_thing_once(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_slowly(place: Path, lock: int) -> Mapping[str, object]:
        time.sleep(0.2)  # so that the others come meanwhile
        return Workshop.make(workshop, place, lock)

    monkeypatch.setattr(workshop, "make", make_slowly)
    threads = [threading.Thread(target=workshop.get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
    assert workshop.made == 1


# Its child goes on when it is killed, as uv would.
KILLED_MAKER = """
import subprocess, sys
from pathlib import Path
from rankwise.runtimes.uv import made_once

def make(place, lock):
    place.mkdir()
    child = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch()\\nwhile not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.01)\\npathlib.Path(sys.argv[3]).touch()"
    subprocess.run([sys.executable, "-c", child, *sys.argv[2:]], pass_fds=(lock,))
    return {}

made_once(Path(sys.argv[1]), make, is_sound=Path.exists, say=print, what="the thing")
"""


def test_after_a_kill_nobody_begins_before_the_children_have_ended(
    workshop: Workshop, tmp_path: Path
) -> None:
    begun, leave, ended = tmp_path / "begun", tmp_path / "leave", tmp_path / "ended"
    killed = subprocess.Popen(
        [sys.executable, "-c", KILLED_MAKER, workshop.folder, begun, leave, ended]
    )
    try:
        wait_for(begun)
        killed.send_signal(signal.SIGKILL)
        killed.wait(LIMIT_SECONDS)
        was_ended: list[bool] = []

        def make(place: Path, lock: int) -> Mapping[str, object]:
            was_ended.append(ended.exists())
            return Workshop.make(workshop, place, lock)

        def say(text: str) -> None:
            workshop.said.append(text)
            leave.touch()

        made_once(workshop.folder, make, is_sound=Path.exists, say=say, what="the thing")
    finally:
        leave.touch()
        killed.kill()
        killed.wait(LIMIT_SECONDS)
    assert workshop.said == ["waiting for another process that makes the thing"]
    assert was_ended == [True]


def test_a_wait_has_an_end_that_names_the_lock(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv, "_WAIT_SECONDS", 0.0)
    workshop.folder.mkdir(parents=True)
    holder = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, workshop.folder / "lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(ComputeFailure, match=f"see who has {workshop.folder}/lock open"):
            workshop.get()
        process.kill()
    assert workshop.made == 0


def test_a_cache_that_is_emptied_while_it_is_locked_does_no_harm(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is then on a file that is gone, and the next one would lock another."""
    flock = fcntl.flock
    emptied: list[bool] = []

    def empty_first(lock: int, operation: int) -> None:
        flock(lock, operation)
        if not emptied:
            emptied.append(True)
            shutil.rmtree(workshop.folder)
            workshop.folder.mkdir()

    monkeypatch.setattr(fcntl, "flock", empty_first)
    workshop.get()
    assert (workshop.folder / "lock").exists()
    assert workshop.made == 1


def test_a_folder_that_cannot_be_made_is_a_clear_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ComputeFailure) as raised:
        Workshop(tmp_path / "file" / "thing").get()
    assert str(raised.value) == (
        f"the thing cannot be kept in {tmp_path}/file/thing: Not a directory; make room there, or "
        "set XDG_CACHE_HOME to another folder"
    )


def test_the_cache_is_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/rankwise")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_folder() == tmp_path / ".cache/rankwise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / ".cache/rankwise"
