"""`rankwise clean`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.cli.options import StoreFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankwise.compute.remote.ledger import Entry

_ShowOnly = Annotated[bool, typer.Option("--list", help="Only show what there is.")]
_Forget = Annotated[
    list[str] | None,
    typer.Option(
        "--forget",
        metavar="NAME",
        help="Take it out of the records without deleting it: it is known to be gone. May be given "
        "several times.",
        show_default=False,
    ),
]


def command(
    *, show_only: _ShowOnly = False, forget: _Forget = None, store: StoreFolder = None
) -> int:
    """Give back what was left on other machines.

    Instances that a provider's command line has made are deleted, and folders of attempts that are
    over are removed from hosts, with whatever still runs of them. What a client uses that is at
    work now is left alone. The exit code is 1 if something is still there.

    \b
    For example:
      rankwise clean --list
      rankwise clean
    """
    from rankwise.cli.stores import store_folder
    from rankwise.compute.cleaning import clean, describe
    from rankwise.compute.remote.ledger import FOLDER, Ledger
    from rankwise.errors import InputError
    from rankwise.site import find_site

    folder = store_folder(store)
    ledger = Ledger(folder / FOLDER)
    entries = list(ledger.entries())
    if forget:
        names = {entry.name for entry in entries}
        if unknown := [name for name in forget if name not in names]:
            raise InputError(f"nothing is recorded as {unknown[0]}: rankwise clean --list")
        for name in forget:
            ledger.drop(name)
            print(f"forgotten: {name}")
        return 0
    if not entries:
        print("nothing was left elsewhere")
        return 0
    if show_only:
        for entry in entries:
            print(describe(entry))
        return 1
    is_well = True
    for one in clean(entries, ledger, find_site(Path.cwd()), needed=_needed_by(folder)):
        if one.trouble:
            is_well = False
            print(f"STILL THERE: {describe(one.entry)}\n  {one.trouble}")
        else:
            print(f"gone: {describe(one.entry)}")
    return 0 if is_well else 1


def _needed_by(folder: Path) -> Callable[[Entry], str]:
    """Tell which client or which run has a use for something."""
    from rankwise.cli.stores import open_for_reading
    from rankwise.engine.session import driver_of
    from rankwise.errors import RankwiseError

    def needed(entry: Entry) -> str:
        try:
            with open_for_reading(folder) as store:
                run = store.run(entry.run)
                driver = driver_of(store.run_folder(run.id))
        except RankwiseError:
            return ""  # The run is gone, and with it whoever could need it.
        if driver is not None:
            return f"{run.id} is being driven by process {driver or 'unknown'}, which needs it"
        if entry.kind == "folder" and not run.state.is_over:
            return (
                f"{run.id} is not over, and may run there:  rankwise resume {run.id}  or  "
                f"rankwise cancel {run.id}"
            )
        return ""

    return needed
