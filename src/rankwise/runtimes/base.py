"""What a runtime is, and the one that needs nothing made: modules of the machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankwise.errors import ComputeFailure
from rankwise.plan import RuntimeChoice

Command = str | tuple[str, ...]
"""A line for the shell, or the arguments themselves."""
Say = Callable[[str], None]
"""Reports to people what takes its time."""


Wrap = Callable[..., Command]
"""Returns the command that runs a command inside of something.

The process is called `name`. It works in `folder`, sees that one and `mounts` under their own
names and what is in `aliases` under other ones too, has the variables in `names` with the values
that they have where it is started, and `gpus` GPUs: see `Container`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRuntime:
    """A runtime that is ready: how commands must be started to run in it."""

    path: tuple[str, ...] = ()
    """Folders to put before PATH."""
    environment: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    """Variables to leave out of what is inherited."""
    wrap: Wrap | None = None
    """None: commands need nothing around them."""
    is_container: bool = False
    """Whether `wrap` puts commands into containers."""


Runtime = Callable[[RuntimeChoice, Say], PreparedRuntime]
"""Prepares one kind of runtime, which may take long the first time.

Idempotent, and many processes may do it at once. ComputeFailure: it cannot be had.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Turns commands into ones that load modules first."""

    names: tuple[str, ...]

    def __call__(self, command: Command, **_around: Any) -> Command:
        """Return the command of a shell that loads them where it is started."""
        inner = ("/bin/sh", "-c", command) if isinstance(command, str) else command
        # In the command itself, as it may be started on another machine.
        script = Path(__file__).with_name("modules.sh").read_text(encoding="utf-8")
        return ("bash", "-c", script, "rankwise", str(len(self.names)), *self.names, *inner)


def prepare(choice: RuntimeChoice, say: Say) -> PreparedRuntime:
    """Have commands find what the modules bring; whether they are there shows when they run."""
    del say
    return PreparedRuntime(wrap=Modules(names=choice.modules))


def cache_folder() -> Path:
    """Return the folder for what can be made again."""
    place = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The specification has one that is not absolute ignored.
    if place.is_absolute():
        return place / "rankwise"
    try:
        return Path.home() / ".cache" / "rankwise"
    except RuntimeError as error:
        raise ComputeFailure(
            "there is no home folder to keep things in; set XDG_CACHE_HOME to a folder"
        ) from error
