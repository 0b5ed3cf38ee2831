"""Run a command at a real terminal, with a user who types."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.acceptance.harness import Project


@dataclass(frozen=True, slots=True)
class Typed:
    """What is typed once some words have been shown; both may be empty."""

    after: str
    text: str
    pause: float = 0.0
    """Seconds in which the user thinks before typing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """What was shown, and how the command ended."""

    text: str
    exit_code: int

    def __str__(self) -> str:
        return f"exit {self.exit_code}\n{self.text}"


def at_terminal(
    project: Project,
    command: Sequence[str],
    script: Sequence[Typed],
    *,
    environment: Mapping[str, str] | None = None,
    limit: float = 150.0,
) -> Screen:
    """Run a command in a session whose terminal we hold; its group is killed at the limit.

    Raises AssertionError if it does not end, or if words of the script never come.
    """
    ours, theirs = pty.openpty()
    variables = project.variables(project.folder / ".record-terminal")
    process = subprocess.Popen(
        # A session of its own, and the terminal is its own.
        ["setsid", "--ctty", *command],
        cwd=project.folder,
        env={**variables, "TERM": "dumb", **(environment or {})},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        text, left = _converse(ours, script, time.monotonic() + limit)
        assert not left, f"{left[0].after!r} was never shown:\n{text}"
        return Screen(text=text, exit_code=process.wait(timeout=limit))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(ours)


def _converse(terminal: int, script: Sequence[Typed], until: float) -> tuple[str, list[Typed]]:
    """Type what the script says, and read until no process has the terminal any more."""
    left = list(script)
    shown, seen = b"", 0
    while time.monotonic() < until:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:  # what Linux says when the other side is closed
                return _plain(shown), left
            if not data:
                return _plain(shown), left
            shown += data
        place = shown.find(left[0].after.encode(), seen) if left else -1
        if place >= 0:
            typed = left.pop(0)
            seen = place + len(typed.after.encode())
            time.sleep(typed.pause)
            os.write(terminal, typed.text.encode())
    raise AssertionError(f"no end at the limit; this was shown:\n{_plain(shown)}")


def _plain(shown: bytes) -> str:
    return shown.decode(errors="replace").replace("\r\n", "\n")
