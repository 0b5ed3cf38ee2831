"""Files from the web: they come whole, once, or not at all."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from rankwise.errors import ComputeFailure
from rankwise.steps.keeping import fetch_step

TEXT = b"1,2\n" * 1000
LIMIT_SECONDS = 30


class Files(BaseHTTPRequestHandler):
    """Answers by the path that is asked for."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[str]] = []
    go_on: ClassVar[threading.Event] = threading.Event()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.close_connection = True
        match self.path:
            case "/moved":
                self.answer(302, b"", Location="/iris.csv")
            case "/short":
                self.answer(200, TEXT[:10], **{"Content-Length": str(len(TEXT))})
            case "/short-chunks":
                chunk = b"fa0\r\n" + TEXT[:10]
                self.answer(200, chunk, **{"Transfer-Encoding": "chunked"})
            case "/slow":
                self.answer(200, TEXT[:10], **{"Content-Length": str(len(TEXT))})
                self.wfile.flush()
                self.go_on.wait(LIMIT_SECONDS)
            case "/iris.csv":
                self.answer(200, TEXT)
            case _:
                self.answer(404, b"no")

    def answer(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        known = headers if "Transfer-Encoding" in headers else {"Content-Length": str(len(body))}
        for name, value in {**known, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: tests look at what was asked."""


@pytest.fixture
def server() -> Iterator[str]:
    Files.asked.clear()
    Files.go_on.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_address[1]}"
        finally:
            Files.go_on.set()
            served.shutdown()
            thread.join()


def fetch(url: str, folder: Path) -> Path:
    fetch_step(url=url, into=str(folder), name="iris.csv")
    return folder / "content" / "iris.csv"


def test_a_file_is_fetched_once_and_again_if_it_was_changed(server: str, tmp_path: Path) -> None:
    place = fetch(f"{server}/iris.csv", tmp_path / "it's here")
    assert place.read_bytes() == TEXT
    fetch(f"{server}/iris.csv", tmp_path / "it's here")
    assert Files.asked == ["/iris.csv"]
    place.write_bytes(TEXT[:-1])
    assert fetch(f"{server}/iris.csv", tmp_path / "it's here").read_bytes() == TEXT
    assert Files.asked == ["/iris.csv"] * 2


def test_an_address_that_has_moved_is_followed(server: str, tmp_path: Path) -> None:
    assert fetch(f"{server}/moved", tmp_path).read_bytes() == TEXT


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/short", r"did not come whole: 10 of 4000 bytes; run it again"),
        ("/short-chunks", r"could not be fetched: IncompleteRead"),
        ("/gone", r"could not be fetched: HTTP Error 404: Not Found"),
    ],
)
def test_half_a_file_is_an_error_and_is_not_kept(
    server: str, tmp_path: Path, path: str, why: str
) -> None:
    with pytest.raises(ComputeFailure, match=f"^{server}{path} {why}"):
        fetch(f"{server}{path}", tmp_path)
    assert not (tmp_path / "content").exists()


def test_a_server_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ComputeFailure, match=r"could not be fetched: .*refused"):
        fetch("http://127.0.0.1:1/x", tmp_path)
    with pytest.raises(ComputeFailure, match=r"http://\[::1/x could not be fetched: Invalid"):
        fetch("http://[::1/x", tmp_path)


def test_after_a_kill_it_is_fetched_from_the_beginning(server: str, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "rankwise.steps", "fetch", f"--url={server}/slow"]
    line += [f"--into={tmp_path}", "--name=iris.csv"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"fetching {server}/slow\n"
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / "content").exists()
    assert fetch(f"{server}/iris.csv", tmp_path).read_bytes() == TEXT
