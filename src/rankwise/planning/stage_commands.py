"""The scripts and command lines of a pipeline's stages."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankwise.documents.pipeline import Stage
from rankwise.documents.steps import Cache, Wait
from rankwise.plan import later

# Those with a dot are ours: a plan that is shown to people leaves them out.
RUN, STAGE, AROUND = "run.sh", ".stage.sh", ".around.sh"
# The first command that fails ends the script, also one within a pipe.
_BASH = ("bash", "-eo", "pipefail")

# A file of its own, so that editors and shellcheck know what it is.
_STAGE_SCRIPT = Path(__file__).with_name("stage.sh")


def script_files(text: str) -> dict[str, str]:
    """Return the files that a stage's own lines need."""
    return {
        RUN: text if text.endswith("\n") else f"{text}\n",
        STAGE: _STAGE_SCRIPT.read_text(encoding="utf-8"),
    }


def script_command(name: str = STAGE) -> tuple[str, ...]:
    """Return the command that runs one of the files."""
    return (*_BASH, f"{later('folder')}/{name}")


Line = tuple[str, ...]


def program(name: str, *arguments: str) -> Line:
    """Return the line that runs a program, whatever Python a stage has for itself."""
    # -I, because a stage may have set PYTHONPATH, and works in folders with modules of any name.
    return (sys.executable, "-I", "-m", "rankwise.steps", name, *arguments)


_OF_RUN = (f"--store={later('store')}", f"--run={later('run')}")
# For each step, the fields that are arguments of its program, and those that are options.
_WORDS: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "checkout": (("repository",), {"--ref": "ref", "--into": "into", "--clean": "clean"}),
    "runtime": (
        ("into",),
        {
            "--python": "python",
            "--requirements": "requirements",
            "--package": "packages",
            "--site-packages": "site_packages",
        },
    ),
    "deploy": (("source", "to"), {"--name": "name", "--keep": "keep"}),
    "report": (("to",), {}),
    "notify": ((), {"--command": "run", "--file": "file", "--to": "to"}),
    "wait": ((), {f"--{name}": name for name in Wait.model_fields}),
}


def step_line(stage: Stage) -> Line:
    """Return the line of a stage that is a step of rankwise's own."""
    step = getattr(stage, stage.step)
    plain, options = _WORDS[stage.step]
    given = [
        word for name, field in options.items() for word in _option(name, getattr(step, field))
    ]
    if stage.step == "deploy" and not step.name:
        given.append(f"--name={later('run')}")
    if stage.step in ("report", "notify"):
        given += _OF_RUN
    return program(stage.step, *given, *_plain(getattr(step, name) for name in plain))


def _option(name: str, value: Any) -> list[str]:
    """Return the words of an option with a value, with several, or with none, as a flag.

    Name and value are one word: a value that begins with `-` would be taken for an option.
    """
    match value:
        case bool():
            return [name] if value else []
        # 5.0 seconds are `5` on a command line.
        case int() | float():
            return [f"{name}={value:.15g}"]
        case tuple():
            return [f"{name}={each}" for each in value]
    return [f"{name}={value}"] if value else []


def _plain(words: Iterable[str]) -> list[str]:
    """Return words that are no options, whatever they begin with."""
    found = list(words)
    return ["--", *found] if found else []


def keep_line(stage: str, cell: str, patterns: Sequence[str]) -> Line:
    """Return the line that keeps artifacts."""
    into = f"{later(f'artifacts:{stage}')}{f'/{cell}' if cell else ''}"
    objects = f"{later('store')}/objects"
    return program("artifacts", f"--into={into}", f"--objects={objects}", *_plain(patterns))


def cache_lines(cache: Cache, command: str) -> tuple[Line, Line]:
    """Return the lines that put back what was kept, and that keep it."""
    options = [f"--store={later('store')}/cache", f"--command={command}"]
    options += _option("--key", cache.key)
    restore, save = (_plain([act, *cache.paths]) for act in ("restore", "save"))
    return program("cache", *options, *restore), program("cache", *options, *save)


def detach_line(source: str, stage: str, *, on: str | None, is_forced: bool) -> Line:
    """Return the line that has a stage run by itself."""
    options = [*_OF_RUN, *_option("--force", is_forced), *_option("--on", on)]
    return program("detach", *options, *_plain([source, stage]))
