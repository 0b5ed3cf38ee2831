"""One call of a command: what is sent to it, what comes back, and never for ever."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import IO

from rankwise.compute.remote.line import Said
from rankwise.errors import ComputeFailure


def exchange(
    words: Sequence[str],
    *,
    data: bytes = b"",
    body: IO[bytes] | None = None,
    seconds: float = 60.0,
    into: IO[bytes] | None = None,
) -> Said | None:
    """Call a command with `data` and then `body` as its input; None: it took too long.

    ComputeFailure: there is no such command.
    """
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE if data or body is not None else subprocess.DEVNULL,
                stdout=into if into is not None else subprocess.PIPE,
                stderr=errors,
                # Ctrl-C is for the client, which has things to end elsewhere.
                start_new_session=True,
            )
        except OSError as error:
            raise ComputeFailure(f"{words[0]} cannot be started: {error.strerror}") from None
        feeder = _feed(process, data, body)
        timer = threading.Timer(seconds, process.kill)
        timer.daemon = True
        timer.start()
        try:
            output = process.stdout.read() if process.stdout is not None else b""
            code = process.wait()
        finally:
            is_late = not timer.is_alive()
            timer.cancel()
            if process.stdout is not None:
                process.stdout.close()
        feeder.join()
        if is_late and code < 0:
            return None
        errors.seek(0)
        return Said(exit_code=code, output=output, errors=errors.read().decode(errors="replace"))


def _feed(
    process: subprocess.Popen[bytes], data: bytes, body: IO[bytes] | None
) -> threading.Thread:
    """Hand over what is to be sent, while what comes back is read."""

    def feed() -> None:
        if process.stdin is None:
            return
        # Whoever does not want all of it has left, or says why.
        with contextlib.suppress(OSError), process.stdin as stream:
            stream.write(data)
            if body is not None:
                shutil.copyfileobj(body, stream, 1 << 20)

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    return feeder
