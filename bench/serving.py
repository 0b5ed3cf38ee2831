"""A live page to measure: the server as a process of its own, and what it takes of the machine."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.measure import BenchError

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that is running."""

    pid: int
    address: str
    """With its token."""

    @property
    def base(self) -> str:
        return self.address.partition("/?")[0]

    @property
    def cpu_seconds(self) -> float:
        """What it has computed so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def megabytes(self) -> float:
        """What it has in memory now."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE / 1e6


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Serve a store with this interpreter, which has the extra `web`, at a free port."""
    line = [sys.executable, "-P", "-m", "rankwise.cli.main", "serve", "--port", "0"]
    with subprocess.Popen(
        [*line, "--store", str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            printed = "".join(process.stdout.readline() for _ in range(3))
            found = re.search(r"http://\S+", printed)
            if found is None:
                raise BenchError(f"rankwise serve has not said where it is: {printed!r}")
            yield Server(pid=process.pid, address=found[0])
        finally:
            process.terminate()
