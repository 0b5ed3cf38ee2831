from __future__ import annotations

import sys

import pytest

from rankwise.errors import InputError
from rankwise.report.facts import gather
from rankwise.report.pdf import pdf_report, png_of
from rankwise.store import Store
from tests.report.made_runs import make_run, passed_run
from tests.report.measured_runs import hostile_run, many_cases, osu_sweep

NOW = 1_700_000_500.0


@pytest.mark.parametrize("make", [osu_sweep, hostile_run, passed_run, make_run])
def test_every_run_can_be_printed(store: Store, make: object) -> None:
    assert callable(make)
    made = pdf_report(gather(store, store.run(make(store)), now=NOW))
    assert made.startswith(b"%PDF-")
    assert b"%%EOF" in made[-10:]


def test_many_cases_can_be_printed(store: Store) -> None:
    made = pdf_report(gather(store, store.run(many_cases(store, 450)), now=NOW))
    assert len(made) < 1_000_000


def test_plots_become_pictures(store: Store) -> None:
    data = gather(store, store.run(hostile_run(store)), now=NOW)
    assert data.figures
    for figure in data.figures:
        assert png_of(figure.svg).startswith(b"\x89PNG")


def test_without_typst_the_extra_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typst", None)
    data = gather(store, store.run(passed_run(store)), now=NOW)
    with pytest.raises(InputError, match=r"pip install 'rankwise\[report\]'"):
        pdf_report(data)
