"""`rankwise export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.cli.completion import complete_compute
from rankwise.cli.options import Files

if TYPE_CHECKING:
    from rankwise.export.contract import Exported

_TARGETS = "kubernetes, kubeflow-v1, mpi-operator, kubeflow-trainer or azureml"


def _complete_target(incomplete: str) -> list[str]:
    from rankwise.export.targets import TARGETS

    return [name for name in TARGETS if name.startswith(incomplete)]


def command(
    files: Files,
    *,
    to: Annotated[
        str,
        typer.Option("--to", metavar="WHOM", help=f"{_TARGETS}.", autocompletion=_complete_target),
    ],
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="NAME",
            help="Write for this compute, whatever documents say.",
            autocompletion=complete_compute,
        ),
    ] = None,
    image: Annotated[
        str,
        typer.Option(
            "--image",
            metavar="IMAGE",
            help="Run in this image, instead of that of the environment in rankwise.toml.",
            show_default=False,
        ),
    ] = "",
    code_in_image: Annotated[
        str,
        typer.Option(
            "--code-in-image",
            metavar="FOLDER",
            help="The image has the code, in this folder; otherwise it becomes a ConfigMap.",
            show_default=False,
        ),
    ] = "",
    runtime: Annotated[
        str,
        typer.Option(
            "--runtime",
            metavar="NAME",
            help="The training runtime of the cluster that a TrainJob names.",
            show_default=False,
        ),
    ] = "",
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PLACE",
            help="A file, or a folder for a file of each job; otherwise all is printed.",
            show_default=False,
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Write nothing if something cannot be said there.")
    ] = False,
) -> int:
    """Write jobs as YAML for Kubernetes, its operators or Azure ML.

    Nothing is started. What cannot be said there is told on the standard error, a line for each.

    \b
    For example:
      rankwise export job.yaml --to kubernetes --image pytorch/pytorch | kubectl apply -f -
      rankwise export jobs/*.yaml --to azureml -o azure/
    """
    import sys

    from rankwise.cli.faults import WRONG_USE
    from rankwise.errors import InputError
    from rankwise.export.contract import Wish
    from rankwise.export.targets import TARGETS, export_from
    from rankwise.export.yaml_text import to_yaml

    if to not in TARGETS:
        raise InputError(f"--to {to}: there is {_TARGETS}")
    place = Path(output or ".")
    is_folder = output is not None and (output.endswith("/") or place.is_dir())
    beside = place if output is None or is_folder else place.parent
    wish = Wish(on=on, image=image, code_in_image=code_in_image, runtime=runtime, beside=beside)
    made = export_from(files, to, wish)
    for one in made:
        _tell(one, is_error=strict)
    if strict and any(one.losses for one in made):
        return WRONG_USE
    if output is None:
        sys.stdout.write(to_yaml(data for one in made for data in one.objects))
    elif is_folder:
        for one in made:
            _write(place / f"{one.name}.yaml", to_yaml(one.objects))
    else:
        _write(place, to_yaml(data for one in made for data in one.objects))
    return 0


def _tell(one: Exported, *, is_error: bool) -> None:
    import sys

    for line in one.losses:
        print(f"{line} ({'error' if is_error else 'lost'})", file=sys.stderr)
    for line in one.notes:
        print(f"{one.name}: note: {line}", file=sys.stderr)


def _write(file: Path, text: str) -> None:
    """Write a file beside its place, and move it there."""
    import contextlib
    import os

    from rankwise.errors import InputError

    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        raise InputError(f"{file}: it cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
