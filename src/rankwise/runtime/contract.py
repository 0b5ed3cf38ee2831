"""What every kind of runtime gives to those who start commands in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rankwise.plan import RuntimeChoice

Command = str | tuple[str, ...]
"""A line for the shell, or the arguments themselves."""
Say = Callable[[str], None]
"""Tells people what takes its time."""


class Wrap(Protocol):
    """Turns a command into the one that runs it inside of something."""

    def __call__(
        self,
        command: Command,
        *,
        folder: str,
        mounts: Sequence[str] = (),
        names: Iterable[str] = (),
        gpus: int = 0,
    ) -> Command:
        """Give the command to start in its place.

        It works in `folder`, sees that one and `mounts` under their own names, and has the
        variables in `names` with the values that they have where the command is started.
        """


class Runtime(Protocol):
    """One kind of runtime."""

    def __call__(self, choice: RuntimeChoice, say: Say) -> Prepared:
        """Make it ready, which may take long the first time.

        Idempotent, and many processes may do it at once. ComputeFailure: it cannot be had.
        """


def as_it_is(
    command: Command,
    *,
    folder: str,
    mounts: Sequence[str] = (),
    names: Iterable[str] = (),
    gpus: int = 0,
) -> Command:
    """Leave a command alone: it needs nothing around it."""
    del folder, mounts, names, gpus
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A runtime that is ready: how commands must be started to run in it."""

    path: tuple[str, ...] = ()
    """Folders to put before PATH."""
    environment: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    """Variables to leave out of what is inherited."""
    wrap: Wrap = as_it_is
