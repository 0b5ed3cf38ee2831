"""`rankwise serve`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from rankwise.cli.options import StoreFolder


def command(
    *,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            metavar="N",
            help="Listen on this port; 0: on one that is free. Otherwise 8765, or a free one.",
            show_default=False,
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
    from rankwise.cli.stores import open_for_reading, store_folder
    from rankwise.errors import InputError

    folder = store_folder(store)
    # What is wrong with the store is said here, and not in a browser.
    open_for_reading(folder).close()
    try:
        from rankwise.web import server
    except ModuleNotFoundError as error:
        raise InputError(f"the page needs {error.name}:  pip install 'rankwise[web]'") from error
    listening = server.listen(port)
    keys = server.keys_for(listening)
    number = server.port_of(listening)
    address = f"http://{server.HOST}:{number}/?token={keys.token}"
    print(f"The runs of {folder} are shown at")
    print(f"  {address}")
    print(f"Ctrl-C ends it. From your own machine:  ssh -L {number}:{server.HOST}:{number} HOST")
    # Whoever has started us through a pipe waits for this.
    print(end="", flush=True)
    with _opened(folder, address) if is_to_open else contextlib.nullcontext():
        server.serve(folder, listening, keys)


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
