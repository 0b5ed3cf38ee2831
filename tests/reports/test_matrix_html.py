"""The matrix of an HTML report: every cell with what is behind it, safe and not too large."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from rankwise.reports.html import html_report
from rankwise.reports.model import ReportData
from rankwise.store import State, Store
from tests.reports.made_runs import BEGUN
from tests.reports.matrix_runs import BROKEN, Done, environment, make_matrix, picture, typical


def page_of(store: Store, run: str) -> str:
    return html_report(ReportData(store=store, run=store.run(run), now=BEGUN + 100))


class Reader(HTMLParser):
    """Takes links, targets and pictures down, and checks that what is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.targets: list[str] = []
        self.pictures: list[str] = []
        self.scripts = 0
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = dict(attrs)
        self.links += [about["href"] or ""] if tag == "a" else []
        self.targets += [about["id"] or ""] if "id" in about else []
        self.pictures += [about["src"] or ""] if tag == "img" else []
        self.scripts += tag == "script"
        if tag not in ("meta", "link", "img", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def test_every_cell_leads_to_what_is_behind_it(store: Store) -> None:
    run = make_matrix(store, typical())
    page = page_of(store, run)
    found = Reader(page)
    inner = [link[1:] for link in found.links if link.startswith("#")]
    assert len([link for link in inner if link.startswith("cell-")]) >= 12
    assert set(inner) <= set(found.targets)
    assert len(found.targets) == len(set(found.targets))
    assert re.search(r'class="cell bad"[^>]*><a [^>]*><b>failed</b>', page)
    assert "the time limit of 60 s was reached" in page
    assert "needs gpu, which it does not use" in page
    assert "No matching distribution found" in page


def test_files_are_linked_as_they_are_seen_from_the_report(store: Store) -> None:
    run = make_matrix(store, typical())
    folder = store.run_folder(run)
    links = [link for link in Reader(page_of(store, run)).links if not link.startswith("#")]
    names = {Path(unquote(link)).name for link in links}
    assert {"output.log", "analysis.ipynb", "analysis.html"} <= names
    assert all((folder / unquote(link)).is_file() for link in links)


def test_what_differs_is_told_with_both_values(store: Store) -> None:
    page = page_of(store, make_matrix(store, typical()))
    row = re.search(r'<tr class="named"[^>]*>(.*?)</tr>', page)
    assert row is not None
    text = re.sub("<[^>]+>", " ", page)
    flat = " ".join(text.split())
    assert "analysis.ipynb passes with old on the same machine" in flat
    assert "package numpy 2.3.1 1.26.4" in flat
    assert "CPU features amx_tile avx512_vnni avx512f no yes" in flat


def test_pictures_are_shown_once(store: Store) -> None:
    pictures = Reader(page_of(store, make_matrix(store, typical()))).pictures
    wanted = {
        "data:image/png;base64," + base64.b64encode(picture(shade)).decode() for shade in (0, 40)
    }
    assert sorted(pictures) == sorted(wanted)


HOSTILE = "<img src=x onerror=alert(1)>\"'&\x1b[31m\u202e"


def test_names_packages_and_output_are_only_text(store: Store) -> None:
    around = environment("new", "laptop")
    around["packages"] = {HOSTILE: HOSTILE}
    around["python"] = {"version": HOSTILE, "implementation": HOSTILE}
    around["cpu"] = {"model": HOSTILE, "flags": [HOSTILE]}
    fake = b'\x89PNG\r\n\x1a\n"><script>alert(1)</script>'
    cells = {
        (HOSTILE, HOSTILE, "environment"): Done(environment=around),
        (HOSTILE, HOSTILE, HOSTILE): Done(
            state=State.FAILED, log=HOSTILE, reason=HOSTILE, pictures=[fake]
        ),
        ("tame", HOSTILE, "environment"): Done(environment=environment("old", "laptop")),
        ("tame", HOSTILE, HOSTILE): Done(),
    }
    page = page_of(store, make_matrix(store, cells))
    found = Reader(page)
    assert found.scripts == 1
    assert "<img src=x" not in page
    assert not [link for link in found.links if ":" in link]
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_a_thousand_tests_fit_into_a_mail(store: Store) -> None:
    packages = {f"package-{number}": f"{number}.0" for number in range(200)}
    cells: dict[tuple[str, str, str], Done] = {}
    drawn = [picture(shade, 300, 200) for shade in range(10)]
    for row in range(10):
        around = environment("new", "laptop")
        around["packages"] = {**packages, "numpy": f"2.{row}"}
        for column in range(10):
            place = f"runtime-{row}", f"machine-{column}"
            cells[*place, "environment"] = Done(environment=around, took=0.3)
            for number in range(9):
                is_bad = (row + column + number) % 9 == 0
                cells[*place, f"notebook-{number}.ipynb"] = Done(
                    state=State.FAILED if is_bad else State.PASSED,
                    log=BROKEN * 4 if is_bad else "",
                    took=20.0,
                    pictures=[drawn[row]] if number == 1 else (),
                )
    page = page_of(store, make_matrix(store, cells))
    assert len(page.encode()) < 1_000_000
    found = Reader(page)
    assert len([one for one in found.targets if one.startswith("cell-")]) == 100
    assert "There was no room" not in page
