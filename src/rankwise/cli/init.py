"""`rankwise init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    type_name: Annotated[
        str | None,
        typer.Argument(metavar="TYPE", help="What the document is to describe."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Where to write it; otherwise it is printed."),
    ] = None,
) -> None:
    """Write a commented document to start from.

    Without TYPE, the types are listed. A file that is there is left as it is.

    \b
    For example:
      rankwise init
      rankwise init PytorchJob job.yaml
    """
    from rankwise.spec.starters import starter

    if type_name is None:
        _list_types()
        return
    text = starter(type_name)
    if file is None:
        print(text, end="")
        return
    _write_new(file, text)
    print(f"{file} is there; to see what it would run:  rankwise plan {file}")


def _list_types() -> None:
    """Print the types, and what each says of itself in its first line."""
    from rankwise.spec.documents import TYPES
    from rankwise.spec.starters import starter

    width = max(map(len, TYPES))
    for name in TYPES:
        print(f"{name:{width}}  {starter(name).splitlines()[0].lstrip('# ')}")


def _write_new(file: Path, text: str) -> None:
    from rankwise.errors import InputError

    try:
        with file.open("x") as new:
            new.write(text)
    except FileExistsError:
        raise InputError(
            f"{file}: it is there already; remove it first, or choose another name"
        ) from None
    except OSError as error:
        raise InputError(f"{file}: it cannot be written: {error.strerror}") from error
