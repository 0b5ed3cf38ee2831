"""Run a command in another pod of the task, as ssh would: called by the runner and by launchers.

    pod.pyz call ADDRESS PORT COMMAND…

Variables that differ from those of the container go along. So do the files that the runner has made
for the processes. The standard input is not passed on, only that it has ended.
"""

# Paths are texts here, as in the runner: they travel as such.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

from rankwise.compute.kubernetes.inside.line import Line, LineError, call

CANNOT = 255
_CONNECT_SECONDS = 60.0


def main(arguments: Sequence[str]) -> int:
    address, port, *command = arguments
    work = os.environ["RANKWISE_WORK"]
    with open(f"{os.environ['RANKWISE_KEYS']}/key", "rb") as file:
        key = file.read()
    try:
        line = call(address, int(port), key, seconds=_CONNECT_SECONDS)
        line.send({"do": "run", "command": command, **_surroundings(work)})
    except (OSError, ValueError) as error:
        print(f"rankwise: the pod at {address} cannot be reached: {error}", file=sys.stderr)
        return CANNOT
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: _say(line, {"do": "end"}))
    threading.Thread(target=_tell_end_of_input, args=(line,), daemon=True).start()
    return _relay(line, address)


def _surroundings(work: str) -> dict[str, Any]:
    """Give what the command needs there that it has here."""
    with open(f"{work}/container.json") as file:
        before: dict[str, str] = json.load(file)
    secret = set(os.environ.get("RANKWISE_SECRETS", "").split(","))
    now = {name: value for name, value in os.environ.items() if name not in secret}
    folder = f"{work}/attempt"
    with open(f"{folder}/order.json") as file:
        names = [*json.load(file).get("files", {}), "etc-hosts"]
    names += [f"bin/{name}" for name in sorted(os.listdir(f"{folder}/bin"))]
    files = {}
    for name in names:
        with open(f"{folder}/{name}", encoding="utf-8", errors="surrogateescape") as file:
            files[name] = file.read()
    return {
        "set": {name: value for name, value in now.items() if before.get(name) != value},
        "unset": [name for name in before if name not in os.environ],
        "files": files,
    }


def _tell_end_of_input(line: Line) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 65536):
            pass
    _say(line, {"do": "input ended"})


def _say(line: Line, header: dict[str, Any]) -> None:
    # Who reads will notice.
    with contextlib.suppress(LineError):
        line.send(header)


def _relay(line: Line, address: str) -> int:
    """Write what the command writes, until it has ended."""
    while True:
        try:
            said, body = line.receive()
        except LineError as error:
            print(f"rankwise: the pod at {address} is gone: {error}", file=sys.stderr)
            return CANNOT
        if "exit" in said:
            return int(said["exit"])
        sink = 1 if said.get("stream") == "out" else 2
        # Nobody reads it any more.
        with contextlib.suppress(OSError):
            while body:
                body = body[os.write(sink, body) :]
