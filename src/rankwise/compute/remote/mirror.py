"""What an attempt elsewhere has written, mirrored into its folder here as it comes."""

from __future__ import annotations

import base64
import contextlib
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

_END = "end.json"


class Mirror:
    """The files of one attempt here, in step with those over there.

    Logs grow in place and move as they do over there: those who follow them know them by inode.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, list[int]] = {}
        """By name: the inode over there, and how many bytes of it are here."""

    def known(self) -> dict[str, list[int]]:
        """Say what is here already."""
        return self._known

    def take(self, pieces: Sequence[Sequence[Any]]) -> None:
        """Put pieces of logs where they belong; those that were moved have moved here as well."""
        for path, inode, *_ in pieces:
            self._follow(path, inode)
        for path, inode, offset, _, text in pieces:
            self._write(path, inode, offset, base64.b64decode(text))

    def is_level(self, pieces: Sequence[Sequence[Any]]) -> bool:
        """Tell whether nothing is missing of the logs that these pieces are from."""
        return all(self._known[path][1] >= size for path, _, _, size, _ in pieces)

    def _follow(self, path: str, inode: int) -> None:
        """Move a file here that was moved there."""
        if self._known.get(path, [0])[0] == inode:
            return
        old = next((name for name, (number, _) in self._known.items() if number == inode), None)
        if old is not None:
            with contextlib.suppress(OSError):
                self._place(old).replace(self._place(path))
            self._known[path] = self._known.pop(old)

    def _write(self, path: str, inode: int, offset: int, data: bytes) -> None:
        place = self._place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        known = self._known.get(path, [0, 0])
        if known[0] != inode and place.exists() and offset == 0 and not known[0]:
            # Another client has mirrored it before: the same file from its beginning.
            self._continue(path, inode, data)
            return
        if known[0] not in (0, inode):
            place.unlink(missing_ok=True)
        file = os.open(place, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            if offset < known[1]:
                os.ftruncate(file, offset)
            os.pwrite(file, data, offset)
        finally:
            os.close(file)
        self._known[path] = [inode, offset + len(data)]

    def _continue(self, path: str, inode: int, data: bytes) -> None:
        """Go on where an earlier client has stopped, if that is what it was."""
        place = self._place(path)
        size = place.stat().st_size
        with place.open("r+b") as file:
            if file.read(len(data)) == data[:size]:
                file.seek(0)
                file.write(data)
                have = max(size, len(data))
            else:
                file.truncate(0)
                file.seek(0)
                file.write(data)
                have = len(data)
        self._known[path] = [inode, have]

    def unpack(self, file: IO[bytes]) -> None:
        """Take in the rest of what an attempt has left, its end last of all and for good."""
        with tarfile.open(fileobj=file, mode="r|") as parcel:
            for member in parcel:
                if not self._is_inside(member):
                    continue
                if member.name == _END:
                    self._take_end(parcel, member)
                    continue
                # A link that leads out of the folder is left where it is.
                with contextlib.suppress(OSError, tarfile.FilterError):
                    parcel.extract(member, self._folder, filter="data")

    def _take_end(self, parcel: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        content = parcel.extractfile(member)
        assert content is not None
        beside = self._folder / f".{_END}"
        with beside.open("wb") as file:
            file.write(content.read())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._folder / _END)

    def _is_inside(self, member: tarfile.TarInfo) -> bool:
        """Tell whether a file belongs into the folder: the other side is not ours to trust."""
        path = Path(member.name)
        return not path.is_absolute() and ".." not in path.parts and not member.isdev()

    def _place(self, path: str) -> Path:
        if ".." in Path(path).parts or path.startswith("/"):
            raise ValueError(f"{path} is no name for a log")
        return self._folder / path
