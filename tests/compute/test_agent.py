"""What runs on a machine that is elsewhere, asked as a client asks it."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from rankwise import runner
from rankwise.compute.remote import agent, equipment
from rankwise.compute.remote.agent import BEGIN, END, GOING, WHOLE
from tests.compute.places import wait_until

_MARKER = "rw-0123456789abcdef"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine: our files in a folder of it."""
    parts = tmp_path / "parts"
    parts.mkdir()
    for part in (agent, equipment, runner):
        shutil.copy(str(part.__file__), parts)
    return tmp_path


def ask(root: Path, verb: str, data: bytes = b"", **request: object) -> dict[str, Any]:
    """Ask the agent, and give its answer."""
    words = json.dumps({"root": str(root), "marker": _MARKER, **request}).encode()
    line = [sys.executable, "-I", "-S", str(root / "parts" / "agent.py"), verb]
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
        "version": 1,
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
    # Somebody else has the number by now.
    going = {"pid": os.getpid(), "birth": "1", "boot": "another"}
    (place / GOING).write_text(json.dumps(going))
    found = state(root)
    assert (found["state"], found["was_restarted"]) == ("lost", True)
