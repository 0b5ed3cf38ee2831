"""What ranks print, in panes of tmux."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path

import pytest

from rankwise.pytest_plugin.workers.forkserver import write_output_to

# Own references: a test may have put something else in their place, and this runs in its middle.
_dumps, _write = json.dumps, os.write


def log_of(folder: Path, rank: int) -> Path:
    """Return the file that tells of a rank."""
    return folder / f"pane-{rank}.jsonl"


class LiveOutput:
    """Writes down which test comes next and what each phase has printed.

    Output is captured in files that pytest empties after every phase. A follower reads these while
    a phase runs, and finds here what it has missed.
    """

    def __init__(self, folder: Path, rank: int, captured: Mapping[str, int]) -> None:
        self._log = os.open(log_of(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if captured:
            self._write({"pid": os.getpid(), "files": dict(captured)})
            return
        # Nothing is captured: all of it goes to a file of its own.
        # One for each process: several worlds take turns on a rank, and each begins anew.
        raw = log_of(folder, rank).with_suffix(f".{os.getpid()}.raw")
        write_output_to(raw)
        self._write({"raw": str(raw)})

    def _write(self, record: Mapping[str, object]) -> None:
        _write(self._log, _dumps(record).encode() + b"\n")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._write({"test": item.nodeid})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        printed = {
            name: text
            for name in ("stdout", "stderr")
            for title, text in report.sections
            if title == f"Captured {name} {call.when}"
        }
        self._write({"phase": str(call.when), "printed": printed, "outcome": report.outcome})
        return report


_FOLLOW = Path(__file__).with_name("tmux_pane.py")
_SECONDS = 10.0
# Of a session that is not shown in a terminal yet.
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
    """Open a pane for each rank; returns what the user is told.

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
    # -d: the user stays where they are; -P -F: tmux says the number of the pane.
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
