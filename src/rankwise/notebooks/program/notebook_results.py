"""Orders for notebooks and their results; text and files without the values of secrets."""

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
from enum import Enum
from pathlib import Path
from typing import Any
from urllib import parse


class Ended(str, Enum):  # noqa: UP042  # Python 3.8, where this runs too, has no StrEnum
    """How a notebook ended, as it is written in messages and in outcome.json."""

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

    # Versions of Python differ in what an f-string shows of such a member.
    __str__ = str.__str__


RAN_TO_THE_END = (Ended.PASSED, Ended.ERROR, Ended.DIFFERS)
"""Outcomes of notebooks whose kernel and cells are as usual afterwards."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


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
    """The result of one cell, or of another part of the notebook."""

    cell: int
    title: str
    state: str = "not run"
    seconds: float = 0.0
    reason: str = ""
    details: str = ""


class NotebookFailure(Exception):
    """A notebook has not passed."""

    def __init__(
        self, outcome: Ended, reason: str, *, cell: int | None = None, details: str = ""
    ) -> None:
        super().__init__(reason)
        self.outcome, self.reason, self.cell, self.details = outcome, reason, cell, details


def internal_error(error: Exception) -> NotebookFailure:
    """Return the failure for a defect of this program, while `error` is handled."""
    reason = f"{type(error).__name__}: {error}"
    return NotebookFailure(Ended.INTERNAL, reason, details=traceback.format_exc())


@dataclass
class NotebookResult:
    """The result of a notebook and of its cells."""

    order: NotebookOrder
    outcome: Ended = Ended.PASSED
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
    """The index of the cell with parameters that was inserted."""

    def fail(self, failure: NotebookFailure) -> None:
        """Make this failure the outcome."""
        self.outcome, self.reason = failure.outcome, failure.reason
        self.cell, self.details = failure.cell, failure.details

    def fail_late(self, failure: NotebookFailure) -> None:
        """Note what went wrong after the cells; it is the outcome only if they passed."""
        self.notes.append(failure.reason)
        if self.outcome == Ended.PASSED:
            self.fail(failure)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of outcome.json."""
        shown = ("outcome", "reason", "cell", "details", "started", "kernel", "notes", "files")
        of_cell = ("cell", "title", "state", "seconds", "reason")
        return {
            **{name: getattr(self, name) for name in shown},
            "notebook": str(self.order.notebook),
            "seconds": round(self.seconds, 3),
            "cells": [{name: getattr(case, name) for name in of_cell} for case in self.cases],
        }


def number_of(index: int, injected: int | None) -> int:
    """Return the number of a cell in the notebook as it was written; 0 if it was inserted."""
    if injected is None or index < injected:
        return index + 1
    return 0 if index == injected else index


def say(text: str) -> None:
    """Write a line to the log; a log that is closed is no reason to stop."""
    with contextlib.suppress(OSError, ValueError):
        print(text, flush=True)


def plain(text: object) -> str:
    """Return a text without ANSI escape sequences."""
    return _ANSI.sub("", str(text))


def readable(text: str) -> str:
    """Return a text as a terminal shows it, such as only the last state of a progress bar."""
    lines = plain(text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def write(path: Path, content: str | bytes) -> None:
    """Write a file as a whole or not at all; raises OSError."""
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    # In the same folder: a rename from another file system is not atomic.
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            # Some file systems report a full disk only here.
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def without_secrets(text: str) -> str:
    """Put *** in the place of the values of secrets, in every way in which they may be spelled.

    Values of less than four characters stay: they are a part of too many words.
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
    # Base64 of a longer text with the value in it, such as "user:value": the value may begin at any
    # of three places of a group, and its first and last digits depend on what is beside it.
    data = value.encode(errors="surrogateescape")
    for before in range(3):
        whole = base64.b64encode(bytes(before) + data)
        own = whole[(before * 8 + 5) // 6 : (before + len(data)) * 8 // 6].decode()
        # Shorter pieces would be found in any text.
        if len(own) >= 6:
            yield from (own, own.replace("+", "-").replace("/", "_"))
