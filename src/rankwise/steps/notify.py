"""Tells somebody how a run stands."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from rankwise.errors import ComputeFailure
from rankwise.notify.delivery import deliver
from rankwise.notify.notice import notice_of
from rankwise.notify.outbox import Outbox
from rankwise.report.facts import gather
from rankwise.site import find_site
from rankwise.site.choices import MailChoice
from rankwise.steps.program import expanded, guarded
from rankwise.steps.summary import standing
from rankwise.store import Store


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="rankwise.steps.notify", description=__doc__)
    parser.add_argument("--to", action="append", default=[], help="a name in rankwise.toml")
    parser.add_argument("--command", default="", help="a line that has the message as its input")
    parser.add_argument("--file", default="", help="a file to which the message is added")
    parser.add_argument("--store", required=True, help="folder of the store")
    parser.add_argument("--run", required=True, help="id of the run")
    given = parser.parse_args()

    def act() -> None:
        with Store.open(Path(given.store), read_only=True) as store:
            message = standing(store, given.run)
            print(message, flush=True)
            if given.to:
                _deliver(store, given.run, given.to)
        if given.file:
            with Path(expanded(given.file)).open("a") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")
        if given.command:
            line = ["/bin/sh", "-c", given.command]
            done = subprocess.run(line, input=f"{message}\n", text=True, check=False)
            if done.returncode:
                raise ComputeFailure(f"nobody was told: exit code {done.returncode}")

    return guarded(act)


def _deliver(store: Store, run: str, names: list[str]) -> None:
    row = store.run(run)
    folder = Path(row.source).parent if row.source else Path.cwd()
    choices = [find_site(folder).notify(name) for name in names]
    is_mail = any(isinstance(choice, MailChoice) for choice in choices)
    notice = notice_of(gather(store, row, now=time.time()), with_files=is_mail)
    if not deliver(notice, names, Outbox(store.folder), folder=folder, say=print):
        raise ComputeFailure("not everybody was told: rankwise notify --retry tries again")


if __name__ == "__main__":
    sys.exit(main())
