"""The scripts and command lines of a pipeline's stages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankwise.documents.pipeline import Stage
from rankwise.documents.steps import Cache
from rankwise.plan import later

# Those with a dot are ours: a plan that is shown to people leaves them out.
RUN, STAGE, AROUND = "run.sh", ".stage.sh", ".around.sh"
# The first command that fails ends the script, also one within a pipe.
_BASH = ("bash", "-eo", "pipefail")

Line = tuple[str, ...]

# A file of its own, so that editors and shellcheck know what it is.
_STAGE_SCRIPT = Path(__file__).with_name("stage.sh")


def script_files(text: str) -> dict[str, str]:
    """Return the files that a stage's own lines need."""
    return {
        RUN: text if text.endswith("\n") else f"{text}\n",
        STAGE: _STAGE_SCRIPT.read_text(encoding="utf-8"),
    }


def around_files(lines: Sequence[Line]) -> dict[str, str]:
    """Return the files that run several lines, one after another."""
    # Words as they are, each with its end: folders that are filled in later may have quotes.
    files = {f".line-{at}": "".join(f"{word}\0" for word in line) for at, line in enumerate(lines)}
    call = 'mapfile -d "" -t line <"$RANKWISE_FOLDER/{}"; "${{line[@]}}"\n'
    return {AROUND: "".join(map(call.format, files)), **files}


def script_command(name: str = STAGE) -> tuple[str, ...]:
    """Return the command that runs one of the files."""
    return (*_BASH, f"{later('folder')}/{name}")


def program(step: str, /, **given: Any) -> Line:
    """Return the line that runs a program, whatever Python a stage has for itself.

    Name and value of an option are one word: a value may begin with `-`. What is empty is left out.
    """
    words = [
        word for name, value in given.items() for word in _option(name.replace("_", "-"), value)
    ]
    # -I, because a stage may have set PYTHONPATH, and works in folders with modules of any name.
    return (sys.executable, "-I", "-m", "rankwise.steps", step, *words)


def _option(name: str, value: Any) -> list[str]:
    match value:
        case bool():
            return [f"--{name}"] if value else []
        # 5.0 seconds are `5` on a command line.
        case int() | float():
            return [f"--{name}={value:.15g}"]
        case tuple():
            return [f"--{name}={each}" for each in value]
    return [f"--{name}={value}"] if value else []


_OF_RUN = {"store": later("store"), "run_id": later("run")}


def analysis_line(line: Sequence[str]) -> Line:
    """Return the line that writes the samples of a sweep, and becomes that of its analysis."""
    return program("samples", **_OF_RUN, line=tuple(line))


def step_line(stage: Stage) -> Line:
    """Return the line of a stage that is a step of rankwise's own."""
    given = dict(getattr(stage, stage.step))
    if stage.step == "deploy":
        given["name"] = given["name"] or later("run")
    return program(stage.step, **given, **(_OF_RUN if stage.step in ("report", "notify") else {}))


def keep_line(stage: str, cell: str, patterns: Sequence[str]) -> Line:
    """Return the line that keeps artifacts."""
    into = f"{later(f'artifacts:{stage}')}{f'/{cell}' if cell else ''}"
    objects = f"{later('store')}/objects"
    return program("artifacts", into=into, objects=objects, patterns=tuple(patterns))


def cache_lines(cache: Cache, command: str) -> tuple[Line, Line]:
    """Return the lines that put back what was kept, and that keep it."""
    given = {"store": f"{later('store')}/cache", "command": command, **dict(cache)}
    return program("cache", **given), program("cache", **given, save=True)


def detach_line(source: str, stage: str, *, on: str | None, is_forced: bool) -> Line:
    """Return the line that has a stage run by itself."""
    return program("detach", **_OF_RUN, source=source, stage=stage, on=on, force=is_forced)
