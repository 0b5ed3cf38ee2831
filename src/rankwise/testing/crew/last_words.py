"""What a rank writes to stderr before its session has begun."""

from __future__ import annotations

import sys
from typing import Any, TextIO, cast


class LastWords:
    """Stands for `sys.stderr` and keeps what is written, until it is known what it was.

    A wrong option, a broken conftest and the warnings of plugins are mostly the same on all ranks,
    and rank 0 shows them. If only this rank ends by them, rank 0 is told its last words.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._kept: list[str] | None = []

    @classmethod
    def begin(cls) -> LastWords:
        """Take the place of `sys.stderr`."""
        words = cls(sys.stderr)
        sys.stderr = cast(TextIO, words)
        return words

    def write(self, text: str) -> int:
        if self._kept is None:
            return self._stream.write(text)
        self._kept.append(text)
        return len(text)

    def end(self) -> str:
        """Let everything through from now on; gives what was kept, and nothing a second time."""
        kept, self._kept = self._kept or [], None
        return "".join(kept).strip()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
