"""A line to a host by OpenSSH: its keys, its known hosts, its settings; one connection for all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from rankwise.compute.remote.exchange import exchange
from rankwise.compute.remote.line import LineAway, Refused, Said
from rankwise.errors import ComputeFailure

CONNECT_SECONDS = 15
# What is kept open between two calls ends by itself after a client that was killed.
_PERSIST_SECONDS = 30
_AWAY_CODE = 255
_WORDS_OF_REFUSAL = (
    "Host key verification failed",
    "REMOTE HOST IDENTIFICATION HAS CHANGED",
    "Permission denied (",
    "Could not resolve hostname",
    "Too many authentication failures",
    "Bad configuration option",
    "command-line line 0:",
)
_OPTIONS = (
    "BatchMode=yes",
    "ControlMaster=auto",
    f"ControlPersist={_PERSIST_SECONDS}",
    f"ConnectTimeout={CONNECT_SECONDS}",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ClearAllForwardings=yes",
    "LogLevel=ERROR",
)


class SshLine:
    """One host; all calls go through one connection."""

    def __init__(self, host: str, *, options: Sequence[str] = (), config: str = "") -> None:
        self.name = host
        own = ["-F", config] if config else []
        settings = [word for one in _OPTIONS for word in ("-o", one)]
        self._socket = _socket_for([host, *own, *options])
        self._words = [
            *("ssh", *own, *options, *settings, "-o", f"ControlPath={self._socket}", "-T"),
            *("-e", "none", "--", host),
        ]

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
        said = exchange([*self._words, command], data=data, body=body, seconds=seconds, into=into)
        if said is None:
            raise LineAway(f"{self.name} gave no answer in {seconds:g} s")
        if said.exit_code == _AWAY_CODE or said.exit_code < 0:
            raise self._failure(said.errors)
        return said

    def _failure(self, said: str) -> ComputeFailure:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        last = lines[-1] if lines else "the line was cut"
        if not any(words in said for words in _WORDS_OF_REFUSAL):
            return LineAway(f"{self.name} cannot be reached: {last}")
        text = f"{self.name}: ssh says: {last}"
        if "REMOTE HOST IDENTIFICATION HAS CHANGED" in said:
            return Refused(f"{text}; its key is not the one in known_hosts: find out why first")
        if "Host key verification failed" in said:
            return Refused(
                f"{text}; its key is not known here. Type  {self.by_hand()}  once, compare what it "
                f"shows with the host's own, and say yes"
            )
        if "Permission denied" in said:
            return Refused(
                f"{text}; it must let you in without a question. Try  {self.by_hand()} : if that "
                f"asks for a password, add your key there (ssh-copy-id) or to the agent (ssh-add)"
            )
        return Refused(f"{text}; `hosts` and `options` of its table are given to ssh as they are")

    def by_hand(self) -> str:
        """Give the command by which a person would look whether it works."""
        own = self._words[1 : self._words.index("-o")]
        return " ".join(["ssh", *own, self.name, "true"])

    def is_there(self) -> None:
        """Leave it to a call: a host that does not answer may come back."""

    def close(self) -> None:
        """End the connection as soon as nobody uses it."""
        if self._socket.exists():
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                words = [*self._words[:-3], "-O", "stop", "--", self.name]
                subprocess.run(
                    words,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=CONNECT_SECONDS,
                    check=False,
                    start_new_session=True,
                )


def _socket_for(words: Sequence[str]) -> Path:
    """Name the place of a connection: short, since there is no room for long ones, and our own."""
    folder = Path(tempfile.gettempdir()) / f"rankwise-ssh-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_ours or status.st_mode & 0o077:
        raise ComputeFailure(
            f"{folder} is not yours alone; remove it, or set TMPDIR to a folder of your own"
        )
    return folder / hashlib.sha256("\0".join(words).encode()).hexdigest()[:20]
