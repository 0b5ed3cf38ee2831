"""`rankwise serve`, `doctor`, `clean`, `store` and `rollback`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rankwise.cli.options import AsJson, StoreFolder, open_for_reading, store_folder
from rankwise.errors import InputError, RankwiseError
from rankwise.wording import moment

if TYPE_CHECKING:
    from rankwise.backends.doctor import Finding
    from rankwise.backends.remote.tracked import TrackedInstance


def clean_command(
    *, list_: bool = False, forget: list[str] | None = None, store: StoreFolder = None
) -> int:
    """Delete leftover instances and remote folders.

    Instances that a provider's command line has made are deleted, and folders of attempts that are
    over are removed from hosts, with any process of theirs that still runs. What a running client
    uses is left alone. The exit code is 1 if something is left.

    Options:
      --list         Only show what there is.
      --forget NAME  Take it out of the records without deleting it: it is known to be gone. May be
                     given several times.

    Examples:
      rankwise clean --list
      rankwise clean
    """
    from rankwise.backends.remote.tracked import FOLDER, Tracked, clean, describe
    from rankwise.documents.site import find_site

    folder = store_folder(store)
    tracked = Tracked(folder / FOLDER)
    entries = list(tracked.entries())
    if forget:
        names = {entry.name for entry in entries}
        # Before anything is dropped: a misspelt name must not leave half of them forgotten.
        if unknown := [name for name in forget if name not in names]:
            why = f"--forget {unknown[0]}: there is no such record: rankwise clean --list"
            raise InputError(why)
        for name in forget:
            tracked.drop(name)
            print(f"forgotten: {name}")
        return 0
    if not entries:
        print("nothing to clean")
        return 0
    if list_:
        for entry in entries:
            print(describe(entry))
        # As without --list: something is left.
        return 1
    code = 0
    for entry, trouble in clean(entries, tracked, find_site(Path.cwd()), needed=_needed_by(folder)):
        if trouble:
            code = 1
            print(f"STILL THERE: {describe(entry)}\n  {trouble}")
        else:
            print(f"gone: {describe(entry)}")
    return code


def _needed_by(folder: Path) -> Callable[[TrackedInstance], str]:
    """Return a function that names the client or the run that needs something; empty: none."""
    from rankwise.store.store import driver_of

    def needed(entry: TrackedInstance) -> str:
        try:
            with open_for_reading(folder) as store:
                run = store.run(entry.run)
                driver = driver_of(store.run_folder(run.id))
        except RankwiseError:
            return ""  # Without its run, no client can need it.
        if driver is not None:
            return f"process {driver or 'unknown'} drives {run.id} and needs it"
        if entry.kind == "folder" and not run.state.is_over:
            return (
                f"{run.id} is not over and may run there:  rankwise resume {run.id}  or  "
                f"rankwise cancel {run.id}"
            )
        return ""

    return needed


def doctor_command(name: str | None = None, *, store: StoreFolder = None) -> int:
    """Check this machine and its computes, and say what to change.

    The exit code is 1 if something must change before jobs can run there.

    Arguments:
      NAME  A compute of the site file; without it, this machine and all of them.

    Examples:
      rankwise doctor
      rankwise doctor gpu-cluster
    """
    from rankwise.backends.doctor import check_compute
    from rankwise.backends.this_machine import check_machine
    from rankwise.documents.site import find_site
    from rankwise.reports.terminal.console import make_console

    console = make_console()
    site = find_site(Path.cwd())
    # This machine is always checked, with a table of its own or without.
    computes = {one for layer in site.layers for one in layer.computes} - {"local"}
    # A name with a star is a pattern, and what it matches is not known here.
    known = sorted(one for one in computes if not one.endswith("*"))
    is_well = True
    if name is None or site.notice:
        files = [f"site file {layer.file}" for layer in site.layers]
        missing = f"no site file: neither {site.file} nor one in a folder above it exists"
        for line in files or [missing]:
            console.print(line)
    if name is None:
        is_well &= _show("this machine", check_machine(store_folder(store)))
    for one in known if name is None else [name]:
        is_well &= _show(one, check_compute(one, site, store_folder(store)))
    return 0 if is_well else 1


def _show(title: str, findings: Iterable[Finding]) -> bool:
    """Print what was found; return whether nothing must change."""
    from rankwise.reports.terminal.console import make_console, show_sentence

    console = make_console()
    print(title)
    is_well = True
    for finding in findings:
        is_well &= finding.is_well or not finding.is_needed
        mark = "ok  " if finding.is_well else ("bad " if finding.is_needed else "note")
        show_sentence(console, f"  {mark}  ", finding.what)
        if finding.remedy and not finding.is_well:
            print(f"        {finding.remedy}")
    return is_well


def rollback_command(
    folder: Path, *, to: str | None = None, list_: bool = False, json_: AsJson = False
) -> None:
    """Put an earlier release of a pipeline in use again.

    The link `current` is switched in one step: a program that follows it finds a whole release at
    any moment. All releases are listed afterwards.

    Arguments:
      FOLDER  The folder that a stage deploys to.

    Options:
      --to NAME  This release; otherwise the one before.
      --list     Only list the releases.

    Examples:
      rankwise rollback /soft/mpi4py
      rankwise rollback /soft/mpi4py --to nightly-41
    """
    from rankwise.steps.releases import releases_in, roll_back

    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder")
    if not list_:
        roll_back(folder.absolute(), to)
    found = releases_in(folder.absolute())
    if json_:
        data = [{"name": one.name, "made": one.made, "current": one.is_current} for one in found]
        print(json.dumps(data, indent=2))
        return
    if not found:
        raise InputError(f"{folder}: there are no releases")
    width = max(len(one.name) for one in found)
    for one in found:
        made = moment(one.made, with_zone=False)
        print(f"{'*' if one.is_current else ' '} {one.name:{width}}  {made}")


def store_command(action: Literal["merge"], other: Path, *, store: StoreFolder = None) -> None:
    """Merge the store of another machine into this one.

    Its runs that are over are copied, with their samples; those that are here already are not. Its
    logs and artifacts stay where they are. It is only read, and both may be in use. What fails or
    is killed has merged nothing.

    Arguments:
      ACTION  What to do: merge.
      OTHER   A folder .rankwise, or the file store.db.

    Examples:
      rankwise store merge /site-b/project/.rankwise
      rankwise store merge store-of-b.db
    """
    from rankwise.store import Store
    from rankwise.store.store import FILE
    from rankwise.wording import counted, listed

    del action
    place = other / FILE if other.is_dir() else other
    # Before our own is opened, which makes it if it is not there.
    if not place.exists():
        raise InputError(f"{place}: there is no store to merge")
    with Store.open(store_folder(store)) as opened:
        merged = opened.merge(place.absolute())
    print(f"{counted(len(merged.ids), 'run')} merged with {counted(merged.samples, 'sample')}")
    print(f"{counted(merged.known, 'run')} known already")
    for theirs, ours in merged.ids.items():
        if theirs != ours:
            print(f"  {theirs} is {ours} here: {theirs} was taken")
    if merged.waiting:
        print(f"  not over there, merge again later: {listed(merged.waiting)}")


def serve_command(
    *,
    port: Annotated[int | None, typer.Option(min=0, max=65535)] = None,
    open_: bool = False,
    store: StoreFolder = None,
) -> None:
    """Show the runs of this store in a browser, as they happen.

    Only this machine can reach the page, and only with the token in the address that is printed.
    Ctrl-C ends it.

    Options:
      --port N  Listen on this port; 0: on one that is free. Otherwise 8765, or a free one.
      --open    Open it in a browser.

    Examples:
      rankwise serve --open
      rankwise serve --port 8080
    """
    folder = store_folder(store)
    # An error of the store is reported here, and not in a browser.
    open_for_reading(folder).close()
    try:
        from rankwise.web import app
        from rankwise.web.security import Secrets
    except ModuleNotFoundError as error:
        raise InputError(f"the page needs {error.name}:  pip install 'rankwise[web]'") from error
    # Bound before the address is printed, so that it works at once.
    listening = app.listen(port)
    number = listening.getsockname()[1]
    # Browsers send a cookie to all ports of a host: each server needs a name of its own.
    keys = Secrets(name=f"rankwise-{number}")
    address = f"http://{app.HOST}:{number}/?token={keys.token}"
    print(f"The runs of {folder} are shown at")
    print(f"  {address}")
    print(f"Ctrl-C ends it. From your own machine:  ssh -L {number}:{app.HOST}:{number} HOST")
    # A program that has started us through a pipe waits for these lines.
    print(end="", flush=True)
    with _browser(folder, address) if open_ else contextlib.nullcontext():
        app.serve(folder, listening, keys)


@contextlib.contextmanager
def _browser(folder: Path, address: str) -> Iterator[None]:
    """Open a browser at a file that leads to the address, and remove that file at the end.

    The address has the token, and every user of a machine can read command lines.
    """
    file = folder / "serve.html"
    file.unlink(missing_ok=True)
    # O_EXCL follows no link that others have put there, and 0600 keeps the token from them.
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as page:
        page.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={address}">\n')
    try:
        if not _open(file):
            print("No browser could be opened: open the address yourself.", flush=True)
        yield
    finally:
        file.unlink(missing_ok=True)


def _open(file: Path) -> bool:
    import webbrowser

    # Without a screen it would be a browser for terminals, which hides all that we print.
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    if sys.platform != "darwin" and not any(os.environ.get(name) for name in screens):
        return False
    try:
        return webbrowser.open(file.as_uri())
    except webbrowser.Error:
        return False
