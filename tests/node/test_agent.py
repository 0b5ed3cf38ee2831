"""The agent on another host, called as a client calls it, and the runtimes that it makes."""

from __future__ import annotations

import base64
import errno
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rankwise.node import agent, equipment
from rankwise.node.agent import BEGIN, DATA, END, FETCHED, GOING, WHOLE
from tests.backends.places import wait_until

_MARKER = "rw-0123456789abcdef"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine: our files in a folder of it."""
    parts = tmp_path / "parts"
    shutil.copytree(Path(str(agent.__file__)).parent, parts)
    return tmp_path


def ask(root: Path, verb: str, data: bytes = b"", **request: object) -> dict[str, Any]:
    """Ask the agent, and give its answer."""
    words = json.dumps({"root": str(root), "marker": _MARKER, **request}).encode()
    line = [sys.executable, "-I", "-S", str(root / "parts" / "__main__.py"), "agent", verb]
    done = subprocess.run(
        [*line, base64.urlsafe_b64encode(words).decode()],
        input=data,
        capture_output=True,
        timeout=60,
        check=True,
    )
    text = done.stdout.decode().partition(BEGIN)[2].partition(END)[0]
    answer: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text))
    return answer


def parcel(root: Path, command: str) -> bytes:
    place = root / "attempts" / _MARKER
    process = {"name": "worker-0", "role": "worker", "node": 0, "command": command}
    order = {
        "version": 2,
        "attempt": "run/task/1",
        "marker": _MARKER,
        "folder": str(place),
        "nodes": [{"name": os.uname().nodename, "address": "127.0.0.1", "folder": str(place)}],
        "processes": [process | {"rank": None, "is_awaited": True, "is_vital": True}],
        "environment": {},
        "unset": [],
        "path": [],
        "timeout": 60,
        "grace": 1.0,
        "log_bytes": 100_000,
        "heartbeat": 5.0,
    }
    chosen = {
        "name": "current",
        "kind": "current",
        "host_python": sys.executable,
        "has_path": False,
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in (
            ("order.json", json.dumps(order)),
            ("runtime.json", json.dumps(chosen)),
            (WHOLE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return b"2\n{}" + packed.getvalue()


def state(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = ask(
        root, "look", attempts={_MARKER: {"files": {}, "known": ["", False]}}
    )["attempts"][_MARKER]
    return found


def test_a_note_that_another_client_removes_meanwhile_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(path: str) -> float:
        raise FileNotFoundError(path)

    note = tmp_path / "attempts" / "rw-1"
    note.mkdir(parents=True)
    (note / "claim").touch()
    monkeypatch.setattr(os.path, "getmtime", remove)
    assert agent.hello({"root": str(tmp_path)})["host"] == os.uname().nodename


def test_what_is_started_twice_runs_once(root: Path) -> None:
    """A client whose line was cut asks again; the folder and the claim are there already."""
    data = parcel(root, f"echo x >> {root}/count; sleep 1")
    first = ask(root, "start", data)
    assert ask(root, "start", data) == first
    wait_until("it is over", lambda: state(root)["state"] == "over")
    assert (root / "count").read_text() == "x\n"
    assert ask(root, "remove") == {"swept": 0, "is_gone": True}
    assert list((root / "attempts").iterdir()) == []


def test_what_was_given_up_never_starts_however_late_it_comes(root: Path) -> None:
    assert ask(root, "abandon") == {"has_begun": False}
    ask(root, "start", parcel(root, f"touch {root}/ran"))
    time.sleep(0.3)
    assert not (root / "ran").exists()
    assert state(root)["state"] == "absent"


def test_what_has_begun_is_not_given_up_but_ends_when_asked(root: Path) -> None:
    ask(root, "start", parcel(root, f"touch {root}/ran; sleep 60"))
    wait_until("it runs", (root / "ran").exists)
    assert ask(root, "abandon") == {"has_begun": True}
    ask(root, "end")
    wait_until("it is over", lambda: state(root)["state"] == "over")
    end = json.loads((root / "attempts" / _MARKER / "end.json").read_text())
    assert end["outcome"] == "cancelled"


@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_of_a_parcel_without_its_end_nothing_stays(root: Path, share: float) -> None:
    data = parcel(root, f"touch {root}/ran")
    # At a boundary of blocks, where tar by itself would not notice.
    cut = len(b"2\n{}") + int(5 * share) * 512
    assert "it did not arrive" in ask(root, "start", data[:cut])["error"]
    assert [one for one in (root / "attempts").iterdir() if one.is_dir()] == []
    assert not (root / "ran").exists()


def test_a_machine_that_was_restarted_has_lost_what_ran_there(root: Path) -> None:
    place = root / "attempts" / _MARKER
    place.mkdir(parents=True)
    (place / "claim").touch()
    # Another process has the number by now.
    going = {"pid": os.getpid(), "birth": "1", "boot": "another"}
    (place / GOING).write_text(json.dumps(going))
    found = state(root)
    assert (found["state"], found["was_restarted"]) == ("lost", True)


def test_a_machine_that_cannot_read_its_records_does_not_call_an_attempt_lost(root: Path) -> None:
    """A folder stands where the record was: reading it fails as on a disk that does not answer."""
    place = root / "attempts" / _MARKER
    (place / GOING).mkdir(parents=True)
    attempts = {_MARKER: {"files": {}, "known": ["", False]}}
    assert "IsADirectoryError" in ask(root, "look", attempts=attempts)["error"]


def test_another_machine_of_the_same_name_does_not_call_an_attempt_lost(root: Path) -> None:
    place = root / "attempts" / _MARKER
    place.mkdir(parents=True)
    going = {"pid": os.getpid(), "birth": "1", "boot": "another", "host": "login-2"}
    (place / GOING).write_text(json.dumps(going))
    attempts = {_MARKER: {"files": {}, "known": ["", False]}}
    assert "it was started on login-2" in ask(root, "look", attempts=attempts)["error"]


def _fetched(root: Path) -> tarfile.TarFile:
    words = json.dumps({"root": str(root), "marker": _MARKER}).encode()
    line = [sys.executable, "-I", "-S", str(root / "parts" / "__main__.py"), "agent", "fetch"]
    done = subprocess.run(
        [*line, base64.urlsafe_b64encode(words).decode()],
        capture_output=True,
        timeout=60,
        check=True,
    )
    return tarfile.open(fileobj=io.BytesIO(done.stdout.partition(DATA)[2]))


def test_a_second_name_of_a_file_is_fetched_as_a_file(root: Path) -> None:
    """Clients with an older Python take no links, and what is not taken would be gone."""
    place = root / "attempts" / _MARKER
    place.mkdir(parents=True)
    (place / "one").write_text("text")
    (place / "two").hardlink_to(place / "one")
    (place / "end.json").write_text("{}")
    with _fetched(root) as parcel:
        names = parcel.getnames()
        assert {parcel.getmember(name).size for name in ("one", "two")} == {4}
        assert all(parcel.getmember(name).isreg() for name in ("one", "two"))
    assert names[-2:] == [FETCHED, "end.json"]


def test_what_cannot_be_read_is_named_and_the_rest_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad").write_text("text")
    packed = io.BytesIO()

    def broken(path: str, mode: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(agent, "open", broken, raising=False)
    with tarfile.open(fileobj=packed, mode="w|") as parcel:
        assert agent.put(parcel, str(tmp_path), "bad", {}) == "Input/output error"
        assert agent.put(parcel, str(tmp_path), "gone", {}) == ""


def test_a_file_that_shrinks_while_it_is_read_does_not_spoil_what_comes_behind_it() -> None:
    source = agent.SizedFile(io.BytesIO(b"ab"), 5)
    assert source.read(4) + source.read(4) == b"ab\0\0\0"
    assert source.trouble == "it became shorter while it was read"


def test_a_folder_is_kept_where_something_of_it_is_nowhere_else(root: Path) -> None:
    place = root / "attempts" / _MARKER
    place.mkdir(parents=True)
    (place / "bad").touch()
    assert not ask(root, "remove", is_kept=True)["is_gone"]
    assert (place / "bad").exists()
    assert ask(root, "remove")["is_gone"]
    assert not place.exists()


def test_what_says_that_an_attempt_never_begins_is_forgotten_after_a_day(root: Path) -> None:
    ask(root, "abandon")
    place = root / "attempts" / _MARKER
    ask(root, "hello")
    assert place.is_dir()
    old = time.time() - 90_000
    os.utime(place, (old, old))
    ask(root, "hello")
    assert list((root / "attempts").iterdir()) == []


# How the runtime of an attempt is made ready on a machine that is elsewhere


@pytest.mark.parametrize("name", ["pylock.txt", "requirements.txt", "complete", "lock"])
def test_a_lock_is_installed_and_then_the_requirements_whatever_the_lock_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    installed: list[str] = []

    def call(choice: dict[str, Any], command: Sequence[str]) -> None:
        if "install" in command:
            installed.append(Path(command[-1]).read_text())
            assert not list(tmp_path.glob("runtimes/*/complete"))

    monkeypatch.setattr(equipment, "call", call)
    monkeypatch.setattr(equipment, "find_uv", lambda root: "")
    choice = {"name": "r", "python": "", "host_python": "python3", "requirements": ["two"]}
    choice |= {"lock_digest": "", "locked": [name, "one==1\n"]}
    equipment.environment_for(choice, str(tmp_path))
    assert installed == ["one==1\n", "two\n"]
