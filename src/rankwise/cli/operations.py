"""`rankwise serve`, `doctor`, `clean` and `rollback`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.cli.options import (
    AsJson,
    StoreFolder,
    complete_compute,
    open_for_reading,
    store_folder,
    value,
)
from rankwise.errors import InputError, RankwiseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rankwise.backends.doctor import Finding
    from rankwise.backends.remote.tracked import TrackedInstance


def clean_command(
    *,
    show_only: Annotated[bool, typer.Option("--list", help="Only show what there is.")] = False,
    forget: Annotated[
        list[str] | None,
        value(
            "--forget",
            "NAME",
            "Take it out of the records without deleting it: it is known to be gone. May be given "
            "several times.",
        ),
    ] = None,
    store: StoreFolder = None,
) -> int:
    """Delete leftover instances and remote folders.

    Instances that a provider's command line has made are deleted, and folders of attempts that are
    over are removed from hosts, with whatever still runs of them. What a client uses that is at
    work now is left alone. The exit code is 1 if something is still there.

    \b
    For example:
      rankwise clean --list
      rankwise clean
    """
    from rankwise.backends.remote.tracked import FOLDER, Tracked, clean, describe
    from rankwise.documents.site import find_site

    folder = store_folder(store)
    ledger = Tracked(folder / FOLDER)
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
        print("nothing to clean")
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


def _needed_by(folder: Path) -> Callable[[TrackedInstance], str]:
    """Return which client or which run has a use for something."""
    from rankwise.store.store import driver_of

    def needed(entry: TrackedInstance) -> str:
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


def doctor_command(
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
    from rankwise.backends.doctor import check_compute
    from rankwise.backends.this_machine import check_machine
    from rankwise.documents.site import find_site

    site = find_site(Path.cwd())
    computes = {one for layer in site.layers for one in layer.computes} - {"local"}
    # A name with a star stands for many, none of which is known here.
    known = sorted(one for one in computes if not one.endswith("*"))
    is_well = True
    if name is None or site.notice:
        files = [f"site file {layer.file}" for layer in site.layers]
        print(*(files or [f"no site file: {site.file} is not there, nor one above it"]), sep="\n")
    if name is None:
        is_well &= _show("this machine", check_machine(store_folder(store)))
    for one in known if name is None else [name]:
        is_well &= _show(one, check_compute(one, site, store_folder(store)))
    return 0 if is_well else 1


def _show(title: str, findings: Iterable[Finding]) -> bool:
    """Print what was found; tell whether nothing must change."""
    print(title)
    is_well = True
    for finding in findings:
        is_well &= finding.is_well or not finding.is_needed
        mark = "ok  " if finding.is_well else ("bad " if finding.is_needed else "note")
        print(f"  {mark}  {finding.what}")
        if finding.remedy and not finding.is_well:
            print(f"        {finding.remedy}")
    return is_well


def rollback_command(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="The folder that a stage deploys to.", show_default=False
        ),
    ],
    *,
    to: Annotated[
        str | None, value("--to", "NAME", "This release; otherwise the one before.")
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
    from rankwise.steps.releases import releases_in, roll_back

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


def serve_command(
    *,
    port: Annotated[
        int | None,
        value(
            "--port",
            "N",
            "Listen on this port; 0: on one that is free. Otherwise 8765, or a free one.",
            least=0,
            most=65535,
        ),
    ] = None,
    is_to_open: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    store: StoreFolder = None,
) -> None:
    """Show the runs of this store in a browser, as they happen.

    Only this machine can reach the page, and only with the token in the address that is printed.
    Ctrl-C ends it.

    \b
    For example:
      rankwise serve --port 8080
    """
    folder = store_folder(store)
    # What is wrong with the store is said here, and not in a browser.
    open_for_reading(folder).close()
    try:
        from rankwise.web import app
    except ModuleNotFoundError as error:
        raise InputError(f"the page needs {error.name}:  pip install 'rankwise[web]'") from error
    listening = app.listen(port)
    keys = app.keys_for(listening)
    number = app.port_of(listening)
    address = f"http://{app.HOST}:{number}/?token={keys.token}"
    print(f"The runs of {folder} are shown at")
    print(f"  {address}")
    print(f"Ctrl-C ends it. From your own machine:  ssh -L {number}:{app.HOST}:{number} HOST")
    # Whoever has started us through a pipe waits for this.
    print(end="", flush=True)
    with _opened(folder, address) if is_to_open else contextlib.nullcontext():
        app.serve(folder, listening, keys)


@contextlib.contextmanager
def _opened(folder: Path, address: str) -> Iterator[None]:
    """Open a browser at a file that leads there: command lines can be read by everybody."""
    file = folder / "serve.html"
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as page:
        page.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={address}">\n')
    try:
        if not _open(file):
            print("There is no browser here: open the address yourself.", flush=True)
        yield
    finally:
        file.unlink(missing_ok=True)


def _open(file: Path) -> bool:
    import webbrowser

    # Without a screen it would be one for terminals, which takes the place of all that we say.
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    if sys.platform != "darwin" and not any(os.environ.get(name) for name in screens):
        return False
    try:
        return webbrowser.open(file.as_uri())
    except webbrowser.Error:
        return False
