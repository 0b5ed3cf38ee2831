"""Carry out many orders in one allocation, as they come into a folder.

    python -I -S pilot_agent.py agent RUNNER IDLE FOLDER     in the batch script, on the first node
    python -I -S pilot_agent.py keeper RUNNER                one on each node: starts runners there

FOLDER/inbox has a file for each order: {"folder": …, "nodes": 1, "cores": 2}. It is moved to
FOLDER/taken when it is begun with, and removed when it has ended. `MARKER.end` asks for the end of
one, `over` for the agent's own, as soon as nothing is left to do. Before it leaves, it writes
FOLDER/closed, and looks once more: whoever puts an order in after that finds the file.

Each keeper is one step of the job, and lives as long as the agent: a step for every task would take
longer than most tasks, and slurmctld would have to make each of them.

Standard library only, and `inside.py` beside it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import inside  # type: ignore[import-not-found]

LOOK_SECONDS, LATEST_LOOK_SECONDS = 0.01, 0.2
END_SECONDS = 15.0


class Keeper:
    """One on a node, as the agent sees it: orders go in, ends come out."""

    def __init__(self, name: str, cores: int, command: list[str]) -> None:
        self.name = name
        self.cores = cores
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._rest = b""

    def say(self, word: str, folder: str) -> None:
        assert self.process.stdin is not None
        # If its node is lost, the orders there end with it.
        with contextlib.suppress(OSError):
            self.process.stdin.write(f"{word} {folder}\n".encode())
            self.process.stdin.flush()

    def hang_up(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def output(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def ended(self) -> list[str] | None:
        """Give the folders of orders that have ended; None: the keeper itself has."""
        data = os.read(self.output(), 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode() for line in lines] if data else None


class Agent:
    """Takes orders and packs them onto nodes, the first that fits first."""

    def __init__(self, runner: str, folder: Path, idle: float) -> None:
        self._folder = folder
        self._inbox, self._taken = folder / "inbox", folder / "taken"
        self._idle = idle
        self._allocation = inside.Allocation()
        self._is_wanted = True
        self._is_over = False
        self._waiting: dict[str, dict[str, Any]] = {}
        self._running: dict[str, tuple[str, list[Keeper], int]] = {}
        cores = _cores(len(self._allocation.names))
        own = [sys.executable, "-I", "-S", __file__, "keeper", runner]
        self._keepers = [
            Keeper(name, count, own if number == 0 else [*self._allocation.reach(name), *own])
            for number, (name, count) in enumerate(zip(self._allocation.names, cores, strict=True))
        ]
        self._poll = select.poll()
        for keeper in self._keepers:
            self._poll.register(keeper.output(), select.POLLIN)

    def end(self, *_: object) -> None:
        """Have everything end: somebody wants that, or the time is up."""
        self._is_wanted = False

    def run(self) -> None:
        self._take_up()
        pause, busy_at = LOOK_SECONDS, time.monotonic()
        while self._is_wanted:
            has_news = self._look() | self._start_what_fits() | self._hear(pause)
            pause = LOOK_SECONDS if has_news else min(pause * 1.3, LATEST_LOOK_SECONDS)
            now = time.monotonic()
            if self._waiting or self._running or has_news:
                busy_at = now
            elif (self._is_over or now >= busy_at + self._idle) and self._close():
                break
        self._leave()

    def _take_up(self) -> None:
        """Begin again with what was under way when Slurm put this job back into the queue."""
        (self._folder / "closed").unlink(missing_ok=True)
        self._taken.mkdir(exist_ok=True)
        for file in sorted(self._taken.iterdir()):
            order = json.loads(file.read_text())
            if inside.make_way(Path(order["folder"])):
                self._waiting[file.name] = order
            else:
                file.unlink()

    def _look(self) -> bool:
        """Take what is in the inbox; tells whether there was anything."""
        names = self._new_names()
        for name in names:
            if name == "over":
                self._is_over = True
            elif name.endswith(".end"):
                self._end_one(name.removesuffix(".end"))
            else:
                try:
                    (self._inbox / name).rename(self._taken / name)
                    self._waiting[name] = json.loads((self._taken / name).read_text())
                except FileNotFoundError:
                    continue  # Somebody has taken it back.
                continue
            (self._inbox / name).unlink(missing_ok=True)
        return bool(names)

    def _new_names(self) -> list[str]:
        with os.scandir(self._inbox) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith("."))

    def _end_one(self, marker: str) -> None:
        for name, (folder, keepers, _) in self._running.items():
            if name.endswith(marker):
                keepers[0].say("end", folder)
        for name in [name for name in self._waiting if name.endswith(marker)]:
            del self._waiting[name]
            (self._taken / name).unlink()

    def _start_what_fits(self) -> bool:
        started = False
        refused: set[tuple[int, int]] = set()
        for name, order in list(self._waiting.items()):
            size = order["nodes"], order["cores"]
            keepers = self._room_for(*size) if size not in refused else None
            if keepers is None:
                refused.add(size)
                continue
            del self._waiting[name]
            folder = order["folder"]
            for keeper in keepers:
                keeper.cores -= order["cores"]
            self._running[name] = folder, keepers, order["cores"]
            inside.complete(Path(folder), self._allocation, [one.name for one in keepers])
            keepers[0].say("start", folder)
            started = True
        return started

    def _room_for(self, nodes: int, cores: int) -> list[Keeper] | None:
        """Find nodes with so many free cores: those with the fewest that will do."""
        fitting = [one for one in self._keepers if one.cores >= cores]
        fitting.sort(key=lambda one: one.cores)
        return fitting[:nodes] if len(fitting) >= nodes else None

    def _hear(self, seconds: float) -> bool:
        has_news = False
        for source, _ in self._poll.poll(seconds * 1000):
            has_news = True
            keeper = next(one for one in self._keepers if one.output() == source)
            ended = keeper.ended()
            if ended is None:
                self._poll.unregister(source)
                self._lose(keeper)
            for folder in ended or ():
                self._free(folder)
        return has_news

    def _lose(self, keeper: Keeper) -> None:
        """Do without a node that is lost; what ran there is for Slurm and the client to judge."""
        keeper.cores = -1
        for folder, keepers, _ in list(self._running.values()):
            if keeper is keepers[0]:
                lost = {"outcome": "lost", "exit_code": 1, "signal": None, "culprit": None}
                lost["reason"] = f"its node {keeper.name} was lost"
                if not (Path(folder) / "end.json").exists():
                    inside.write(Path(folder) / "end.json", lost)
                self._free(folder)

    def _free(self, folder: str) -> None:
        for name, (place, keepers, cores) in list(self._running.items()):
            if place == folder:
                del self._running[name]
                (self._taken / name).unlink(missing_ok=True)
                for keeper in keepers:
                    if keeper.cores >= 0:
                        keeper.cores += cores

    def _close(self) -> bool:
        """Take no more orders; False: one has come meanwhile."""
        (self._folder / "closed").touch()
        if self._new_names():
            (self._folder / "closed").unlink()
            return False
        return True

    def _leave(self) -> None:
        """Have the keepers end what they have started, and wait for them."""
        for keeper in self._keepers:
            keeper.hang_up()
        deadline = time.monotonic() + END_SECONDS
        for keeper in self._keepers:
            try:
                keeper.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                keeper.process.terminate()


def _cores(nodes: int) -> list[int]:
    """Read `4(x2),2`: how many cores of each node are ours."""
    counts: list[int] = []
    for text in os.environ["SLURM_JOB_CPUS_PER_NODE"].split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", text)
        assert found is not None
        counts += [int(found[1])] * int(found[2] or 1)
    return counts[:nodes]


def keep(path: str) -> None:
    """Start runners as the agent says, and tell when they have ended."""
    runner = _load(path)
    for name in [name for name in os.environ if inside.is_slurms(name)]:
        del os.environ[name]
    source, sink = os.pipe()
    for end in (source, sink):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(sink)
    asked: list[int] = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    running: dict[int, str] = {}
    poll = select.poll()
    poll.register(source, select.POLLIN)
    poll.register(0, select.POLLIN)
    is_open, rest = True, b""
    while is_open or running:
        for ready, _ in poll.poll():
            if ready == source:
                os.read(source, 4096)
                continue
            data = os.read(0, 65536)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                word, _, folder = line.decode().partition(" ")
                if word == "start":
                    running[_start(runner, folder)] = folder
                else:
                    _signal([pid for pid, place in running.items() if place == folder])
            if not data:
                poll.unregister(0)
                is_open = False
                _signal(running)
        if asked:
            asked.clear()
            is_open = False
            _signal(running)
        for pid in _dead():
            if pid in running:
                os.write(1, f"{running.pop(pid)}\n".encode())


def _load(path: str) -> Any:
    """Load the runner once: copies of a process that has it start in a tenth of the time."""
    about = importlib.util.spec_from_file_location("runner", path)
    assert about is not None
    assert about.loader is not None
    runner = importlib.util.module_from_spec(about)
    about.loader.exec_module(runner)
    # By this name it is started again, for what needs a process of its own.
    sys.argv[0] = path
    return runner


def _start(runner: Any, folder: str) -> int:
    given: dict[str, str] = {}
    if (Path(folder) / "secrets.json").exists():
        with os.fdopen(inside.secrets_of(Path(folder)), encoding="utf-8") as held:
            given = json.load(held)
    # A signal for the copy must not be taken for ours before it has handlers of its own.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        if pid := os.fork():
            return pid
        code = inside.CANNOT
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            code = runner.start_gang({"folder": folder, "secrets": given})
        finally:
            os._exit(code)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def _signal(pids: Any) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _dead() -> list[int]:
    found: list[int] = []
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not pid:
            return found
        found.append(pid)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["agent", runner, idle, folder]:
            agent = Agent(runner, Path(folder), float(idle))
            signal.signal(signal.SIGTERM, agent.end)
            agent.run()
        case ["keeper", runner]:
            keep(runner)


if __name__ == "__main__":
    main(sys.argv[1:])
