from __future__ import annotations

import re
import sys
import zlib
from dataclasses import replace

import pytest

from rankwise.errors import InputError
from rankwise.reports.matrix import Cell, CellTask, MatrixResult, verdict_of
from rankwise.reports.model import ReportData
from rankwise.reports.pdf import (
    breakable,
    matrix_content,
    pdf_report,
    png_of,
    timeline_content,
    wrapped,
)
from rankwise.reports.rendering import template_text
from rankwise.store import State, Store
from tests.reports.made_runs import make_run, passed_run
from tests.reports.matrix_runs import Done, make_matrix, typical
from tests.reports.measured_runs import hostile_run, many_cases, osu_sweep

NOW = 1_700_000_500.0


@pytest.mark.parametrize("make", [osu_sweep, hostile_run, passed_run, make_run])
def test_every_run_can_be_printed(store: Store, make: object) -> None:
    assert callable(make)
    made = pdf_report(ReportData(store=store, run=store.run(make(store)), now=NOW))
    assert made.startswith(b"%PDF-")
    assert b"%%EOF" in made[-10:]


def test_many_cases_can_be_printed(store: Store) -> None:
    made = pdf_report(ReportData(store=store, run=store.run(many_cases(store, 450)), now=NOW))
    assert len(made) < 1_000_000


def test_plots_become_pictures(store: Store) -> None:
    data = ReportData(store=store, run=store.run(hostile_run(store)), now=NOW)
    assert data.figures
    for figure in data.figures:
        assert png_of(figure.svg).startswith(b"\x89PNG")


def test_without_typst_the_extra_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typst", None)
    data = ReportData(store=store, run=store.run(passed_run(store)), now=NOW)
    with pytest.raises(InputError, match=r"pip install 'rankwise\[report\]'"):
        pdf_report(data)


def headings_of(made: bytes) -> set[str]:
    """Read the titles in the outline of a PDF."""
    found: set[str] = set()
    for packed in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", made, re.DOTALL):
        try:
            text = zlib.decompress(packed)
        except zlib.error:
            continue
        found.update(one.decode("latin-1") for one in re.findall(rb"/Title ?\(([^)]*)\)", text))
    found.update(one.decode("latin-1") for one in re.findall(rb"/Title ?\(([^)]*)\)", made))
    return found


def test_a_matrix_and_its_timeline_are_printed(store: Store) -> None:
    data = ReportData(store=store, run=store.run(make_matrix(store, typical())), now=NOW)
    assert {"Matrix", "Timeline", "What went wrong"} <= headings_of(pdf_report(data))
    without = headings_of(pdf_report(data.with_parts(matrix=None, timeline=None)))
    assert "What went wrong" in without
    assert not {"Matrix", "Timeline"} & without


def test_a_matrix_says_what_became_of_each_cell_and_what_differs(store: Store) -> None:
    data = ReportData(store=store, run=store.run(make_matrix(store, typical())), now=NOW)
    assert data.matrix is not None
    content = matrix_content(data.matrix)
    [table] = content["tables"]
    assert [plain(head) for head, _ in table["heads"]] == ["laptop", "cluster", "gpu"]
    rows = {row["head"][0]: row["cells"] for row in table["rows"]}
    assert [cell["word"] for cell in rows["torch"]] == ["soft-failed", "running", "passed"]
    assert rows["new"][0]["tone"] == "bad"
    assert rows["new"][0]["marks"] == ["good", "bad", "good"]
    assert [plain(line) for line in rows["new"][0]["lines"]] == [
        "1 of 3 failed · 12 s",
        "cell 4: AttributeError",
    ]
    assert rows["future"][1:] == [None, None]
    [numpy] = [one for one in content["differences"] if one["cells"] == "new on laptop and cluster"]
    assert plain(numpy["said"]) == "analysis.ipynb passes with old on the same machine."
    assert [plain(str(one)) for one in numpy["changes"][0]] == [
        *("package", "numpy", "2.3.1", "1.26.4", "True"),
    ]
    assert ["ancient on gpu", "not run: needs gpu, found none"] in content["reasons"]


def test_a_large_matrix_is_divided_and_what_is_red_is_not_left_out(store: Store) -> None:
    runtimes, machines = [f"r{row}" for row in range(45)], [f"m{column}" for column in range(32)]
    passed = cell_of("", "", State.PASSED)
    cells = {
        (runtime, machine): replace(passed, runtime=runtime, machine=machine)
        for runtime in runtimes
        for machine in machines
    }
    cells["r44", "m31"] = cell_of("r44", "m31", State.FAILED)
    matrix = MatrixResult(runtimes=tuple(runtimes), machines=tuple(machines), cells=cells)
    content = matrix_content(matrix)
    assert [len(table["heads"]) for table in content["tables"]] == [10, 10, 10]
    assert content["more_cells"] == 45 * 32 - 30 * 33
    [last] = [row for row in content["tables"][-1]["rows"] if row["head"][0] == "r44"]
    assert last["cells"][-1] == {"tone": "bad", "word": "FAIL", "count": "1/1"}
    data = ReportData(store=store, run=store.run(passed_run(store)), now=NOW)
    assert len(pdf_report(data.with_parts(matrix=matrix))) < 1_000_000


def cell_of(runtime: str, machine: str, state: State) -> Cell:
    test = CellTask(task="t", name="t", state=state)
    return Cell(runtime=runtime, machine=machine, verdict=verdict_of([test]), tests=(test,))


def test_hostile_names_in_a_matrix_are_shown_and_not_obeyed(store: Store) -> None:
    hostile = '#panic() $a$ <x> *_`]" \x1b[31m' + "M" * 300
    cells = {
        (hostile, "m", "t"): Done(state=State.FAILED, reason=hostile),
        ("r", hostile, hostile[:60]): Done(),
    }
    data = ReportData(store=store, run=store.run(make_matrix(store, cells)), now=NOW)
    assert data.matrix is not None
    [table] = matrix_content(data.matrix)["tables"]
    assert plain(table["rows"][0]["head"][0]).startswith('#panic() $a$ <x> *_`]" MMM')
    assert pdf_report(data).startswith(b"%PDF-")


def test_what_is_printed_has_its_semicolons() -> None:
    """Behind code, typst takes a semicolon for the end of the code and prints none."""
    assert re.findall(r"#[\w.()-]+; .*", template_text("report.typ")) == []


def test_a_timeline_has_one_drawing_and_what_it_says(store: Store) -> None:
    data = ReportData(store=store, run=store.run(make_matrix(store, typical())), now=NOW)
    assert data.timeline is not None
    content = timeline_content(data.timeline)
    assert content["svg"].count("<svg") == 1
    assert ["6 failed", "bad"] in content["states"]
    assert [name for name, _, _ in content["cards"]][-1] == "slot time lost"
    assert content["advice"]
    assert content["longest"][0][1].endswith("on 1 slot")


def test_lines_may_end_in_long_names_and_only_there() -> None:
    assert breakable("node-7.example.com") == "node-\u200b7.\u200bexample.\u200bcom"
    assert breakable("short words") == wrapped("short words") == "short words"
    assert wrapped("test-a.b") == "test-a.b"
    assert max(map(len, wrapped("x" * 300).split("\u200b"))) <= 32


def plain(text: str) -> str:
    return text.replace("\u200b", "")
