"""The switchboard as a child of rank 0."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import rankwise
from rankwise.testing import wire

_STOP_SECONDS = 5.0

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from rankwise.testing.switchboard import serve; serve(int(sys.argv[2]))"
)


class SwitchboardProcess:
    """Started before it is known where to listen; ends when rank 0 hangs up or is gone."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair()
        with theirs:
            self._pid = _fork(theirs) if _can_fork() else _execute(theirs)
        self._folder: str | None = None

    def open(self, hosts: list[str]) -> dict[str, Any]:
        """Let it listen for a rank on each of these hosts; gives what a rank needs to connect."""
        if len(set(hosts)) > 1:
            listener, address = wire.listen_on_host(hosts[0])
        else:
            self._folder = tempfile.mkdtemp(prefix="rankwise-")
            try:
                listener, address = wire.listen_on_file(Path(self._folder) / "switchboard")
            except OSError:
                # The names of such files are short by law; TMPDIR may not be.
                listener, address = wire.listen_on_host("127.0.0.1")
        secret = secrets.token_hex(32)
        folder = self._folder or ""
        settings = json.dumps({"secret": secret, "width": len(hosts), "folder": folder}).encode()
        with listener:
            socket.send_fds(self._line, [settings], [listener.fileno()])
        return {"address": asdict(address), "secret": secret, "folder": folder}

    def stop(self) -> None:
        """End it and wait until it has ended; idempotent."""
        self._line.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._pid:
            deadline = time.monotonic() + _STOP_SECONDS
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
                while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                    if time.monotonic() > deadline:
                        os.kill(self._pid, signal.SIGKILL)
                        os.waitpid(self._pid, 0)
                        break
                    time.sleep(0.001)
            self._pid = 0


def _can_fork() -> bool:
    """Tell whether a copy of this process is safe: MPI not started, nobody else holds a lock."""
    return "mpi4py.MPI" not in sys.modules and threading.active_count() == 1


def _fork(line: socket.socket) -> int:
    """Start it as a copy of this process, which has loaded all that it needs already."""
    pid = os.fork()
    if pid == 0:
        _become_switchboard(line)
    return pid


def _become_switchboard(line: socket.socket) -> NoReturn:
    from rankwise.testing.switchboard import serve

    code = 1
    try:
        # Ctrl-C is for the ranks; the switchboard ends when rank 0 has.
        os.setsid()
        kept = os.dup2(line.fileno(), 3)
        # What the launcher gave to rank 0 must close when rank 0 ends: it waits for that.
        os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        serve(kept)
        code = 0
    except BaseException:  # a copy of pytest must not go on as pytest
        traceback.print_exc()
    finally:
        os._exit(code)


def _execute(line: socket.socket) -> int:
    """Start it afresh, without site-packages and the user's environment: that is quicker."""
    source = str(Path(rankwise.__file__).parent.parent)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _START, source, str(line.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[line.fileno()],
        start_new_session=True,
    )
    # It is waited for by its number, as a forked one is.
    process.returncode = 0
    return process.pid
