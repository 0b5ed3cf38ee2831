"""Writes down how a run stands."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rankwise.report.facts import gather
from rankwise.report.files import write_whole
from rankwise.steps.program import expanded, guarded
from rankwise.steps.summary import page
from rankwise.store import Store


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="rankwise.steps.report", description=__doc__)
    parser.add_argument("to", help="the file; .html, .pdf and .json get that, others Markdown")
    parser.add_argument("--store", required=True, help="folder of the store")
    parser.add_argument("--run", required=True, help="id of the run")
    given = parser.parse_args()

    def act() -> None:
        place = Path(expanded(given.to))
        with Store.open(Path(given.store), read_only=True) as store:
            print(page(store, given.run))
            content = _content(store, given.run, place.suffix)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, content)

    return guarded(act)


def _content(store: Store, run: str, suffix: str) -> bytes:
    data = gather(store, store.run(run), now=time.time())
    match suffix:
        case ".html":
            from rankwise.report.html import html_report

            return html_report(data).encode()
        case ".pdf":
            from rankwise.report.pdf import pdf_report

            return pdf_report(data)
        case ".json":
            from rankwise.report.tabular import json_report

            return json_report(data).encode()
    return page(store, run).encode()


if __name__ == "__main__":
    sys.exit(main())
