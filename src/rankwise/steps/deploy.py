"""Copies a build to where it stays: all of it or nothing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rankwise.releases import current_in, deploy
from rankwise.steps.program import expanded, guarded


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="rankwise.steps.deploy", description=__doc__)
    parser.add_argument("source", help="folder of the build")
    parser.add_argument("to", help="folder of the releases")
    parser.add_argument("--name", required=True, help="name of the release")
    parser.add_argument("--keep", type=int, default=3, help="how many stay")
    given = parser.parse_args()

    def act() -> None:
        folder = Path(expanded(given.to)).absolute()
        before = current_in(folder)
        release = deploy(
            Path(expanded(given.source)).absolute(), folder, expanded(given.name), keep=given.keep
        )
        was = f", before it {before}" if before and before != release.name else ""
        print(f"{folder}: {release.name} is in use{was}")

    return guarded(act)


if __name__ == "__main__":
    sys.exit(main())
