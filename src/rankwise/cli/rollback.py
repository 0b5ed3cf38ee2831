"""`rankwise rollback`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rankwise.cli.options import AsJson


def command(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="The folder that a stage deploys to.", show_default=False
        ),
    ],
    *,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="NAME", help="This release; otherwise the one before."),
    ] = None,
    only_list: Annotated[bool, typer.Option("--list", help="Only list the releases.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put an earlier release of a pipeline in use again.

    All releases are listed afterwards.

    The link `current` is switched at once: whoever follows it finds a whole release at any moment.

    \b
    For example:
      rankwise rollback /soft/mpi4py
      rankwise rollback /soft/mpi4py --to nightly-41
    """
    import time

    from rankwise.errors import InputError
    from rankwise.releases import releases_in, roll_back

    if not target.is_dir():
        raise InputError(f"{target}: there is no such folder")
    folder = target.absolute()
    if not only_list:
        roll_back(folder, to)
    found = releases_in(folder)
    if as_json:
        data = [{"name": one.name, "made": one.made, "current": one.is_current} for one in found]
        print(json.dumps(data, indent=2))
        return
    if not found:
        raise InputError(f"{target}: there are no releases")
    width = max(len(one.name) for one in found)
    for one in found:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.made))
        print(f"{'*' if one.is_current else ' '} {one.name:{width}}  {made}")
