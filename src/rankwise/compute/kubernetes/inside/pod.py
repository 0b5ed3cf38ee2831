"""What a pod has: its files, its key, its place among the others.

pod.pyz head | other | call ADDRESS PORT COMMAND…
"""

# Paths are texts here, as in the runner: they travel as such.
# ruff: noqa: PTH103, PTH105, PTH110, PTH120, PTH123, PTH211

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Sequence
from typing import Any

OUR_FAULT = 3
MOST_BYTES = 16 << 20
"""How much of what processes leave in their folders is brought back from a pod."""


def say(text: str) -> None:
    """Tell people, in the log of the container."""
    print(f"rankwise: {text}", file=sys.stderr, flush=True)


class Pod:
    """This pod, as its variables and volumes describe it."""

    def __init__(self) -> None:
        self._parts = os.environ["RANKWISE_PARTS"]
        self._keys = os.environ["RANKWISE_KEYS"]
        self.work = os.environ["RANKWISE_WORK"]
        self.folder = f"{self.work}/attempt"
        self.nodes = [int(one) for one in os.environ.get("RANKWISE_NODES", "").split(",") if one]
        self.head = os.environ.get("RANKWISE_HEAD", "")
        self.port = int(os.environ["RANKWISE_PORT"])
        self.address = os.environ.get("RANKWISE_ADDRESS", "127.0.0.1")
        with open(f"{self._keys}/key", "rb") as file:
            self.key = file.read()
        with open(f"{self._parts}/order.json", encoding="utf-8") as file:
            self.order: dict[str, Any] = json.load(file)
        self.container = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RANKWISE_") or name in _KEPT
        }
        self.unpacked = 0.0
        self.killed = 0
        self.killed = self.memory_kills()

    def unpack(self, node: int | None) -> None:
        """Lay out our own files, and the code if a node of the task is here."""
        os.makedirs(self.folder, exist_ok=True)
        os.makedirs(os.environ.get("HOME") or self.work, exist_ok=True)
        with open(f"{self.work}/container.json", "w", encoding="utf-8") as file:
            json.dump(self.container, file)
        shutil.copyfile(f"{self._parts}/runner.py", f"{self.work}/runner.py")
        if node is not None:
            place = self.work_folder(node)
            os.makedirs(place, exist_ok=True)
            if os.path.exists(f"{self._parts}/code.tgz"):
                with tarfile.open(f"{self._parts}/code.tgz") as code:
                    code.extractall(place, **_SAFELY)
        # Clocks of files are coarse.
        time.sleep(0.02)
        self.unpacked = time.time() - 0.01

    def stand_in(self, node: int) -> None:
        """Have the folders of other nodes here: launchers start ranks in their own."""
        own = self.work_folder(node)
        for other in self.order["nodes"]:
            path = str(other["folder"])
            if not os.path.lexists(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.symlink(own, path)

    def memory_kills(self) -> int:
        """Count what the kernel has ended here because there was no more memory."""
        try:
            with open("/sys/fs/cgroup/memory.events", encoding="ascii") as file:
                lines = [line.split() for line in file]
            return sum(int(count) for name, count in lines if name == "oom_kill") - self.killed
        except (OSError, ValueError):
            return 0

    def work_folder(self, node: int) -> str:
        """Name the folder in which processes of a node work."""
        return str(self.order["nodes"][node]["folder"])

    def write_order(self, order: dict[str, Any]) -> None:
        self.order = order
        self.write_file("order.json", json.dumps(order))

    def write_file(self, name: str, text: str) -> None:
        """Write a file of the attempt, beside its place first."""
        path = f"{self.folder}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        beside = f"{path}.{os.getpid()}.{time.monotonic_ns()}.new"
        mode = 0o777 if name.startswith("bin/") else 0o666
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with open(file, "w", encoding="utf-8", errors="surrogateescape") as opened:
            opened.write(text)
        os.replace(beside, path)

    @property
    def brings_files(self) -> bool:
        """Whether what processes leave in their folders is shown: not where those are others'."""
        return bool(self.order.get("brings_files", True))

    def secrets(self) -> dict[str, str]:
        """Read the values of the task's secrets, which no line carries."""
        found = {}
        for name in self.order.get("secrets", ()):
            with open(
                f"{self._keys}/secret.{name}", encoding="utf-8", errors="surrogateescape"
            ) as file:
                found[name] = file.read()
        return found


_KEPT = ("RANKWISE_PARTS", "RANKWISE_KEYS", "RANKWISE_WORK")
# Where Python has no such filter, what is unpacked is what the client has packed, all the same.
_SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def main(arguments: Sequence[str]) -> int:
    """Be the part of a pod that is asked for."""
    match arguments:
        case ["head"]:
            from rankwise.compute.kubernetes.inside.head import Head

            return Head(Pod()).run()
        case ["other"]:
            from rankwise.compute.kubernetes.inside.agent import Agent

            return Agent(Pod()).run()
        case ["call", _, _, _, *_]:
            from rankwise.compute.kubernetes.inside.call import main as run_there

            return run_there(arguments[1:])
    say("usage: pod.pyz head | other | call ADDRESS PORT COMMAND…")
    return 2
