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
from starlette.testclient import TestClient

from rankwise.cli.main import main
from rankwise.cli.operations import _open
from rankwise.errors import InputError
from rankwise.store import State, Store
from rankwise.web import app
from rankwise.web.app import HOST, listen
from rankwise.web.security import Secrets, has_cookie, is_here, is_own_post, is_same
from rankwise.web.store_access import update_stale_runs
from tests.web.conftest import HERE, KEYS
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


def test_cancelling_a_run_without_a_client_starts_one_that_ends_it(
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


def test_attempts_that_ended_without_a_client_are_recorded(folder: Path) -> None:
    from bench import served_runs

    with Store.open(folder) as store:
        run = served_runs.make_run(store, "left", "Suite", [served_runs.task("a")], at=1.0)
        attempt = served_runs.begin(store, run, "a", at=2.0, logs={})
        attempt.mkdir(parents=True, exist_ok=True)
        # Its runner has claimed it, and is gone without a word.
        (attempt / "claim").touch()
        update_stale_runs(folder)
        assert store.task_row(run, "a").state is State.LOST
        assert store.attempts(run, "a")[0].state is State.LOST


def test_a_store_that_is_gone_does_not_disturb_the_caretaker(tmp_path: Path) -> None:
    update_stale_runs(tmp_path / "nowhere")


def test_a_port_that_is_taken_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", "--port", str(port), "--store", str(folder)]) == 2
    said = capsys.readouterr().err
    assert f"--port {port}: another program uses this port; --port 0 takes a free one" in said


def test_the_default_port_is_replaced_by_a_free_one_if_none_was_asked_for() -> None:
    first = listen(None)
    second = listen(None)
    try:
        assert first.getsockname() != second.getsockname()
        assert first.getsockname()[0] == second.getsockname()[0] == "127.0.0.1"
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(errno.EACCES, "No"), "only root may listen there; take one of 1024"),
        (OSError(errno.EIO, "Broken"), "Broken"),
    ],
)
def test_why_a_port_cannot_be_had_is_said_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    def refuse(self: socket.socket, address: object) -> None:
        raise error

    monkeypatch.setattr(socket.socket, "bind", refuse, raising=False)
    with pytest.raises(InputError, match=f"^--port 80: {said}"):
        listen(80)


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


# Who may see the page, and who may press its buttons

SECRETS = (KEYS.cookie, KEYS.form)
OWN_FORM = {"form": KEYS.form}
CANCEL = "/runs/nightly-1/cancel"


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost", "LOCALHOST:80", "[::1]:9000"])
def test_names_of_this_machine_are_known_whatever_the_port(host: str) -> None:
    assert is_here(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8765",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8765",
        "evil.example@127.0.0.1",
        "127.0.0.1:8765, evil.example",
        "127.0.0.1:8765\n",
        "127.0.0.2",
        "0.0.0.0:8765",
    ],
)
def test_other_names_are_refused(host: str) -> None:
    assert not is_here(host)


def test_secrets_are_compared_whatever_is_given() -> None:
    assert is_same("abc", "abc")
    assert not any(is_same(given, "abc") for given in ("", "ab", "abcd", "abc\0", "äöü", "\ud800"))


def test_every_server_has_secrets_of_its_own() -> None:
    made = [Secrets() for _ in range(3)]
    words = [word for keys in made for word in (keys.token, keys.cookie, keys.form)]
    assert len(set(words)) == 9
    assert min(map(len, words)) >= 32


@pytest.mark.parametrize(
    "header",
    [
        "",
        "rankwise=",
        "rankwise=wrong",
        "other=the-cookie",
        "rankwise=the-cookie2",
        ";;=\0",
        "x" * 9999,
    ],
)
def test_another_cookie_is_none(header: str) -> None:
    assert not has_cookie(header, KEYS)
    assert has_cookie(f"a=b; {KEYS.name}={KEYS.cookie}", KEYS)


@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:1"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:1"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://127.0.0.1:2"}, False),
        ({"origin": "https://127.0.0.1:1"}, False),
        ({"origin": "null"}, False),
    ],
)
def test_where_a_post_comes_from(headers: dict[str, str], is_own: bool) -> None:
    assert is_own_post({"host": "127.0.0.1:1", **headers}) is is_own


