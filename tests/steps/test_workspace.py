"""Checkouts of git: at the state that is wanted, and never over a user's changes."""

from __future__ import annotations

import base64
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import pytest

from rankwise.errors import ComputeFailure, InputError
from rankwise.git import folder_for, git
from rankwise.steps.workspace import check_out, make

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


class _Guarded(SimpleHTTPRequestHandler):
    """Serves files after a login, and notes which processes there are meanwhile."""

    login = ""
    seen: ClassVar[list[bytes]] = []

    def do_GET(self) -> None:
        self.seen.extend(_command_lines())
        if self.headers["Authorization"] == f"Basic {self.login}":
            super().do_GET()
        else:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="here"')
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def _command_lines() -> Iterator[bytes]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield (entry / "cmdline").read_bytes()


@contextlib.contextmanager
def guarded(folder: Path, user: str, password: str) -> Iterator[str]:
    """Serve a folder to one user, and give its address."""

    class Handler(_Guarded):
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        seen: ClassVar[list[bytes]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
        assert any(b"fetch" in line for line in Handler.seen)
        assert not [line for line in Handler.seen if b"tell-nobody" in line]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("login", "user", "password"),
    [
        ("me:$TOKEN", "me", "Aj7/tell-nobody@%"),
        ("$TOKEN", "Aj7/tell-nobody@%", ""),
        ("$TOKEN:x-oauth-basic", "Aj7/tell-nobody@%", "x-oauth-basic"),
    ],
)
def test_a_token_in_an_address_is_in_no_file_and_in_no_list_of_processes(
    tmp_path: Path, repository: Path, login: str, user: str, password: str
) -> None:
    served = tmp_path / "served"
    git("clone", "--quiet", "--bare", str(repository), str(served / "origin.git"))
    git("update-server-info", folder=served / "origin.git")
    home = tmp_path / "home"
    home.mkdir()
    # This helper writes down whatever works.
    (home / ".gitconfig").write_text("[credential]\n\thelper = store\n")
    with guarded(served, user, password) as host:
        line = [sys.executable, "-P", "-m", "rankwise.steps", "checkout"]
        done = subprocess.run(
            [*line, f"--repository=http://{login}@{host}/origin.git", f"--into={tmp_path}/copy"],
            env={
                **os.environ,
                "HOME": str(home),
                "TOKEN": quote("Aj7/tell-nobody@%", safe=""),
                "RANKWISE_SECRETS": "TOKEN",
            },
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
    assert done.returncode == 0, done
    assert (tmp_path / "copy" / "file").read_text() == "two"
    assert "tell-nobody" not in done.stdout + done.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if b"tell-nobody" in path.read_bytes()] == []


def test_a_secret_elsewhere_in_an_address_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "tell-nobody")
    monkeypatch.setenv("RANKWISE_SECRETS", "TOKEN")
    with pytest.raises(InputError, match="has the value of the secret TOKEN in it") as raised:
        check_out("https://host/x.git?token=tell-nobody", tmp_path / "copy", "", clean=False)
    assert "tell-nobody" not in str(raised.value)
    assert not (tmp_path / "copy").exists()


def test_words_of_git_that_are_no_utf8_are_said(tmp_path: Path) -> None:
    missing = os.fsdecode(bytes(tmp_path) + b"/caf\xe9")
    with pytest.raises(ComputeFailure, match=r"git fetch: .*caf"):
        check_out(missing, tmp_path / "here", "", clean=False)


def test_a_folder_is_found_from_where_the_stage_works(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        check_out(repository.name, tmp_path / "deep" / "here", "main", clean=False)
    assert (tmp_path / "deep" / "here" / "file").read_text() == "two"


def test_words_that_the_terminal_cannot_show_are_no_failure(
    tmp_path: Path, repository: Path
) -> None:
    commit(repository, "größer")
    line = [sys.executable, "-m", "rankwise.steps", "checkout", "--into=here"]
    line.append(f"--repository={repository}")
    variables = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        line, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "gr\\xf6\\xdfer" in done.stdout


# Environments that stages of pipelines make

PYTHON = """#!/bin/sh
if [ "$2" = venv ]; then
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    touch "$3/pyvenv.cfg"
fi
"""


def test_an_environment_is_made_anew_when_an_included_file_has_changed(tmp_path: Path) -> None:
    python, first, included = (tmp_path / name for name in ("python", "first.txt", "included.txt"))
    python.write_text(f"{PYTHON}echo 3.11\n")
    python.chmod(0o755)
    first.write_text("-r included.txt\n")
    included.write_text("numpy==1\n")

    def made() -> str:
        folder = tmp_path / "venv"
        return make(folder, str(python), packages=(), requirements=[first], with_site=False)

    identity = made()
    assert made() == identity
    included.write_text("numpy==2\n")
    assert made() != identity
