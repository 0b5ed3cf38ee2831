"""The site of the documentation: made without a warning, looked at without a network, read aloud."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import browser
import doc_tables
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it has none
from playwright.sync_api import Page, ViewportSize, sync_playwright

from tests.acceptance.conftest import require_environment

ROOT = Path(__file__).parents[2]
CHROMIUM = "/usr/bin/chromium"
PHONE: ViewportSize = {"width": 390, "height": 800}
_ARE_TABLES_FRAMED = """() => [...document.querySelectorAll("article table:not([class])")]
    .every((table) => table.closest(".md-typeset__scrollwrap"))"""
_REFERENCE = re.compile(r"(?:src|href)=\"?(https?:)?//", re.IGNORECASE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    environment = require_environment("docs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [environment.python, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # Strict: a link that leads nowhere is an error, and so is a page that no menu has.
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")}


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*>", page.read_text())
        assert loaded
        assert not [one for one in loaded if _REFERENCE.search(one)], page


def test_headings_behind_code_are_headings(site: Path) -> None:
    """A fence that mkdocs cannot read swallows the rest of its page."""
    for source in (ROOT / "docs").glob("*.md"):
        page = doc_tables.fill(source.read_text())
        text = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
        wanted = len(re.findall(r"^## ", text, flags=re.MULTILINE))
        assert (site / f"{source.stem}.html").read_text().count("<h2 id=") == wanted, source


def test_no_table_is_cut_in_two_and_no_step_is_in_the_text_of_another(site: Path) -> None:
    wrong = re.compile(r"<p>\||^\d\. [A-Z]", re.MULTILINE)
    assert [page for page in site.glob("*.html") if wrong.search(page.read_text())] == []


def test_what_belongs_to_a_step_is_indented_by_four() -> None:
    """With less, mkdocs ends the list there, and the next step begins with 1 again."""
    wrong = []
    for source in (ROOT / "docs").glob("*.md"):
        text = re.sub(r"^```.*?^```", "", source.read_text(), flags=re.DOTALL | re.MULTILINE)
        starts = re.findall(r"(?:\A|\n)\n( +)\S|^( +)```", text, flags=re.MULTILINE)
        depths = {len(after_blank or fence) for after_blank, fence in starts}
        wrong += [f"{source.name}: {depth}" for depth in depths if depth % 4]
    assert wrong == []


def test_every_dialog_has_a_name(site: Path) -> None:
    for page in site.glob("*.html"):
        assert not re.search(r'role="dialog"(?! aria-label)', page.read_text()), page


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    if why := browser.obstacle():
        if os.environ.get("RANKWISE_REQUIRE_ALL"):
            pytest.fail(why, pytrace=False)
        pytest.skip(why)
    with sync_playwright() as tools:
        # It makes a socket there, and aborts where the name of the folder is long.
        variables: dict[str, str | float | bool] = {**os.environ, "TMPDIR": "/tmp"}
        started = tools.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], env=variables
        )
        yield started.new_page(color_scheme="dark")
        started.close()


# These have all that the theme and its scripts make: code, wide tables, headings named as in the menu.
@pytest.mark.parametrize(
    "name", ["comparison", "export", "limitations", "running-tests", "site-file"]
)
def test_a_page_can_be_used_with_a_screen_reader_and_the_keyboard(
    site: Path, tab: Page, name: str
) -> None:
    tab.set_viewport_size(PHONE)
    tab.goto((site / f"{name}.html").as_uri())
    tab.wait_for_function(_ARE_TABLES_FRAMED)
    violations = Axe().run(tab).response["violations"]
    assert [f"{one['id']}: {one['nodes'][0]['html']}" for one in violations] == []


def test_no_page_is_wider_than_a_phone(site: Path, tab: Page) -> None:
    tab.set_viewport_size(PHONE)
    wide = []
    for page in sorted(site.glob("*.html")):
        # Addresses of earlier versions lead away at once.
        if "http-equiv" not in page.read_text():
            tab.goto(page.as_uri())
            if tab.evaluate("document.documentElement.scrollWidth > innerWidth"):
                wide.append(page.name)
    assert wide == []