def test_the_token_is_good_for_a_cookie_that_scripts_and_other_sites_cannot_use(
    stranger: TestClient,
) -> None:
    answer = stranger.get("/", params={"token": KEYS.token})
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert f"{KEYS.name}={KEYS.cookie}" in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    # The browser goes on to an address without it, and does not pass this one on.
    assert 'content="0;url=/"' in answer.text
    assert KEYS.token not in answer.text
    assert answer.headers["referrer-policy"] == "no-referrer"
    stranger.cookies.clear()


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/?token=wrong",
        "/?token=",
        "/?token=the-token%00",
        "/runs/nightly-1",
        "/runs/nightly-1?token=the-token",
        "/runs/nightly-1/logs",
        "/runs/nightly-1/log-file?task=case-00000",
        "/changes",
        "/trends",
        "/static/live.js",
        "/nothing",
    ],
)
def test_without_the_token_nothing_is_shown(stranger: TestClient, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status_code == 403
    assert "nightly" not in answer.text
    assert "set-cookie" not in answer.headers
    assert not any(secret in answer.text for secret in SECRETS)


def test_a_wrong_cookie_is_none(stranger: TestClient) -> None:
    for cookie in ("wrong", "", KEYS.token):
        answer = stranger.get("/", headers={"cookie": f"{KEYS.name}={cookie}"})
        assert answer.status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.nip.io"])
def test_a_name_that_leads_here_is_refused_even_with_the_token(
    visitor: TestClient, host: str
) -> None:
    for path in ("/", f"/?token={KEYS.token}", "/changes"):
        answer = visitor.get(path, headers={"host": host})
        assert answer.status_code == 421
        assert "set-cookie" not in answer.headers


def test_every_answer_forbids_what_a_page_does_not_need(
    visitor: TestClient, stranger: TestClient
) -> None:
    answers = [
        visitor.get("/"),
        visitor.get("/nothing"),
        visitor.get("/static/live.js"),
        visitor.get("/runs/checks-1/log-file?task=halo"),
        stranger.get("/"),
    ]
    for answer in answers:
        rules = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in rules
        assert "frame-ancestors 'none'" in rules
        assert "unsafe-eval" not in rules
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in answer.headers
    assert answers[0].headers["cache-control"] == "no-store"
    # A report brings its own rules, and must not be in a frame either.
    report = visitor.get("/runs/checks-1/report")
    assert report.headers["content-security-policy"] == "frame-ancestors 'none'"
    assert "script-src 'sha256-" in report.text


@pytest.mark.parametrize(
    "path",
    [
        "/static/../guard.py",
        "/static/..%2fguard.py",
        "/static/%2e%2e/%2e%2e/guard.py",
        "/static//etc/passwd",
        "/static/live.js%00",
        "/runs/..%2f..%2fetc%2fpasswd",
        "/runs/../../etc/passwd",
        "/runs/checks-1/logs?task=..%2f..",
        "/runs/checks-1/logs?task=halo&process=..%2f..%2frank-0",
        "/runs/checks-1/logs?task=halo&process=%2fetc",
        "/runs/checks-1/log-file?task=halo&process=..%2f..%2f..%2fstore.db",
        "/runs/checks-1/log-file?task=halo&attempt=99",
        "/runs/checks-1/task?task=..%2fhalo",
    ],
)
def test_no_address_leads_out(visitor: TestClient, path: str) -> None:
    answer = visitor.get(path)
    assert answer.status_code == 404, path
    assert "root:" not in answer.text
    assert "def is_same" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
    ],
)
def test_a_button_on_another_site_does_nothing(
    visitor: TestClient, headers: dict[str, str]
) -> None:
    for path in (CANCEL, "/runs/nightly-1/again"):
        answer = visitor.post(path, data=OWN_FORM, headers=headers)
        assert answer.status_code == 403
    assert "It is being ended" not in visitor.get("/runs/nightly-1").text


@pytest.mark.parametrize("form", [{}, {"form": ""}, {"form": "wrong"}, {"form": KEYS.token}])
def test_a_form_that_is_not_ours_does_nothing(visitor: TestClient, form: dict[str, str]) -> None:
    answer = visitor.post(CANCEL, data=form, headers={"origin": HERE})
    assert answer.status_code == 403
    assert "It is being ended" not in visitor.get("/runs/nightly-1").text


def test_a_form_without_end_is_not_read(visitor: TestClient) -> None:
    answer = visitor.post(CANCEL, content=b"form=the-form&x=" + b"y" * 1_000_000)
    assert answer.status_code == 403


def test_buttons_cannot_be_pressed_by_an_address(visitor: TestClient) -> None:
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
        answer = visitor.request(method, CANCEL)
        assert answer.status_code in (404, 405), method
    assert visitor.post("/", data=OWN_FORM).status_code == 405


@pytest.mark.parametrize("odd", ['x="unclosed', "a[1]=2", "b={json: 1}", "=;", "naïve=ü"])
def test_odd_cookies_of_other_programs_do_not_lock_users_out(odd: str) -> None:
    assert has_cookie(f"{odd}; {KEYS.name}={KEYS.cookie}", KEYS)
    assert has_cookie(f"{KEYS.name}={KEYS.cookie}; {odd}", KEYS)
