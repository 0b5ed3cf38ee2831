"""Notebooks and pages that are copied to another place: all of them, or it is a failure."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from sshd import obstacle, sshd

from rankwise.engine import verdict
from rankwise.engine.verdict import copied_out
from rankwise.plan import Task
from rankwise.records import AttemptEnd
from tests.backends.places import need

PASSED = AttemptEnd(outcome="passed", exit_code=0)
LABEL = "books-1/here@here@it's a book.ipynb/1"
KEPT = ("book.ipynb", "book.html", "book-cell4-1.png", "more/other.ipynb")
SENT = "program/page.html"
LEFT = (SENT, "order.json", "runner.log", "nodes/node0/book.ipynb", "processes/worker-0/page.html")


def to(place: Path | str) -> Task:
    """Return a task that leaves things for people, and was sent one that is no such thing."""
    return Task(key="t", processes=(), outputs=str(place), files={SENT: "a template"})


def needed(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    need(f"{', '.join(missing)}: make environments" if missing else "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of an attempt that has run a notebook."""
    for name in (*KEPT, *LEFT):
        file = tmp_path / "attempt" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"this is {name}")
    return tmp_path / "attempt"


def files_in(place: Path) -> dict[str, str]:
    files = (path for path in place.rglob("*") if path.is_file())
    return {path.relative_to(place).as_posix(): path.read_text() for path in files}


WANTED = {f"{LABEL}/{name}": f"this is {name}" for name in KEPT}


def test_notebooks_and_what_is_made_of_them_go_to_a_folder(tmp_path: Path, folder: Path) -> None:
    for _ in range(2):  # A client that is started again may do it again.
        assert copied_out(to(tmp_path / "it's there"), folder, LABEL, PASSED) == PASSED
        assert files_in(tmp_path / "it's there") == WANTED


def test_they_go_to_an_address_that_fsspec_knows(tmp_path: Path, folder: Path) -> None:
    needed("fsspec")
    import fsspec

    assert copied_out(to("memory://there"), folder, LABEL, PASSED) == PASSED
    there = fsspec.filesystem("memory")
    found = {
        name.removeprefix("/there/"): there.cat(name).decode() for name in there.find("/there")
    }
    assert found == WANTED
    assert copied_out(to(f"local://{tmp_path}/new"), folder, LABEL, PASSED) == PASSED
    assert files_in(tmp_path / "new") == WANTED


def test_a_copy_that_fails_is_a_failure_and_a_failure_stays_what_it_was(
    tmp_path: Path, folder: Path
) -> None:
    (tmp_path / "taken").write_text("a file is in the way")
    place = tmp_path / "taken"
    end = copied_out(to(place), folder, LABEL, PASSED, lambda text: text.replace("books-1", "***"))
    assert end.outcome == "failed"
    assert end.reason.startswith(f"4 files not copied to {place}/{LABEL}: ")
    assert "taken/***/here" in end.reason, "what is quoted has no secrets"
    crash = AttemptEnd(outcome="crashed", exit_code=139, signal=11, reason="by signal 11")
    worse = copied_out(to(place), folder, LABEL, crash)
    assert (worse.outcome, worse.exit_code) == ("crashed", 139)
    assert worse.reason.startswith("by signal 11\n4 files not copied")
    assert (folder / "book.ipynb").read_text() == "this is book.ipynb"


def test_an_attempt_without_any_is_left_as_it_ended(tmp_path: Path) -> None:
    end = AttemptEnd(outcome="not run", exit_code=1, reason="no such host")
    assert copied_out(to("nowhere://at/all"), tmp_path / "never made", LABEL, end) == end


def test_a_place_that_does_not_answer_has_a_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(verdict, "_COPY_SECONDS", 0.05)
    monkeypatch.setattr(verdict, "_copy", lambda *_: release.wait(60))
    end = copied_out(to("nowhere"), folder, LABEL, PASSED)
    release.set()
    assert end.reason.endswith("they could not be copied in 0.05 s")


def test_they_go_to_a_host_with_ssh(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(obstacle())
    needed("fsspec", "paramiko")
    with sshd() as server:
        # The user's own key: fsspec takes no configuration of ssh.
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        (tmp_path / "home" / ".ssh").mkdir(parents=True)
        key = (server.config.parent / "user_key").read_text()
        (tmp_path / "home" / ".ssh" / "id_ed25519").write_text(key)
        address = f"ssh://127.0.0.1:{server.port}{tmp_path}/there"
        assert copied_out(to(address), folder, LABEL, PASSED) == PASSED
    assert files_in(tmp_path / "there") == WANTED


class Bucket(BaseHTTPRequestHandler):
    """As much of S3 as copying needs: puts objects, and tells their sizes."""

    protocol_version = "HTTP/1.1"
    objects: ClassVar[dict[str, bytes]] = {}

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            size, _, rest = body.partition(b"\r\n")
            body = rest[: int(size.partition(b";")[0], 16)]
        self.objects[self.path] = body
        self._answer(200, 0)

    def do_HEAD(self) -> None:
        found = self.objects.get(self.path)
        self._answer(404 if found is None else 200, len(found or b""))

    def _answer(self, code: int, size: int) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(size))
        self.send_header("ETag", '"0"')
        self.send_header("Last-Modified", "Thu, 01 Sep 2022 00:00:00 GMT")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mine")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    Bucket.objects.clear()
    yield Bucket.objects
    server.shutdown()
    thread.join()
    server.server_close()


def test_they_go_to_a_bucket(folder: Path, bucket: dict[str, bytes]) -> None:
    needed("fsspec", "s3fs")
    assert copied_out(to("s3://results/nightly"), folder, "books-1/book/1", PASSED) == PASSED
    found = {path.partition("?")[0]: content.decode() for path, content in bucket.items()}
    assert found == {f"/results/nightly/books-1/book/1/{name}": f"this is {name}" for name in KEPT}
