"""What we have left on other machines, or have made them, written down before it is there.

A file for each thing in a folder of the store, on the disk before anything is done. What stands
here is there, or may be; what is known to be gone is taken out. `rankwise clean` goes through it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise.errors import StoreFailure

FOLDER = "elsewhere"
"""Of the store."""
_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that is elsewhere."""

    name: str
    kind: str
    """`folder`: of an attempt, on a host; `instance`: made by a provider."""
    compute: str
    run: str
    about: Mapping[str, Any]


class Ledger:
    """The files of one store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, entry: Entry) -> None:
        """Write it down for good; StoreFailure: it cannot be."""
        data = {name: getattr(entry, name) for name in ("kind", "compute", "run")}
        text = json.dumps({**data, "about": dict(entry.about)})
        beside = self._folder / f".{entry.name}.{os.getpid()}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Templates may have somebody's tokens in them.
            with os.fdopen(os.open(beside, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path(entry.name))
            self._settle()
        except OSError as error:
            raise StoreFailure(
                f"{self._folder}: {error.strerror}; nothing is made elsewhere that cannot be "
                f"written down"
            ) from error

    def drop(self, name: str) -> None:
        """Take out what is gone."""
        with contextlib.suppress(OSError):
            self._path(name).unlink(missing_ok=True)

    def get(self, name: str) -> Entry | None:
        """Give what is known of one thing; None: it is gone, or never was."""
        try:
            data = json.loads(self._path(name).read_bytes())
            return Entry(name=name, **data)
        except (OSError, ValueError, TypeError):
            return None

    def entries(self, *, compute: str = "", run: str = "") -> Iterator[Entry]:
        """Give all that is elsewhere, the oldest first."""
        try:
            files = [file for file in self._folder.iterdir() if file.suffix == ".json"]
        except OSError:
            return
        for file in sorted(files, key=_age):
            entry = self.get(file.stem)
            if entry and compute in ("", entry.compute) and run in ("", entry.run):
                yield entry

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name")
        return self._folder / f"{name}.json"

    def _settle(self) -> None:
        """Have the name of a file on the disk as well, and not only what is in it."""
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _age(file: Path) -> tuple[float, str]:
    try:
        return file.stat().st_mtime, file.name
    except OSError:
        return 0.0, file.name
