"""Messages that wait: each a file that is there before it is sent, and gone when it has arrived."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = "outbox"
_ABOUT, _BODY = ".json", ".message"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One message that has not arrived yet."""

    name: str
    """Of its files."""
    target: str
    """The name of the table in the site file that says where it goes."""
    run: str
    folder: str
    """From which the site file is found."""
    created: float
    tries: int = 0
    trouble: str = ""
    """What went wrong the last time."""


class Outbox:
    """The messages of one store."""

    def __init__(self, store: Path) -> None:
        self._folder = store / FOLDER

    def add(self, target: str, run: str, folder: str, body: bytes) -> Waiting:
        """Keep a message, before the first try to send it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        now = time.time()
        name = f"{time.time_ns()}-{os.getpid()}"
        one = Waiting(name=name, target=target, run=run, folder=folder, created=now)
        self._write(f"{name}{_BODY}", body)
        self.note(one)
        return one

    def note(self, one: Waiting) -> None:
        """Write down how it stands with a message."""
        self._write(f"{one.name}{_ABOUT}", json.dumps(asdict(one)).encode())

    def body(self, one: Waiting) -> bytes:
        """Give the message itself."""
        return (self._folder / f"{one.name}{_BODY}").read_bytes()

    def remove(self, one: Waiting) -> None:
        """Forget a message."""
        for ending in (_ABOUT, _BODY):
            (self._folder / f"{one.name}{ending}").unlink(missing_ok=True)

    def waiting(self) -> list[Waiting]:
        """Give the messages that wait, the oldest first; what cannot be read is left alone."""
        found = []
        try:
            files = sorted(self._folder.glob(f"*{_ABOUT}"))
        except OSError:
            return []
        for file in files:
            with contextlib.suppress(OSError, ValueError, TypeError):
                found.append(Waiting(**json.loads(file.read_bytes())))
        return found

    @contextlib.contextmanager
    def claimed(self, one: Waiting) -> Iterator[bool]:
        """Tell whether a message is ours to send, and keep it so: it must not be sent twice.

        It is not if somebody else is at it, or it is gone.
        """
        try:
            file = (self._folder / f"{one.name}{_BODY}").open("rb")
        except OSError:
            yield False
            return
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            # Whoever had it before us may have sent and removed it meanwhile.
            yield os.fstat(file.fileno()).st_nlink > 0

    def _write(self, name: str, content: bytes) -> None:
        beside = self._folder / f".{name}"
        beside.write_bytes(content)
        beside.replace(self._folder / name)
