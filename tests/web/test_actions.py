"""Buttons and the verb, with real processes: what is ended ends, what runs again runs."""

from __future__ import annotations

import errno
import re
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from rankwise.cli.main import main
from rankwise.cli.operations import _open
from rankwise.errors import InputError
from rankwise.store import State, Store
from rankwise.web import app
from rankwise.web.app import HOST, listen, port_of, why_not
from rankwise.web.store_access import take_in
from tests.web.served import RANKWISE, serving, wait_for

DOCUMENT = """
type: Suite
name: slow
tests:
  - name: sleeps
    run: echo awake; exec sleep 300
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Store.open(tmp_path / ".rankwise"):
        return tmp_path / ".rankwise"


def test_a_run_is_ended_and_started_again_from_the_page(tmp_path: Path, folder: Path) -> None:
    document = tmp_path / "slow.yaml"
    document.write_text(DOCUMENT)
    line = [*RANKWISE, "submit", str(document), "--store", str(folder)]
    subprocess.run(line, check=True, capture_output=True, timeout=60)
    with (
        Store.open(folder, read_only=True) as store,
        serving(folder) as served,
        httpx.Client(base_url=served.base, timeout=60) as browser,
    ):
        assert browser.get(served.address).status_code == 200
        wait_for(lambda: store.counts("slow-1")[State.RUNNING] == 1)
        found = re.search(r'name="form" value="([^"]+)"', browser.get("/runs/slow-1").text)
        assert found
        form = {"form": found[1]}
        answer = browser.post("/runs/slow-1/cancel", data=form)
        assert answer.headers["location"] == "/runs/slow-1?note=cancel"
        wait_for(lambda: store.run("slow-1").state is State.CANCELLED)
        # What is over is not ended twice.
        assert browser.post("/runs/slow-1/cancel", data=form).status_code == 303
        assert "End this run" not in browser.get("/runs/slow-1").text

        answer = browser.post("/runs/slow-1/again", data=form)
        assert answer.headers["location"] == "/runs/slow-2?note=again"
        assert "This is the new run" in browser.get(answer.headers["location"]).text
        wait_for(lambda: store.counts("slow-2")[State.RUNNING] == 1)
        browser.post("/runs/slow-2/cancel", data=form)
        wait_for(lambda: store.run("slow-2").state is State.CANCELLED)

        document.write_text("type: Suite\nnmae: slow\n")
        answer = browser.post("/runs/slow-1/again", data=form)
        assert answer.status_code == 422
        assert "slow.yaml:2:1: unknown field" in answer.text
        document.unlink()
        answer = browser.post("/runs/slow-1/again", data=form)
        assert answer.status_code == 422
        assert "the document is not there any more" in answer.text
        assert browser.post("/runs/nothing-1/cancel", data=form).status_code == 422
        assert [run.id for run in store.runs()] == ["slow-2", "slow-1"]
        # SIGTERM is an end like any other.
        assert served.end(signal.SIGTERM) == (0, "")


def test_a_run_that_nobody_drives_gets_somebody_who_ends_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench import served_runs

    started: list[str] = []
    monkeypatch.setattr(app, "start_in_background", lambda store, run: started.append(run))
    with Store.open(folder) as store:
        run = served_runs.make_run(store, "left", "Suite", [served_runs.task("a")], at=1.0)
        app.cancel(folder, run)
        assert store.wanted(run) == "cancel"
        assert started == [run]
    with pytest.raises(InputError, match="there is no run"):
        app.cancel(folder, "nothing-1")


def test_what_has_ended_while_nobody_drove_is_taken_in(folder: Path) -> None:
    from bench import served_runs

    with Store.open(folder) as store:
        run = served_runs.make_run(store, "left", "Suite", [served_runs.task("a")], at=1.0)
        attempt = served_runs.begin(store, run, "a", at=2.0, logs={})
        attempt.mkdir(parents=True, exist_ok=True)
        # Its runner has claimed it, and is gone without a word.
        (attempt / "claim").touch()
        take_in(folder)
        assert store.task_row(run, "a").state is State.LOST
        assert store.attempts(run, "a")[0].state is State.LOST


def test_a_store_that_is_gone_is_no_matter_for_the_caretaker(tmp_path: Path) -> None:
    take_in(tmp_path / "nowhere")


def test_a_port_that_is_taken_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", "--port", str(port), "--store", str(folder)]) == 2
    said = capsys.readouterr().err
    assert f"--port {port}: another program listens there; --port 0 takes one" in said


def test_the_usual_port_gives_way_if_nobody_has_asked_for_it() -> None:
    first = listen(None)
    second = listen(None)
    try:
        assert port_of(first) != port_of(second)
        assert first.getsockname()[0] == second.getsockname()[0] == "127.0.0.1"
    finally:
        first.close()
        second.close()


def test_why_a_port_cannot_be_had_is_said_with_a_remedy() -> None:
    said = why_not(80, PermissionError(errno.EACCES, "Permission denied"))
    assert said == "--port 80: only root may listen there; take one of 1024 or more"
    assert why_not(80, OSError(errno.EIO, "Broken")) == "--port 80: Broken"


def test_without_a_store_or_the_extra_it_is_said(
    tmp_path: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["serve", "--store", str(tmp_path / "nowhere")]) == 2
    assert "there is no store" in capsys.readouterr().err
    import rankwise.web

    monkeypatch.delattr(rankwise.web, "app")
    monkeypatch.delitem(__import__("sys").modules, "rankwise.web.app")
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    assert main(["serve", "--store", str(folder)]) == 2
    assert "the page needs uvicorn:  pip install 'rankwise[web]'" in capsys.readouterr().err


def test_a_browser_is_opened_by_a_file_that_only_we_can_read(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "browser.sh"
    opened = tmp_path / "opened"
    script.write_text(
        f'#!/bin/sh\nstat -c %a "${{1#file://}}" > {opened}.new\ncat "${{1#file://}}" >> {opened}.new\nmv {opened}.new {opened}\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(script))
    with serving(folder, "--port", "0", "--open") as served:
        wait_for(opened.exists)
        mode, page = opened.read_text().split("\n", 1)
        assert mode == "600"
        assert f"url={served.address}" in page
        assert served.end() == (0, "")
    assert not (folder / "serve.html").exists()
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert not _open(opened)
