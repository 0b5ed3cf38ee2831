"""Writes down how a run stands."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from rankwise.report.status import status_data, status_of
from rankwise.steps.program import expanded, guarded
from rankwise.steps.summary import page
from rankwise.store import Store


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="rankwise.steps.report", description=__doc__)
    parser.add_argument("to", help="the file; .json gets JSON, others get Markdown")
    parser.add_argument("--store", required=True, help="folder of the store")
    parser.add_argument("--run", required=True, help="id of the run")
    given = parser.parse_args()

    def act() -> None:
        place = Path(expanded(given.to))
        with Store.open(Path(given.store), read_only=True) as store:
            if place.suffix == ".json":
                status = status_of(store, store.run(given.run), driver=None, with_all=True)
                text = json.dumps(status_data(status), indent=2) + "\n"
            else:
                text = page(store, given.run)
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_name(f".{place.name}-{os.getpid()}")
        beside.write_text(text)
        beside.replace(place)
        print(text if place.suffix != ".json" else f"{place} is written")

    return guarded(act)


if __name__ == "__main__":
    sys.exit(main())
