"""The matrix of an HTML report: every cell with what is behind it, safe and not too large."""

from __future__ import annotations

import base64
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from rankwise.metrics.conditions import joined, versions_in
from rankwise.reports.data_formats import json_report
from rankwise.reports.html import html_report
from rankwise.reports.model import ReportData
from rankwise.store import State, Store
from rankwise.store.samples import Sample
from tests.reports.made_runs import BEGUN, failed_run, make_run, passed_run
from tests.reports.matrix_runs import BROKEN, Done, environment, make_matrix, picture, typical
from tests.reports.measured_runs import hostile_run, many_cases, osu_sweep

NOW = 1_700_000_500.0
VOID = {"meta", "link", "img", "br"}


class Reader(HTMLParser):
    """Reads a page: which elements there are, with which attributes, and the words."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("script", "style"):
            self.words += data


def page_of(store: Store, run: str) -> str:
    return html_report(ReportData(store=store, run=store.run(run), now=NOW))


def test_a_failed_run_says_what_went_wrong_and_how_to_repeat_it(store: Store) -> None:
    words = Reader(page_of(store, failed_run(store))).words
    assert "job-1 failed" in words
    assert "worker 1 exited with code 7" in words
    assert "ValueError: no" in words
    assert "rankwise run" in words


def test_conditions_are_ranges_and_the_run_can_be_repeated(store: Store) -> None:
    run = osu_sweep(store)
    samples = [Sample(metric="latency", value=1.0, unit="us", better="lower", point={})]
    for trial, busy in enumerate((65.47679158191725, 8.1)):
        conditions = {"time": 1795035712.04 + trial, "others_percent": busy, "mpi": "mpich 4.3"}
        key = list(store.task_rows(run))[trial].key
        store.add_samples(run, key, 1, samples, case="c", trial=trial, conditions=conditions)
    data = ReportData(store=store, run=store.run(run), now=NOW)
    found = dict(data.conditions)
    assert found["others_percent"] == "8.1 to 65.5"
    assert found["mpi"] == "mpich 4.3"
    assert "time" not in found
    words = Reader(html_report(data)).words
    assert data.repeat in words
    # Pages and PDF are for people, JSON is for programs.
    assert "CPU used by others8.1 to 65.5%" in words
    assert "others_percent" not in words
    assert "others_percent" in json.loads(json_report(data))["conditions"]


def test_no_condition_of_the_runner_is_shown_by_its_raw_name(store: Store) -> None:
    run = osu_sweep(store)
    ticks = {"ticks": [1] * 8, "psi_avg10": 1.0, "psi_total": 5, "load": 0.5}
    before = {"time": 1.0, "host": "n1", "cpu": "x", "cores": 2, "clock": 1.0, **ticks}
    after = {**before, "clock": 3.0, "all_cores": 2, "ticks": [9] * 8}
    key = next(store.task_rows(run)).key
    found = joined(before, after, own_cpu_seconds=1.0)
    store.add_samples(run, key, 1, [], conditions={**found, **versions_in(Path(sys.prefix))})
    data = ReportData(store=store, run=store.run(run), now=NOW)
    assert len(dict(data.conditions)) > 8
    assert not [name for name, _ in data.conditions_in_words if "_" in name]


def test_the_summary_is_before_all_else(store: Store) -> None:
    words = Reader(page_of(store, osu_sweep(store))).words
    parts = ["45 cases: 2 crashed", "What went wrong", "At a glance", "Measured", "Cases"]
    places = [words.index(part, words.index("45 cases: 2 crashed")) for part in parts]
    assert places[0] == min(places)


def test_a_passed_run_and_one_that_has_not_begun_are_pages_too(store: Store) -> None:
    assert "job-1 passed" in Reader(page_of(store, passed_run(store))).words
    assert "job-2 queued, not over yet" in Reader(page_of(store, make_run(store))).words


def test_nothing_is_loaded_from_elsewhere(store: Store) -> None:
    page = page_of(store, osu_sweep(store))
    for tag, attributes in Reader(page).elements:
        for name in ("src", "href", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, attributes)
    assert "url(" not in page
    assert "@import" not in page


def test_hostile_names_and_outputs_are_only_shown(store: Store) -> None:
    page = page_of(store, hostile_run(store, log_bytes=50_000_000))
    read = Reader(page)
    assert len(page) < 300_000
    assert [tag for tag, _ in read.elements].count("script") == 1
    assert not [tag for tag, _ in read.elements if tag in ("img", "iframe", "object")]
    for _, attributes in read.elements:
        assert not [name for name in attributes if name.startswith("on")]
    assert "<script>alert(document.cookie)</script>" in read.words
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202e\ud800-\udfff]", page)
    page.encode()


def test_a_thousand_cases_fit_into_a_megabyte(store: Store) -> None:
    page = page_of(store, many_cases(store, 1000))
    assert len(page.encode()) < 1_000_000
    read = Reader(page)
    assert [tag for tag, _ in read.elements].count("tr") > 1900
    assert "ranks-1.size-0.t1" in read.words


def test_cases_show_what_they_used_as_far_as_there_is_room(store: Store) -> None:
    run = many_cases(store, 1000)
    times = [0.5 * step for step in range(1, 201)]
    usage = {"version": 1, "began": 0.0, "cores": 2, "time": times, "cpu": times, "memory": times}
    usage |= {"cpu_seconds": 75.0, "peak_memory": 3 << 30}
    text = json.dumps(usage)
    for attempt in store.attempts(run):
        attempt.folder.mkdir(parents=True, exist_ok=True)
        (attempt.folder / "usage.json").write_text(text)
    data = ReportData(store=store, run=store.run(run), now=NOW)
    assert data.used.keys() >= {one.task for one in data.failures}
    page = html_report(data)
    assert 100 < page.count('class="spark"') <= 300
    assert "1 min 15 s on 100.0" in page
    assert "3 GiB" in page
    assert len(page.encode()) < 1_000_000
    assert 'class="spark"' not in html_report(data.with_parts(used={}))


def test_so_do_a_thousand_with_long_names(store: Store) -> None:
    more = {f"parameter_number_{number}": "quite-a-long-value" for number in range(5)}
    page = page_of(store, many_cases(store, 1000, more=more))
    assert len(page.encode()) < 1_000_000
    assert "rows are here; rankwise report --csv has them all" in page


def test_a_measure_is_beside_what_it_was_before(store: Store) -> None:
    osu_sweep(store, seed=1)
    words = Reader(page_of(store, osu_sweep(store, seed=2, factor=1.5))).words
    assert "in sweep-1" in words
    assert "over runs" in words
    assert re.search(r"\+4\d\.\d%|\+5\d\.\d%", words)


# The matrix of an HTML report: every cell with what is behind it, safe and not too large


def matrix_page_of(store: Store, run: str) -> str:
    return html_report(ReportData(store=store, run=store.run(run), now=BEGUN + 100))


class MatrixReader(HTMLParser):
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
    page = matrix_page_of(store, run)
    found = MatrixReader(page)
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
    links = [
        link for link in MatrixReader(matrix_page_of(store, run)).links if not link.startswith("#")
    ]
    names = {Path(unquote(link)).name for link in links}
    assert {"output.log", "analysis.ipynb", "analysis.html"} <= names
    assert all((folder / unquote(link)).is_file() for link in links)


def test_what_differs_is_told_with_both_values(store: Store) -> None:
    page = matrix_page_of(store, make_matrix(store, typical()))
    row = re.search(r'<tr class="named"[^>]*>(.*?)</tr>', page)
    assert row is not None
    text = re.sub("<[^>]+>", " ", page)
    flat = " ".join(text.split())
    assert "analysis.ipynb passes with old on the same machine" in flat
    assert "package numpy 2.3.1 1.26.4" in flat
    assert "CPU features amx_tile avx512_vnni avx512f no yes" in flat


def test_boxes_that_scroll_are_reached_with_the_keyboard(store: Store) -> None:
    elements = Reader(matrix_page_of(store, make_matrix(store, typical()))).elements
    boxes = [named for _, named in elements if named.get("class") in ("scroll", "plot", "table")]
    assert boxes
    assert all(named.get("tabindex") == "0" for named in boxes)


def test_pictures_are_shown_once(store: Store) -> None:
    pictures = MatrixReader(matrix_page_of(store, make_matrix(store, typical()))).pictures
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
    page = matrix_page_of(store, make_matrix(store, cells))
    found = MatrixReader(page)
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
    page = matrix_page_of(store, make_matrix(store, cells))
    assert len(page.encode()) < 1_000_000
    found = MatrixReader(page)
    assert len([one for one in found.targets if one.startswith("cell-")]) == 100
    assert "There was no room" not in page
