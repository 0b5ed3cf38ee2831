"""Show what one rank prints, as it prints it: the program in a pane of `--tmux`.

    python follow.py LOG TITLE

Standard library only, nothing of ours: one is started for each rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Iterator
from typing import Any

_LOOK_SECONDS = 0.1
# Time to read what is there; a pane that was forgotten closes by itself.
_STAY_SECONDS = 600.0
_AT_ONCE = 1 << 16


class PaneWriter:
    """Puts together what a rank's log says and what its files of captured output have so far."""

    def __init__(self, log: int) -> None:
        self._log = log
        self._rest = b""
        self._files: dict[str, int] = {}
        self._shown: dict[str, int] = {}
        self._is_raw = False

    def step(self) -> Iterator[bytes]:
        """Return what is new."""
        for record in self._records():
            yield from self._take(record)
        for name, number in self._files.items():
            start = self._shown.get(name, 0)
            with contextlib.suppress(OSError):
                data = os.pread(number, _AT_ONCE, start)
                # If the phase has ended meanwhile, its record has all of this.
                if data and (self._is_raw or not self._has_news()):
                    self._shown[name] = start + len(data)
                    yield data

    def _take(self, record: dict[str, Any]) -> Iterator[bytes]:
        if "pid" in record or "raw" in record:
            self._open(record)
        elif "test" in record:
            yield f"\n── {record['test']}\n".encode()
        elif "phase" in record:
            for name, text in record["printed"].items():
                yield text.encode(errors="replace")[self._shown.get(name, 0) :]
            if not self._is_raw:
                self._shown.clear()
            if record["phase"] == "call":
                yield f"── {record['outcome']}\n".encode()
            elif record["outcome"] != "passed":
                yield f"── {record['outcome']} in {record['phase']}\n".encode()

    def _open(self, record: dict[str, Any]) -> None:
        for number in self._files.values():
            os.close(number)
        # A new process has the rank: the files of the one before have nothing more to say.
        self._is_raw = "raw" in record
        places = (
            {"raw": record["raw"]}
            if self._is_raw
            else {name: f"/proc/{record['pid']}/fd/{one}" for name, one in record["files"].items()}
        )
        self._files, self._shown = {}, {}
        for name, path in places.items():
            # It may be gone already.
            with contextlib.suppress(OSError):
                self._files[name] = os.open(path, os.O_RDONLY)

    def _records(self) -> Iterator[dict[str, Any]]:
        while data := os.read(self._log, _AT_ONCE):
            self._rest += data
        # The last line may not be written whole yet.
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            yield json.loads(line)

    def _has_news(self) -> bool:
        return os.fstat(self._log).st_size > os.lseek(self._log, 0, os.SEEK_CUR)

    def is_over(self) -> bool:
        """Return whether the run has removed its files."""
        return not os.fstat(self._log).st_nlink and not self._has_news()


def main() -> None:
    """Follow until the run is over, then wait for the user, but not for ever."""
    path, title = sys.argv[1:]
    log = os.open(path, os.O_RDONLY)
    print(f"── {title}", flush=True)
    follower = PaneWriter(log)
    while True:
        is_over = follower.is_over()
        for data in follower.step():
            sys.stdout.buffer.write(data)
        sys.stdout.flush()
        if is_over:
            break
        time.sleep(_LOOK_SECONDS)
    print("\n── The run is over. Enter closes this pane.", flush=True)
    select.select([sys.stdin], [], [], _STAY_SECONDS)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
