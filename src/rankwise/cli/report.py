"""`rankwise report`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.cli.options import Quiet, Run, StoreFolder

if TYPE_CHECKING:
    from rankwise.report.facts import ReportData
    from rankwise.store import RunRow, Store

_SCREEN = "-"


def _file(option: str, what: str) -> typer.models.OptionInfo:
    """Make an option that names a file to write; `-` is the screen."""
    made: typer.models.OptionInfo = typer.Option(
        option, metavar="FILE", help=what, show_default=False
    )
    return made


def command(
    run: Run = None,
    *,
    html: Annotated[str | None, _file("--html", "One HTML file that needs nothing else.")] = None,
    pdf: Annotated[str | None, _file("--pdf", "A document to hand on or print.")] = None,
    csv: Annotated[str | None, _file("--csv", "A row for each value, and case without.")] = None,
    json: Annotated[str | None, _file("--json", "All of it, for programs.")] = None,
    junit: Annotated[str | None, _file("--junit", "Results as JUnit XML, for a CI.")] = None,
    markdown: Annotated[str | None, _file("--markdown", "A summary in Markdown.")] = None,
    quiet: Quiet = False,
    store: StoreFolder = None,
) -> None:
    """Write a report of a run, for people or programs.

    What failed and why, plots, tables, and how to repeat each case.

    Without a file, an HTML report is written beside the run's other files. A file named - is the
    screen.

    \b
    For example:
      rankwise report --html report.html --pdf report.pdf
      rankwise report osu-sweep-3 --csv values.csv
      rankwise report --json - | jq .counts
    """
    from rankwise.cli.stores import choose_run, open_for_reading, store_folder, take_in
    from rankwise.report.facts import gather

    with open_for_reading(store_folder(store)) as opened:
        chosen = choose_run(opened, run)
        take_in(opened, chosen)
        chosen = opened.run(chosen.id)
        wanted = {"html": html, "pdf": pdf, "csv": csv, "json": json}
        wanted |= {"junit": junit, "markdown": markdown}
        places = {kind: place for kind, place in wanted.items() if place is not None}
        if not places:
            places = {"html": str(opened.run_folder(chosen.id) / "report.html")}
        data = gather(opened, chosen, now=time.time())
        for kind, place in places.items():
            seen = data if place == _SCREEN else replace(data, folder=Path(place).absolute().parent)
            _write(_WRITERS[kind](opened, chosen, seen), place)
            if place != _SCREEN and not quiet:
                _say(place, is_screen_taken=_SCREEN in places.values())


def _html(store: Store, run: RunRow, data: ReportData) -> bytes:
    from rankwise.report.html import html_report

    return html_report(data).encode()


def _pdf(store: Store, run: RunRow, data: ReportData) -> bytes:
    from rankwise.report.pdf import pdf_report

    return pdf_report(data)


def _csv(store: Store, run: RunRow, data: ReportData) -> bytes:
    from rankwise.report.tabular import csv_report

    return csv_report(data, store).encode()


def _json(store: Store, run: RunRow, data: ReportData) -> bytes:
    from rankwise.report.tabular import json_report

    return json_report(data).encode()


def _junit(store: Store, run: RunRow, data: ReportData) -> bytes:
    from rankwise.report.cases import cases_of
    from rankwise.report.junit import junit_report

    return junit_report(run, cases_of(store, run.id))


def _markdown(store: Store, run: RunRow, data: ReportData) -> bytes:
    from rankwise.report.cases import cases_of, repeated_of
    from rankwise.report.markdown import markdown_report

    cases, repeated = cases_of(store, run.id), repeated_of(store, run.id)
    return markdown_report(run, cases, repeated, data.matrix).encode()


_WRITERS: dict[str, Callable[[Store, RunRow, ReportData], bytes]] = {
    "html": _html,
    "pdf": _pdf,
    "csv": _csv,
    "json": _json,
    "junit": _junit,
    "markdown": _markdown,
}


def _write(content: bytes, place: str) -> None:
    """Write a file beside its place, then put it there: whoever reads finds all of it."""
    if place == _SCREEN:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        return
    from rankwise.report.files import write_whole

    write_whole(Path(place), content)


def _say(place: str, *, is_screen_taken: bool) -> None:
    """Say what was written, where it does not get into what is read by a program."""
    from rankwise.report.words import short_path, size

    stream = sys.stderr if is_screen_taken else sys.stdout
    print(f"{short_path(place)} ({size(Path(place).stat().st_size)})", file=stream)
