"""The page in a real browser: as it happens, with the keyboard, on a phone, and read aloud."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it has none
from browser import obstacle
from playwright.sync_api import Browser, Page, expect, sync_playwright

from bench import served_runs
from rankwise.store import State, Store
from rankwise.store.store import driving
from tests.web.conftest import fill
from tests.web.served import Served, serving
from tests.web.test_pages import ADDRESSES, HOSTILE_ADDRESSES

CHROMIUM = "/usr/bin/chromium"
HIDE = """(isHidden) => {
    Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
_PATIENCE_MS = 30_000
expect.set_options(timeout=_PATIENCE_MS)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser for all tests here; skip without one, or fail where everything is required."""
    if why := obstacle():
        if os.environ.get("RANKWISE_REQUIRE_ALL"):
            pytest.fail(why, pytrace=False)
        pytest.skip(why)
    with sync_playwright() as tools:
        # It makes a socket there, and aborts where the name of the folder is long.
        variables: dict[str, str | float | bool] = {**os.environ, "TMPDIR": "/tmp"}
        started = tools.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], env=variables
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store with runs of every kind; tests add runs of their own."""
    made = tmp_path_factory.mktemp("browser") / ".rankwise"
    fill(made)
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with serving(folder) as served:
        yield served


@pytest.fixture
def tab(chromium: Browser, server: Served) -> Iterator[Page]:
    """A page of one who has opened the printed address; what the browser complains of fails."""
    context = chromium.new_context(viewport={"width": 1180, "height": 800})
    page = context.new_page()
    page.set_default_timeout(_PATIENCE_MS)
    complaints: list[str] = []
    # That a page is not there is written to the console by the browser itself.
    page.on(
        "console", lambda said: complaints.append(said.text) if "404" not in said.text else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
    page.on("request", lambda asked: _note_elsewhere(asked.url, server.base, complaints))
    page.goto(server.address)
    page.wait_for_url(f"{server.base}/")
    yield page
    context.close()
    assert complaints == []


def _note_elsewhere(address: str, base: str, complaints: list[str]) -> None:
    if not address.startswith((base, "data:")):
        complaints.append(f"asked for {address}")


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with Store.open(folder) as opened:
        yield opened


def new_run(store: Store, name: str, *keys: str) -> str:
    tasks = [served_runs.task(key) for key in keys]
    return served_runs.make_run(store, name, "Suite", tasks, at=time.time())


def test_the_token_leaves_the_address_and_the_history(tab: Page, server: Served) -> None:
    assert tab.url == f"{server.base}/"
    cookie = tab.context.cookies()[0]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert tab.evaluate("document.cookie") == ""
    tab.go_back()
    assert "token" not in tab.url


def test_a_stranger_sees_nothing(chromium: Browser, server: Served) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{server.base}/runs/nightly-1")
    assert "not open to everybody" in page.content()
    assert "nightly" not in page.content().replace("/runs/nightly-1", "")
    context.close()


def test_a_form_of_another_site_does_nothing(tab: Page, server: Served, tmp_path: Path) -> None:
    # A page elsewhere, in the same browser, with the cookie of ours at hand.
    evil = tab.context.new_page()
    evil.route("http://evil.example/", lambda route: route.fulfill(
        content_type="text/html",
        body=f'<form method=post action="{server.base}/runs/nightly-1/cancel"><button>Win</button></form>',
    ))  # fmt: skip
    evil.goto("http://evil.example/")
    evil.get_by_role("button").click()
    expect(evil.locator("body")).to_contain_text("not open to everybody")
    evil.close()
    tab.goto(f"{server.base}/runs/nightly-1")
    assert "being ended" not in tab.content()


def test_runs_and_tasks_change_as_they_happen(tab: Page, server: Served, store: Store) -> None:
    expect(tab.locator("#link-state")).to_have_text("live")
    run = new_run(store, "alive", "first", "second")
    row = tab.get_by_role("row").filter(has_text=run)
    expect(row).to_contain_text("0 of 2")
    tab.get_by_role("link", name=run).click()
    expect(tab.locator("#link-state")).to_have_text("live")
    tab.evaluate("window.isTheSame = true")
    served_runs.begin(store, run, "first", at=time.time(), logs={"rank-0": "hello\n"})
    first = tab.get_by_role("row").filter(has_text="first")
    expect(first).to_contain_text("running")
    # Time goes on without a word from the server.
    counted = first.locator("[data-since]").inner_text()
    expect(first.locator("[data-since]")).not_to_have_text(counted)
    first.get_by_role("link", name="first").focus()
    served_runs.end(store, run, "first", at=time.time(), state=State.FAILED, reason="oh no")
    expect(first).to_contain_text("oh no")
    # Who was at a link still is.
    assert tab.evaluate("document.activeElement.textContent") == "first"
    expect(tab.locator("h1")).to_contain_text("running")
    store.task_over(run, "second", State.NOT_RUN, reason="it is not needed", now=time.time())
    served_runs.finish(store, run, at=time.time())
    expect(tab.locator("h1")).to_contain_text("failed")
    expect(tab.locator("#link-state")).to_have_text("over")
    expect(tab.locator("#said")).to_contain_text("1 failed, 1 not run")
    expect(tab.locator("#cancel-form")).to_have_count(0)
    assert tab.evaluate("window.isTheSame") is True


def test_what_is_unfolded_stays_so(tab: Page, server: Served, store: Store) -> None:
    run = new_run(store, "folds", "first", "second")
    for key in ("first", "second"):
        served_runs.begin(store, run, key, at=time.time(), logs={"rank-0": "hello\n"})
    served_runs.end(store, run, "first", at=time.time(), state=State.FAILED, reason="oh no")
    tab.goto(f"{server.base}/runs/{run}/failures")
    expect(tab.locator("#link-state")).to_have_text("live")
    tab.locator("summary").filter(has_text="first").click()
    expect(tab.locator("#live-failures details[open]")).to_have_count(0)
    served_runs.end(store, run, "second", at=time.time(), state=State.FAILED, reason="oh dear")
    expect(tab.locator("#live-failures details[open]")).to_have_count(1)
    expect(tab.locator("#live-failures details[open] summary")).to_contain_text("oh dear")


def test_a_log_is_followed(tab: Page, server: Served, store: Store) -> None:
    run = new_run(store, "talks", "only")
    place = served_runs.begin(store, run, "only", at=time.time(), logs={"rank-0": "one\n"})
    path = place / "processes" / "rank-0" / "output.log"
    tab.goto(f"{server.base}/runs/{run}/logs")
    log = tab.get_by_role("log")
    expect(log).to_have_text("one\n")
    expect(tab.locator("#link-state")).to_have_text("live")
    with path.open("a") as file:
        file.write("<script>alert(1)</script>\x1b[31mred\x1b[0m\n")
    expect(log).to_have_text("one\n<script>alert(1)</script>red\n")
    with path.open("a") as file:
        file.write("".join(f"line {number}\n" for number in range(400)))
    expect(log).to_contain_text("line 399")
    # Who looks elsewhere for a while misses nothing, and sees nothing twice.
    tab.evaluate(HIDE, True)
    with path.open("a") as file:
        file.write("meanwhile\n")
    tab.evaluate(HIDE, False)
    expect(log).to_contain_text("meanwhile")
    assert log.inner_text().count("line 7\n") == 1
    # It stays at the end, unless the user reads further up.
    assert tab.evaluate("log.scrollTop + log.clientHeight >= log.scrollHeight - 2")
    tab.get_by_label("Stay at the end").uncheck()
    tab.evaluate("log.scrollTop = 0")
    with path.open("a") as file:
        file.write("the last words")
    served_runs.end(store, run, "only", at=time.time())
    expect(log).to_contain_text("the last words")
    assert tab.evaluate("log.scrollTop") == 0
    expect(tab.locator("#link-state")).to_have_text("over")


def test_a_server_that_is_gone_is_noticed(chromium: Browser, folder: Path) -> None:
    context = chromium.new_context()
    page = context.new_page()
    with serving(folder) as served:
        page.goto(served.address)
        expect(page.locator("#link-state")).to_have_text("live")
        assert served.end() == (0, "")
    expect(page.locator("#link-state")).not_to_have_text("live")
    context.close()


def test_all_is_reached_with_the_keyboard(tab: Page, server: Served) -> None:
    tab.goto(f"{server.base}/runs/nightly-1")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert tab.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "content"
    tab.keyboard.press("/")
    assert tab.evaluate("document.activeElement.name") == "words"
    tab.keyboard.type("case-00041")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**words=case-00041**")
    expect(tab.get_by_role("row")).to_have_count(2)
    style = "getComputedStyle(document.activeElement).outlineStyle"
    for _ in range(12):
        tab.keyboard.press("Tab")
        assert tab.evaluate(style) != "none", tab.evaluate("document.activeElement.outerHTML")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_pass_the_checks_of_accessibility(tab: Page, server: Served, scheme: str) -> None:
    tab.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    # One store for both: colours differ, all else does not.
    addresses = [*ADDRESSES, "/runs/nothing-1"] if scheme == "light" else ADDRESSES[:6]
    found = {}
    axe = Axe()
    for path in addresses:
        tab.goto(f"{server.base}{path}")
        tab.evaluate(
            "document.querySelectorAll('details').forEach((fold) => { fold.open = true; })"
        )
        violations = axe.run(tab).response["violations"]
        if violations:
            found[path] = [(one["id"], one["nodes"][0]["html"][:200]) for one in violations]
    assert found == {}


def test_a_phone_is_wide_enough(tab: Page, server: Served) -> None:
    tab.set_viewport_size({"width": 360, "height": 740})
    for path in ADDRESSES:
        tab.goto(f"{server.base}{path}")
        wide = tab.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, (path, wide)


def test_fields_stand_in_one_line(tab: Page, server: Served) -> None:
    for path in ("/", "/compare"):
        tab.goto(f"{server.base}{path}")
        fields = tab.locator(".tools :is(input, select, button):visible")
        boxes = [one.bounding_box() for one in fields.all()]
        assert len({(box["y"], box["height"]) for box in boxes if box}) == 1, (path, boxes)


def test_a_narrow_column_does_not_break_short_words(tab: Page, server: Served) -> None:
    tab.set_viewport_size({"width": 390, "height": 740})
    path = next(one for one in ADDRESSES if one.endswith("/matrix"))
    tab.goto(f"{server.base}{path}")
    for head in tab.locator("tbody th").all():
        box = head.bounding_box()
        assert box is not None
        assert box["width"] >= 100


def test_without_scripts_pages_show_the_same(chromium: Browser, server: Served) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(server.address)
    page.wait_for_url(f"{server.base}/")
    assert page.get_by_role("row").count() > 10
    for path in ADDRESSES:
        page.goto(f"{server.base}{path}")
        assert page.locator("main h1").count() == 1, path
        assert page.locator("main").inner_text().strip()
    page.goto(f"{server.base}/runs/nightly-1")
    page.get_by_role("searchbox").fill("00041")
    page.get_by_role("button", name="Show").click()
    assert page.get_by_role("row").count() == 2
    page.goto(f"{server.base}/runs/checks-1/logs?task=halo")
    assert "MPI_ERR_TRUNCATE" in page.locator("#log").inner_text()
    assert not page.locator(".follow").is_visible()
    context.close()


def test_nothing_hostile_runs(tab: Page, server: Served) -> None:
    for path in HOSTILE_ADDRESSES:
        tab.goto(f"{server.base}{path}")
        assert tab.locator("main h1").count() == 1
    assert tab.locator("img").count() == 0


def test_a_hidden_tab_does_not_listen(tab: Page, server: Served) -> None:
    expect(tab.locator("#link-state")).to_have_text("live")
    with tab.expect_event("requestfailed", lambda asked: "/changes" in asked.url):
        tab.evaluate(HIDE, True)
    with tab.expect_request("**/changes?**"):
        tab.evaluate(HIDE, False)
    expect(tab.locator("#link-state")).to_have_text("live")


def test_the_page_of_a_run_says_when_no_client_drives_it(
    tab: Page, server: Served, store: Store
) -> None:
    run = new_run(store, "alone", "only")
    tab.goto(f"{server.base}/runs/{run}")
    expect(tab.locator("#live-driver")).to_contain_text(f"rankwise resume {run}")
    with driving(store.run_folder(run), run):
        # As long as nothing is written, a page is the same for a second.
        tab.wait_for_timeout(1100)
        tab.reload()
        expect(tab.locator("#live-driver")).to_be_empty()
