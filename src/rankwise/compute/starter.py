"""A process that starts runners on this machine, each as a copy of itself: Python starts once."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

from rankwise.compute.compiled import compiled_runner

# A copy takes a millisecond. Only a machine that stands still takes as long as this.
_ANSWER_SECONDS = 60.0


class StarterGone(Exception):
    """Nobody knows whether the runner was started."""


class Starter:
    """Starts runners, which outlive it, and ends with the client, whatever happens to that."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None

    @property
    def pid(self) -> int | None:
        """Give its own process number; None: it was not needed yet."""
        return self._process.pid if self._process is not None else None

    def start(self, folder: Path, secrets: Mapping[str, str]) -> int:
        """Start the runner of an attempt and give its process number.

        Raises OSError if there cannot be one, StarterGone if that is not known.
        """
        # What is wrong with the folder is said here, where somebody hears it.
        (folder / "runner.log").open("ab").close()
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = _start()
            # Also if whoever has it forgets to close it.
            self._end = weakref.finalize(self, _end, self._process)
        line = json.dumps({"folder": str(folder), "secrets": dict(secrets)})
        try:
            answer = self._ask(self._process, f"{line}\n".encode())
        except (OSError, ValueError) as error:
            self._process.kill()
            self.close()
            raise StarterGone(str(error)) from error
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return answer

    def _ask(self, process: subprocess.Popen[bytes], line: bytes) -> int:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        ready, _, _ = select.select([process.stdout], [], [], _ANSWER_SECONDS)
        if not ready:
            raise TimeoutError("no answer")
        return int(process.stdout.readline())

    def close(self) -> None:
        """End it; what it has started goes on."""
        self._end()
        self._process = None


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(compiled_runner()), "starter"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        # What we have open is not inherited anyway, and without closing it starts faster.
        close_fds=False,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    for line in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            assert line is not None
            line.close()
    process.wait()
