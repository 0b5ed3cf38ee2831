"""`rankwise doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankwise.cli.completion import complete_compute
from rankwise.cli.options import StoreFolder


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A compute of the site file; without it, this machine and all of them.",
            show_default=False,
            autocompletion=complete_compute,
        ),
    ] = None,
    *,
    store: StoreFolder = None,
) -> int:
    """Check this machine and its computes, and say what to change.

    The exit code is 1 if something must change before jobs can run there.

    \b
    For example:
      rankwise doctor
      rankwise doctor gpu-cluster
    """
    from rankwise.cli.stores import store_folder
    from rankwise.compute.checkup import check_compute
    from rankwise.compute.own_machine import check_machine
    from rankwise.site import find_site

    site = find_site(Path.cwd())
    computes = {one for layer in site.layers for one in layer.computes} - {"local"}
    is_well = True
    if name is None:
        is_well &= _show("this machine", check_machine(store_folder(store)))
    for one in sorted(computes) if name is None else [name]:
        if not one.endswith("*"):
            is_well &= _show(one, check_compute(one, site, store_folder(store)))
    return 0 if is_well else 1


def _show(title: str, findings: object) -> bool:
    """Print what was found; tell whether nothing must change."""
    from rankwise.compute.finding import Finding

    print(title)
    is_well = True
    assert isinstance(findings, list)
    for finding in findings:
        assert isinstance(finding, Finding)
        is_well &= finding.is_well or not finding.is_needed
        mark = "ok  " if finding.is_well else ("bad " if finding.is_needed else "note")
        print(f"  {mark}  {finding.what}")
        if finding.remedy and not finding.is_well:
            print(f"        {finding.remedy}")
    return is_well
