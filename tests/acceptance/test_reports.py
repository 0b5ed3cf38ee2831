"""Reports as people see them: opened in a real browser, printed, and in a real mailbox."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, Page, browser, obstacle

from rankwise.reports.html import html_report
from rankwise.reports.model import ReportData
from rankwise.store import State, Store
from tests.acceptance import jobs
from tests.acceptance.jobs import Shop
from tests.notify.mailboxes import chat, free_port, mail_server
from tests.reports.matrix_runs import make_matrix, typical
from tests.reports.measured_runs import analysed_run, hostile_run, many_cases, osu_sweep

SWEEP = """
    type: Sweep
    name: speed
    parameters:
      size: [1, 4, 16]
    trials: 3
    command: echo "time = ${{ size }}.5 s"
    metrics:
      - parser: regex
        name: time
        pattern: "time = (?P<value>[0-9.]+)"
        unit: s
        better: lower
    report: when-complete
"""
# Wider than any screen, in each of the ways.
ANALYSED = {
    "a.md": f"# {'w' * 300}\n\n{'w' * 300}\n\n- {'w' * 300}\n\n    {'w ' * 300}\n\n"
    f"|{' column |' * 40}\n|{' --- |' * 40}\n|{' value |' * 40}\n\n<script>throw 1</script>\n".encode(),
    "b.svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="4000" height="9"/>',
}
FAILING = """
    type: PytorchJob
    name: sad
    worker:
      spec:
        command: echo "all is lost"; exit 7
"""
MAIL = """
    [notify.team]
    host = "127.0.0.1"
    port = {port}
    security = "none"
    from = "robot@example.org"
    to = "ada@example.org"
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser for all tests here; skip without one, or fail where everything is required."""
    if why := obstacle():
        if os.environ.get("RANKWISE_REQUIRE_ALL"):
            pytest.fail(why, pytrace=False)
        pytest.skip(why)
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of runs with measurements, of hostile ones, and of a thousand cases."""
    folder = tmp_path_factory.mktemp("reports")
    found = {}
    with Store.open(folder / ".rankwise") as store:
        osu_sweep(store, seed=1)
        runs = {
            "sweep": osu_sweep(store, seed=2, factor=1.2),
            "hostile": hostile_run(store),
            "many": many_cases(store, 1000),
            "matrix": make_matrix(store, typical()),
            "analysed": analysed_run(store, ANALYSED, State.FAILED),
        }
        for name, run in runs.items():
            found[name] = folder / f"{name}.html"
            data = ReportData(store=store, run=store.run(run), now=time.time())
            found[name].write_text(html_report(data), encoding="utf-8")
    return found


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with jobs.opened(tmp_path) as opened:
        yield opened


def first_cells(page: Page, part: str) -> list[str]:
    """Return the first cell of each row that is to be seen in a table."""
    rows = f"[...document.querySelectorAll('#{part} tbody tr')]"
    found = page.evaluate(f"{rows}.filter(r => !r.hidden).map(r => r.cells[0].textContent)")
    assert isinstance(found, list)
    return found


def click(page: Page, part: str, words: str) -> None:
    """Press a button with these words."""
    buttons = f"[...document.querySelectorAll('#{part} button')]"
    page.evaluate(f"{buttons}.find(b => b.textContent === {json.dumps(words)}).click()")


