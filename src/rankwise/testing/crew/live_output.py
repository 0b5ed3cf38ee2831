"""What a rank prints, where a pane beside the terminal can follow it: `--tmux`."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest


def log_of(folder: Path, rank: int) -> Path:
    """Give the file that tells of a rank."""
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
        raw = log_of(folder, rank).with_suffix(f".{os.getpid()}.raw")
        number = os.open(raw, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for target in (1, 2):
            os.dup2(number, target)
        os.close(number)
        self._write({"raw": str(raw)})

    def _write(self, record: Mapping[str, object]) -> None:
        os.write(self._log, json.dumps(record).encode() + b"\n")

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
