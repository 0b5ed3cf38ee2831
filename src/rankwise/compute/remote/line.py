"""A line to another machine: runs one command there, whatever it takes to get there."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, Protocol

from rankwise.compute.remote.agent import BEGIN, DATA, END
from rankwise.errors import ComputeFailure

_ANSWER = re.compile(f"{BEGIN}([A-Za-z0-9_=-]*){END}".encode())
# What a login may have to say before anything of ours comes.
_NOISE_BYTES = 1 << 20


class LineAway(ComputeFailure):
    """Nobody answers: what was asked for may have been done or not."""


class Refused(ComputeFailure):
    """The machine is there, or its name is wrong; asking again would not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What came of a command over there."""

    exit_code: int
    output: bytes
    errors: str


class Line(Protocol):
    """One machine, and how to get there."""

    name: str
    """As people call it."""

    def call(
        self,
        command: str,
        *,
        data: bytes = b"",
        body: IO[bytes] | None = None,
        seconds: float = 60.0,
        into: IO[bytes] | None = None,
    ) -> Said:
        """Run a line for the shell there, with `data` and then `body` as its standard input.

        What it writes goes `into` a file if there is one, byte by byte as it is. LineAway: it
        could not be reached, or the line was cut. Refused: it never will be.
        """

    def is_there(self) -> bool | None:
        """Tell whether there still is such a machine; None: only a call can tell."""

    def close(self) -> None:
        """Keep no connection for later."""


def pack(request: Mapping[str, Any]) -> str:
    """Write a request as one word of a command line."""
    return base64.urlsafe_b64encode(json.dumps(request).encode()).decode()


def read_answer(line: Line, said: Said) -> dict[str, Any]:
    """Find the answer in what a call has written; LineAway: there is none."""
    found = _ANSWER.search(said.output)
    if found is None:
        raise LineAway(f"{line.name} does not answer: {last_words(said)}")
    data: dict[str, Any] = json.loads(base64.urlsafe_b64decode(found[1]))
    if "error" in data:
        raise ComputeFailure(f"{line.name}: {data['error']}")
    return data


def find_data(line: Line, said: Said, file: IO[bytes]) -> None:
    """Go to where the stream begins in what a call has written; LineAway: there is none."""
    file.seek(0)
    before, mark, _ = file.read(_NOISE_BYTES).partition(DATA)
    if not mark or said.exit_code:
        raise LineAway(f"{line.name} does not answer: {last_words(said)}")
    file.seek(len(before) + len(mark))


def last_words(said: Said) -> str:
    """Give the last line of what went wrong."""
    text = said.errors.strip() or said.output.decode(errors="replace").strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {said.exit_code}"