@pytest.mark.parametrize("name", ["sweep", "hostile", "many", "matrix", "analysed"])
@pytest.mark.parametrize("width", [1200, 390])
def test_a_page_is_quiet_and_asks_for_nothing_else(
    chromium: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    page = chromium.page()
    page.look_like(width=width, is_dark=width == 390)
    page.open(pages[name])
    assert page.complaints == []
    # Pictures are in the page itself.
    outside = [one for one in page.requests if not one.startswith("data:")]
    assert outside == [pages[name].as_uri()]
    # Nothing sticks out to the right: a phone would make all letters smaller.
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_page_that_is_not_quiet_would_be_noticed(chromium: Browser, tmp_path: Path) -> None:
    loud = tmp_path / "loud.html"
    loud.write_text(
        "<img src=http://127.0.0.1:9/x.png><script>console.log('hi'); nothing()</script>"
    )
    page = chromium.page()
    page.open(loud)
    assert "http://127.0.0.1:9/x.png" in page.requests
    assert any("nothing is not defined" in one for one in page.complaints)
    assert any('"hi"' in one for one in page.complaints)


def test_tables_sort_and_filter(chromium: Browser, pages: dict[str, Path]) -> None:
    page = chromium.page()
    page.open(pages["many"])
    planned = first_cells(page, "cases")
    assert len(planned) == 1000
    click(page, "cases", "size")
    assert first_cells(page, "cases")[:2] == ["ranks-1.size-0.t1", "ranks-2.size-1.t1"]
    click(page, "cases", "size")
    assert first_cells(page, "cases")[0] == "ranks-8.size-999.t1"
    click(page, "cases", "case")
    assert first_cells(page, "cases")[0] == "ranks-1.size-0.t1"
    click(page, "cases", "failed")
    assert len(first_cells(page, "cases")) == 100
    typed = "const f = document.querySelector('#cases input'); f.value = 'ranks-4. CODE 3';"
    page.evaluate(f"{typed} f.dispatchEvent(new Event('input'))")
    shown = first_cells(page, "cases")
    assert shown
    assert len(shown) < 100
    assert all(one.startswith("ranks-4.") for one in shown)
    said = page.evaluate("document.querySelector('#cases .tools .soft').textContent")
    assert said == f"{len(shown)} of 1000 rows"
    assert page.complaints == []


def test_a_page_says_all_without_scripts(chromium: Browser, pages: dict[str, Path]) -> None:
    page = chromium.page()
    page.without_scripts()
    page.open(pages["sweep"])
    document = page.ask("DOM.getDocument")
    root = document["root"]["nodeId"]
    heads = page.ask("DOM.querySelectorAll", nodeId=root, selector="input, button")
    assert heads["nodeIds"] == []
    rows = page.ask("DOM.querySelectorAll", nodeId=root, selector="#cases tbody tr")
    assert len(rows["nodeIds"]) == 45
    plots = page.ask("DOM.querySelectorAll", nodeId=root, selector="figure svg")
    assert len(plots["nodeIds"]) > 5


def test_a_click_on_a_cell_opens_what_is_behind_it_without_scripts(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    """It is in something that is folded, within something else that is."""
    page = chromium.page()
    page.look_like(width=1200, height=1600)
    page.without_scripts()
    page.open(pages["matrix"])
    root = page.ask("DOM.getDocument")["root"]["nodeId"]

    def find(selector: str) -> list[int]:
        found = page.ask("DOM.querySelectorAll", nodeId=root, selector=selector)["nodeIds"]
        assert isinstance(found, list)
        return found

    [link] = find("#matrix td.good a")
    attributes = page.ask("DOM.getAttributes", nodeId=link)["attributes"]
    target = attributes[attributes.index("href") + 1]
    assert find(f"details[open] details[open] > {target}") == []
    page.ask("DOM.scrollIntoViewIfNeeded", nodeId=link)
    corners = page.ask("DOM.getBoxModel", nodeId=link)["model"]["content"]
    for kind in ("mousePressed", "mouseReleased"):
        place = {"x": (corners[0] + corners[4]) / 2, "y": (corners[1] + corners[5]) / 2}
        page.ask("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
    opened = f"details[open] details[open] > {target}"
    chromium.wait_until(lambda: bool(find(opened)), "what is behind the cell")


def test_a_page_follows_the_colours_of_the_machine(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    page = chromium.page()
    seen = []
    for is_dark in (False, True):
        page.look_like(is_dark=is_dark)
        page.open(pages["sweep"])
        seen.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        fill = "getComputedStyle(document.querySelector('figure .f0')).fill"
        seen.append(page.evaluate(fill))
    assert len(set(seen)) == 4


def test_a_detached_sweep_has_its_report_and_its_news_when_the_last_case_is_in(
    shop: Shop,
) -> None:
    shop.write("sweep.yaml", SWEEP)
    with mail_server() as mailbox:
        shop.write("rankwise.toml", MAIL.format(port=mailbox.port))
        said = shop.rankwise("submit", "sweep.yaml", "--notify", "team")
        assert said.exit_code == 0, said
        # No process is there any more but the one that drives it.
        shop.wait_until_empty(60)
    [letter] = mailbox.letters
    assert letter["Subject"] == "speed-1 passed: 9 cases: 9 passed."
    attached = [part.get_filename() for part in letter.iter_attachments()]
    assert attached == ["speed-1.pdf", "speed-1.csv"]
    folder = shop.folder / ".rankwise" / "runs" / "speed-1"
    assert "speed-1" in (folder / "report.html").read_text()
    assert (folder / "report.pdf").read_bytes().startswith(b"%PDF-")
    again = shop.rankwise("resume", "speed-1")
    assert again.exit_code == 0, again
    assert len(mailbox.letters) == 1

    said = shop.rankwise("report", "--html", "r.html", "--csv", "-", "--json", "deep/r.json")
    assert said.exit_code == 0, said
    assert said.output.count("speed-1,") == 9
    data = json.loads((shop.folder / "deep" / "r.json").read_text())
    assert [one["now"]["middle"] for one in data["measures"]] == [1.5, 4.5, 16.5]
    repeat = data["cases"][0]["repeat"]
    assert re.fullmatch(r"rankwise run sweep\.yaml --only \S+", repeat)
    said = shop.rankwise(*repeat.split()[1:])
    assert said.exit_code == 0, said
    assert "speed-2" in shop.rankwise("list").output


def test_a_mail_server_that_is_down_never_fails_a_run(shop: Shop) -> None:
    port = free_port()
    shop.write("sad.yaml", FAILING)
    shop.write("rankwise.toml", MAIL.format(port=port))
    said = shop.rankwise("run", "sad.yaml", "--notify", "team")
    assert said.exit_code == 7, said
    assert "team was not notified of sad-1" in said.errors
    assert "Connection refused" in said.errors
    assert shop.rankwise("notify", "--retry").exit_code == 1
    with mail_server(port=port) as mailbox:
        # The next run brings the news of the last one, too.
        said = shop.rankwise("run", "sad.yaml", "--notify", "team", "--quiet")
        assert said.exit_code == 7, said
    subjects = [letter["Subject"].partition(":")[0] for letter in mailbox.letters]
    assert subjects == ["sad-1 failed", "sad-2 failed"]
    assert shop.rankwise("notify", "--retry").exit_code == 0


def test_news_go_into_chats_and_names_are_checked_before_a_run(shop: Shop) -> None:
    shop.write("sad.yaml", FAILING)
    with chat() as (url, taken):
        shop.write("rankwise.toml", f'[notify.chat]\nurl_secret = "HOOK"\n# {url}\n')
        said = shop.rankwise("run", "sad.yaml", "--notify", "chatt")
        assert said.exit_code == 2, said
        assert 'did you mean "chat"?' in said.errors
        assert shop.rankwise("run", "sad.yaml").exit_code == 7
        said = shop.rankwise("notify", variables={"HOOK": url})
        assert said.exit_code == 0, said
    assert json.loads(taken[0])["text"].startswith("sad-1 failed")
