"""`rankwise init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    type_name: Annotated[
        str | None,
        typer.Argument(
            metavar="TYPE", help="What the document is to describe; with --ci, the suite to run."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Where to write it; otherwise it is printed."),
    ] = None,
    *,
    service: Annotated[
        str | None,
        typer.Option(
            "--ci",
            metavar="SERVICE",
            help="Write the file by which github, gitlab, azure or jenkins runs a suite on every "
            "pull request.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a commented document to start from, or a file for a CI.

    Without TYPE, the types are listed. A file that is there is left as it is.

    \b
    For example:
      rankwise init
      rankwise init PytorchJob job.yaml
      rankwise init --ci github suite.yaml
    """
    from rankwise.spec.starters import starter

    if service is not None:
        _write_ci(service, type_name or "suite.yaml", file)
        return
    if type_name is None:
        _list_types()
        return
    text = starter(type_name)
    if file is None:
        print(text, end="")
        return
    _write_new(file, text)
    print(f"{file} is there; to see what it would run:  rankwise plan {file}")


def _write_ci(service: str, document: str, file: Path | None) -> None:
    from rankwise.cli.ci_files import ci_file

    made = ci_file(service, document)
    place = file or Path(made.path)
    place.parent.mkdir(parents=True, exist_ok=True)
    _write_new(place, made.text)
    print(f"{place} is there; it runs {document} on every pull request")
    if not Path(document).exists():
        print(f"{document} is not there yet; to begin with:  rankwise init Suite {document}")


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
