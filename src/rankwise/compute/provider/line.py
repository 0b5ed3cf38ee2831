"""A line to an instance by a provider's own command line."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from rankwise.compute.provider.instances import is_listed
from rankwise.compute.provider.templates import fill
from rankwise.compute.remote.exchange import exchange
from rankwise.compute.remote.ledger import Ledger
from rankwise.compute.remote.line import LineAway, Said, last_words
from rankwise.errors import ComputeFailure
from rankwise.site.choices import CommandChoice


class ProviderLine:
    """One instance; `run` gets there, and `send` and `fetch` where it cannot pass files."""

    def __init__(
        self, name: str, values: Mapping[str, str], command: CommandChoice, ledger: Ledger
    ) -> None:
        self.name = name
        self._values, self._command, self._ledger = values, command, ledger

    def call(
        self,
        command: str,
        *,
        data: bytes = b"",
        body: IO[bytes] | None = None,
        seconds: float = 60.0,
        into: IO[bytes] | None = None,
    ) -> Said:
        """Run a line there."""
        more, remove = "", []
        if self._command.send and (data or body is not None):
            place = self._place("in")
            with _file_of(data, body) as source:
                self._copy(self._command.send, source, place, seconds)
            more, remove = f" < {shlex.quote(place)}", [place]
            data, body = b"", None
        out = self._place("out") if self._command.fetch and into is not None else ""
        if out:
            more += f" > {shlex.quote(out)}"
        if more:
            line = f"( {command} ){more}; code=$?; rm -f {shlex.join(remove)}; exit $code"
            command = f"/bin/sh -c {shlex.quote(line)}"
        said = self._run(command, data, body, seconds, None if out else into)
        if out and into is not None:
            with tempfile.TemporaryDirectory(prefix="rankwise-") as folder:
                self._copy(self._command.fetch, out, f"{folder}/fetched", seconds)
                with open(f"{folder}/fetched", "rb") as fetched:  # noqa: PTH123  a plain name
                    shutil.copyfileobj(fetched, into, 1 << 20)
            self._run(f"rm -f {shlex.quote(out)}", b"", None, seconds, None)
        return said

    def _place(self, kind: str) -> str:
        return f"{self._command.folder}-{kind}-{secrets.token_hex(6)}"

    def _run(
        self,
        command: str,
        data: bytes,
        body: IO[bytes] | None,
        seconds: float,
        into: IO[bytes] | None,
    ) -> Said:
        words = fill(self._command.run, {**self._values, "command": command})
        said = exchange(words, data=data, body=body, seconds=seconds, into=into)
        if said is None:
            raise LineAway(f"{self.name} gave no answer in {seconds:g} s")
        return said

    def _copy(self, template: Sequence[str], source: str, target: str, seconds: float) -> None:
        words = fill(template, {**self._values, "source": source, "target": target})
        said = exchange(words, seconds=seconds)
        if said is None or said.exit_code:
            why = last_words(said) if said is not None else "it took too long"
            raise LineAway(f"{self.name}: a file could not be copied: {why}")

    def is_there(self) -> bool | None:
        """Ask the provider, if there is a way to."""
        entry = self._ledger.get(self.name)
        if entry is None:
            return False
        if not entry.about["list"]:
            return None
        with contextlib.suppress(ComputeFailure):
            return is_listed(entry)
        return None

    def close(self) -> None:
        """Do nothing: no connection is kept."""


@contextlib.contextmanager
def _file_of(data: bytes, body: IO[bytes] | None) -> Iterator[str]:
    """Write what is to be sent into a file that only we can read, and that does not stay."""
    handle, path = tempfile.mkstemp(prefix="rankwise-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if body is not None:
                shutil.copyfileobj(body, file, 1 << 20)
        yield path
    finally:
        os.unlink(path)  # noqa: PTH108  a plain name
