"""Tells somebody how a run stands."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from rankwise.errors import ComputeFailure
from rankwise.steps.program import expanded, guarded
from rankwise.steps.summary import standing
from rankwise.store import Store


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="rankwise.steps.notify", description=__doc__)
    parser.add_argument("--command", default="", help="a line that has the message as its input")
    parser.add_argument("--file", default="", help="a file to which the message is added")
    parser.add_argument("--store", required=True, help="folder of the store")
    parser.add_argument("--run", required=True, help="id of the run")
    given = parser.parse_args()

    def act() -> None:
        with Store.open(Path(given.store), read_only=True) as store:
            message = standing(store, given.run)
        print(message, flush=True)
        if given.file:
            with Path(expanded(given.file)).open("a") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")
        if given.command:
            line = ["/bin/sh", "-c", given.command]
            done = subprocess.run(line, input=f"{message}\n", text=True, check=False)
            if done.returncode:
                raise ComputeFailure(f"nobody was told: exit code {done.returncode}")

    return guarded(act)


if __name__ == "__main__":
    sys.exit(main())
