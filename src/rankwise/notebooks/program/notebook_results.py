"""What is asked for and what became of it; text and files without secrets."""

from __future__ import annotations

import base64
import contextlib
import html
import json
import os
import re
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib import parse

PASSED = "passed"
ERROR = "error"
DIFFERS = "output differs"
TIMED_OUT = "timed out"
KERNEL_DIED = "kernel died"
NEEDS_INPUT = "needs input"
MISSING_KERNEL = "missing kernel"
NO_START = "kernel did not start"
UNREADABLE = "unreadable"
CANNOT_WRITE = "cannot write"
CANCELLED = "cancelled"
INTERNAL = "internal error"

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


# What is asked for, and what became of it


@dataclass
class NotebookOrder:
    """One notebook to run."""

    notebook: Path
    out: Path
    junit: Path | None = None
    kernel_python: str = "python"
    timeout: float | None = None
    cell_timeout: float | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    html: bool = False
    pdf: bool = False
    as_script: bool = False
    compare: str = "tagged"

    @property
    def stem(self) -> str:
        return self.notebook.stem

    @property
    def folder(self) -> Path:
        """Where it runs: its own folder, as in Jupyter."""
        return self.notebook.absolute().parent


@dataclass
class CellResult:
    """What became of one cell, or of another part of the notebook."""

    cell: int
    title: str
    state: str = "not run"
    seconds: float = 0.0
    reason: str = ""
    details: str = ""


class NotebookFailure(Exception):
    """Why a notebook has not passed."""

    def __init__(self, outcome: str, reason: str, *, cell: int | None = None, details: str = ""):
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
        self.cell = cell
        self.details = details


def own_fault(error: Exception) -> NotebookFailure:
    """Return the failure for an error of ours, while it is handled; it must not look passed."""
    reason = f"{type(error).__name__}: {error}"
    return NotebookFailure(INTERNAL, reason, details=traceback.format_exc())


@dataclass
class NotebookResult:
    """All that is known of a notebook that was run."""

    order: NotebookOrder
    outcome: str = PASSED
    reason: str = ""
    cell: int | None = None
    details: str = ""
    started: float = field(default_factory=time.time)
    seconds: float = 0.0
    cases: list[CellResult] = field(default_factory=list)
    kernel: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    injected: int | None = None
    """Where a cell with parameters was put in, among those of the notebook."""

    def take(self, trouble: NotebookFailure) -> None:
        """Note why it has not passed."""
        self.outcome, self.reason = trouble.outcome, trouble.reason
        self.cell, self.details = trouble.cell, trouble.details

    def add(self, trouble: NotebookFailure) -> None:
        """Note what went wrong after the cells: the reason if they passed."""
        self.notes.append(trouble.reason)
        if self.outcome == PASSED:
            self.take(trouble)

    def as_dict(self) -> dict[str, Any]:
        """Return what is written into outcome.json."""
        return {
            "outcome": self.outcome,
            "reason": self.reason,
            "cell": self.cell,
            "details": self.details,
            "notebook": str(self.order.notebook),
            "started": self.started,
            "seconds": round(self.seconds, 3),
            "kernel": self.kernel,
            "notes": self.notes,
            "files": self.files,
            "cells": [
                {
                    "cell": case.cell,
                    "title": case.title,
                    "state": case.state,
                    "seconds": round(case.seconds, 3),
                    "reason": case.reason,
                }
                for case in self.cases
            ],
        }


def number_of(index: int, injected: int | None) -> int:
    """Return the number of a cell in the notebook as it was written; 0: it is not in there."""
    if injected is None or index < injected:
        return index + 1
    return 0 if index == injected else index


def say(text: str) -> None:
    """Write to the log; one that nobody reads is no reason to stop."""
    with contextlib.suppress(OSError, ValueError):
        print(text, flush=True)


def plain(text: object) -> str:
    """Return a text without what colours it."""
    return _ANSI.sub("", str(text))


def readable(text: str) -> str:
    """Return a text as a terminal shows it: of lines that were written over, the last is left."""
    lines = plain(text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


# What is left behind


def write(path: Path, content: str | bytes) -> None:
    """Write a file as a whole, or not at all; raises OSError."""
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            # Some file systems say only now that there was no room.
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def without_secrets(text: str) -> str:
    """Put *** for the values of secrets: this is kept, and shown to others.

    Those of less than four characters are a part of anything.
    """
    for name in filter(None, os.environ.get("RANKWISE_SECRETS", "").split(",")):
        value = os.environ.get(name, "").strip()
        if len(value) >= 4:
            for spelled in sorted(_spellings(value), key=len, reverse=True):
                text = text.replace(spelled, "***")
    return text


def _spellings(value: str) -> Iterator[str]:
    yield from (value, html.escape(value), html.escape(value, quote=False))
    for form in (repr, ascii, json.dumps):
        yield form(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield from (parse.quote(value), parse.quote(value, safe=""), parse.quote_plus(value))
    data = value.encode(errors="surrogateescape")
    for before in range(3):
        whole = base64.b64encode(bytes(before) + data)
        own = whole[(before * 8 + 5) // 6 : (before + len(data)) * 8 // 6].decode()
        if len(own) >= 6:
            yield from (own, own.replace("+", "-").replace("/", "_"))
