"""`rankwise serve` as people start it: a process that prints its address."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RANKWISE = (sys.executable, "-P", "-m", "rankwise.cli.main")
LIMIT_SECONDS = 60.0


@dataclass(slots=True, kw_only=True)
class Served:
    """A server that is running."""

    process: subprocess.Popen[str]
    address: str
    """With its token."""

    @property
    def base(self) -> str:
        return self.address.partition("/?")[0]

    def end(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        """End it as Ctrl-C would; return its exit code and what it has complained about."""
        # Until it answers, it has not come to where Ctrl-C is its usual end.
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(self.base, timeout=LIMIT_SECONDS).close()
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=LIMIT_SECONDS)
        return self.process.returncode, errors


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[Served]:
    """Serve a store, at a free port unless options say otherwise."""
    line = [*RANKWISE, "serve", "--store", str(folder), *(options or ("--port", "0"))]
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        printed = "".join(process.stdout.readline() for _ in range(3))
        found = re.search(r"http://\S+", printed)
        assert found, printed
        yield Served(process=process, address=found[0])
    finally:
        process.kill()
        process.communicate()


def wait_for(what: object, *, seconds: float = LIMIT_SECONDS) -> None:
    """Wait until a function gives something true; AssertionError if it never does."""
    assert callable(what)
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
