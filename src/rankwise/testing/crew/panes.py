"""A pane of tmux for each rank, in which its output is seen as it comes: `--tmux`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rankwise.testing.crew.live_output import log_of

_FOLLOW = Path(__file__).with_name("follow.py")
_SECONDS = 10.0
# Of a session that nobody looks at yet.
_SIZE = ("-x", "220", "-y", "60")

Run = Callable[[Sequence[str]], str]


def refuse_without_tmux() -> None:
    """Raise UsageError if there is no tmux."""
    if shutil.which("tmux") is None:
        raise pytest.UsageError(
            "--tmux needs tmux, and there is none on PATH. Install it (apt install tmux), or leave "
            "--tmux out: reports have what ranks have printed."
        )


def open_panes(folder: Path, width: int, run: Run | None = None) -> str:
    """Open a pane for each rank; gives what the user is told.

    Within tmux they are a new window, else a session of their own. Raises UsageError if tmux does
    not do as it is told.
    """
    run = run or _run
    commands = []
    for rank in range(width):
        log_of(folder, rank).touch(mode=0o600)
        title = f"rank {rank} of {width}"
        commands.append(
            shlex.join([sys.executable, str(_FOLLOW), str(log_of(folder, rank)), title])
        )
    told = ["-d", "-P", "-F", "#{pane_id}"]
    if "TMUX" in os.environ:
        where = "the window rankwise of tmux"
        first = run(["tmux", "new-window", *told, "-n", "rankwise", commands[0]])
    else:
        session = f"rankwise-{os.getpid()}"
        where = f"tmux attach -t {session}"
        first = run(["tmux", "new-session", *told, "-s", session, *_SIZE, commands[0]])
    shown = 1
    for command in commands[1:]:
        try:
            run(["tmux", "split-window", *told, "-t", first, command])
        except pytest.UsageError:
            # The window has no room for more.
            break
        run(["tmux", "select-layout", "-t", first, "tiled"])
        shown += 1
    left_out = f", the first {shown} of {width}" if shown < width else ""
    return f"the ranks are seen in: {where}{left_out}"


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise pytest.UsageError(f"--tmux: {error}") from None
    if done.returncode:
        raise pytest.UsageError(f"--tmux: {shlex.join(command[:2])}: {done.stderr.strip()}")
    return done.stdout.strip()
