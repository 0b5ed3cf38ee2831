"""Complete an order on the nodes that a batch system has given, and become its runner.

    batch FOLDER          FOLDER of an attempt
    batch @LIST           the line of LIST that a job array's index names
    pilot IDLE FOLDER     carry out many orders in one allocation, as they come into FOLDER
    keeper                one on each node: starts runners there for the pilot

Runs in the batch script, on the first node.

A pilot's FOLDER/inbox has a file for each order: {"folder": …, "nodes": 1, "cores": 2}. It is moved
to FOLDER/taken when it is begun with, and removed when it has ended. `MARKER.end` asks for the end
of one, `over` for the pilot's own, as soon as nothing is left to do. Before it leaves, it writes
FOLDER/closed, and looks once more: a client that puts an order in after that finds the file.

Each keeper is one step of the job, and lives as long as the pilot: a step for every task would take
longer than most tasks, and the batch system would have to make each of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .dialect import Dialect, fill, read_dialect
from .files import own_command, parse, read_json, redirect, rename, to_json
from .order import BAD_ORDER, LOOPBACK, Order, Placement, read_order
from .outcome import LOST, write_end
from .processes import CANCEL_SIGNALS, OUR_FAULT, UNHEEDED_SIGNALS
from .start import run_starter

# How long the values of secrets may take: after a job was put back into the queue, a client that
# still runs hands them over once more.
SECRETS_SECONDS = 60.0
# Ends by which nothing is decided, also those by a signal that the batch system may have sent: the
# job was on its way back into the queue.
UNDECIDED = ("cancelled", "lost")
SYSTEMS_SIGNALS = (15, 9)


def main(place: str) -> int:
    """Become the runner of an attempt, or return an exit code if that is not possible."""
    try:
        return _begin(place)
    except (OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
        print(f"rankwise: cannot start here: {error!r}", file=sys.stderr, flush=True)
        return OUR_FAULT


def _begin(place: str) -> int:
    dialect = read_dialect()
    folder = Path(place)
    if place.startswith("@"):
        lines = os.fsdecode(Path(place[1:]).read_bytes()).splitlines()
        folder = Path(lines[int(os.environ[dialect.array_index]) - dialect.first_index])
        # The jobs of an array write into one file otherwise.
        redirect(str(folder), 0)
    if not make_way(folder, dialect):
        return 0
    allocation = BatchAllocation(dialect)
    order = read_order(folder)
    write_placement(order, allocation, allocation.names)
    if order.secrets:
        os.dup2(secrets_of(folder), 0)
    return os.execv(sys.executable, [*own_command(), "run", str(folder)])


def make_way(folder: Path, dialect: Dialect) -> bool:
    """Put aside what an earlier start of this job has left; False: the attempt must not start.

    An empty claim is that of a client which has given the attempt up.
    """
    restarts = os.environ.get(dialect.restarts, "0")
    claim = folder / "claim"
    if not claim.exists():
        return True
    if restarts == "0" or not claim.read_bytes():
        print("rankwise: another process has taken this attempt; nothing is started", flush=True)
        return False
    if is_decided(folder):
        print("rankwise: this attempt is over; it is not started again", flush=True)
        return False
    aside = folder / f"before-{restarts}"
    aside.mkdir(exist_ok=True)
    # The claim last: as long as it is there, no other process begins with this attempt.
    for name in ("processes", "end.json", "claim"):
        if (folder / name).exists():
            rename(folder / name, aside / name)
    return True


def is_decided(folder: str | Path) -> bool:
    """Return whether an attempt has ended, and not by what ends its job as well."""
    try:
        end = read_json(f"{folder}/end.json")
    except FileNotFoundError:
        return False
    return end["outcome"] not in UNDECIDED and end["signal"] not in SYSTEMS_SIGNALS


class BatchAllocation:
    """The nodes of this job, and how they are reached."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.job = os.environ[dialect.job]
        self.names = _names(dialect)
        self._addresses = _addresses(dialect, self.names)
        self._unbound = _unbound(dialect) if len(self.names) > 1 else []

    def node(self, name: str, *, is_first: bool) -> dict[str, Any]:
        """Return what a runner must know of a node; the first one of an order is its own."""
        address = self._addresses.get(name, name)
        reach = [] if is_first else self.reach(name)
        return {"name": name, "address": address, "reach": reach}

    def reach(self, name: str) -> list[str]:
        """Return the words that start one process on a node, beside whatever runs there."""
        words = [*fill(self.dialect.reach, job=self.job, node=name), *self._unbound]
        carry = [*own_command(), "carry", str(len(words))] if self.dialect.has_shell else []
        return [*carry, *words]

    def cores(self) -> list[int]:
        """Return how many cores of each node are ours."""
        if self.dialect.node_file:
            lines = _lines_of_node_file(self.dialect)
            return [lines.count(name) for name in self.names]
        return counts_in(os.environ[self.dialect.cores])[: len(self.names)]


def write_placement(order: Order, allocation: BatchAllocation, names: list[str]) -> None:
    """Write on which nodes an order is carried out, and that what is the system's is dropped."""
    dialect = allocation.dialect
    nodes = [allocation.node(name, is_first=number == 0) for number, name in enumerate(names)]
    drop = [name for name in os.environ if dialect.is_own(name, keeps_job=order.keeps_allocation)]
    environment = {f"RANKWISE_{dialect.system.upper()}_JOB": allocation.job}
    if all(node["address"].startswith("127.") for node in nodes):
        environment.update(LOOPBACK)
    there = Placement(nodes=nodes, unset=sorted(drop), environment=environment)
    order.placed(there)  # ValueError: there are not as many nodes as the order has
    there.write(order.folder)


def _names(dialect: Dialect) -> list[str]:
    if dialect.node_file:
        return list(dict.fromkeys(_lines_of_node_file(dialect)))
    listed = os.environ[dialect.nodes]
    if dialect.expand and ("[" in listed or "," in listed):
        return _ask(fill(dialect.expand, nodes=listed)).split()
    return listed.replace(",", " ").split()


def counts_in(text: str) -> list[int]:
    """Return how many of something each node has: `4(x2),2` is 4, 4, 2."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in parts for _ in range(int(times or 1))]


def _lines_of_node_file(dialect: Dialect) -> list[str]:
    """Return the name of a node for each core."""
    lines = [line.split() for line in Path(os.environ[dialect.node_file]).read_text().splitlines()]
    # `n1 4 long@n1 UNDEFINED`: a node with four cores.
    return [name for name, *more in filter(None, lines) for _ in range(int(more[0]) if more else 1)]


def _addresses(dialect: Dialect, names: list[str]) -> dict[str, str]:
    """Return the address of each node: its name will do where the system knows no other."""
    if not dialect.addresses:
        return {}
    try:
        said = _ask(fill(dialect.addresses, nodes=",".join(names)))
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(re.findall(dialect.address, said))


def _unbound(dialect: Dialect) -> Sequence[str]:
    """Have a process keep all cores of its job, where the system would bind it to some."""
    if not dialect.binding or not re.search(dialect.binds, _ask(dialect.binding)):
        return []
    return dialect.unbound


def secrets_of(folder: Path) -> int:
    """Move the values of secrets from their file into memory, and return a descriptor for it."""
    path = folder / "secrets.json"
    deadline = time.monotonic() + SECRETS_SECONDS
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    # In memory only: the disk that nodes share must not keep the values.
    held = os.memfd_create("secrets")
    os.write(held, path.read_bytes() if path.exists() else b"{}")
    path.unlink(missing_ok=True)
    os.lseek(held, 0, os.SEEK_SET)
    return held


def held_secrets(folder: str) -> dict[str, str]:
    """Return the values of secrets that the client has put beside an order; none: it has none."""
    if not os.path.exists(f"{folder}/secrets.json"):
        return {}
    with os.fdopen(secrets_of(Path(folder)), encoding="utf-8") as held:
        return dict(parse(held.read()))


def _ask(command: Sequence[str]) -> str:
    # So long may the system's own commands take: a busy controller answers late.
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


# Between two looks into the inbox, while something happens and when nothing does for long.
LOOK_SECONDS, LATEST_LOOK_SECONDS = 0.01, 0.2
# How long keepers may take to end what they have started.
END_SECONDS = 15.0
# How long after the end of an order our own may come, if it is the whole job that is being ended.
DOUBT_SECONDS = 5.0


class PilotNode:
    """The keeper on a node, as the pilot sees it: orders go in, ends come out."""

    def __init__(self, name: str, cores: int, command: list[str]) -> None:
        self.name = name
        self.cores = cores
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input, self.output = self.process.stdin, self.process.stdout.fileno()
        self._rest = b""

    def say(self, word: str, folder: str) -> None:
        # If its node is lost, the orders there end with it.
        with contextlib.suppress(OSError):
            self._input.write(f"{to_json({word: folder})}\n".encode())
            self._input.flush()

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._input.close()

    def ended(self) -> list[str] | None:
        """Return the folders of orders that have ended; None: the keeper itself has."""
        data = os.read(self.output, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        said = [line.decode().partition(" ") for line in lines]
        return [folder for word, _, folder in said if word == "ended"] if data else None


class Pilot:
    """Takes orders and packs them onto nodes, the first that fits first."""

    def __init__(self, folder: Path, idle: float) -> None:
        self._folder = folder
        self._inbox, self._taken = folder / "inbox", folder / "taken"
        self._idle = idle
        self._dialect = read_dialect()
        self._allocation = BatchAllocation(self._dialect)
        self._is_wanted = True
        self._is_over = False
        self._waiting: dict[str, dict[str, Any]] = {}
        self._running: dict[str, tuple[str, list[PilotNode], int]] = {}
        # Which of the running the client has asked to end.
        self._unwanted: set[str] = set()
        # Those that are over, and until when they may yet have to be begun again.
        self._ended: dict[str, float] = {}
        cores = self._allocation.cores()
        own = [*own_command(), "keeper"]
        self._keepers = [
            PilotNode(name, count, own if number == 0 else [*self._allocation.reach(name), *own])
            for number, (name, count) in enumerate(zip(self._allocation.names, cores, strict=True))
        ]
        self._poll = select.poll()
        for keeper in self._keepers:
            self._poll.register(keeper.output, select.POLLIN)

    def end(self, *_: object) -> None:
        """Have everything end: the job is cancelled, or its time is up."""
        self._is_wanted = False

    def run(self) -> None:
        self._take_up()
        pause, busy_at = LOOK_SECONDS, time.monotonic()
        while self._is_wanted:
            has_news = self._look() | self._start_what_fits() | self._hear(pause)
            self._let_go()
            pause = LOOK_SECONDS if has_news else min(pause * 1.3, LATEST_LOOK_SECONDS)
            now = time.monotonic()
            if self._waiting and not self._running and not has_news:
                # Nodes are lost: what does not fit now never will, and the client has to know.
                (self._folder / "closed").touch()
                break
            if self._waiting or self._running or self._ended or has_news:
                busy_at = now
            elif (self._is_over or now >= busy_at + self._idle) and self._close():
                break
        self._leave()

    def _take_up(self) -> None:
        """Begin again with what was under way when this job was put back into the queue."""
        (self._folder / "closed").unlink(missing_ok=True)
        self._taken.mkdir(exist_ok=True)
        for file in sorted(self._taken.iterdir()):
            try:
                order = read_json(file)
            except FileNotFoundError:
                continue  # The client does not want it any more.
            if make_way(Path(order["folder"]), self._dialect):
                self._waiting[file.name] = order
            else:
                file.unlink()

    def _look(self) -> bool:
        """Take what is in the inbox, and return whether there was anything."""
        names = self._new_names()
        for name in names:
            if name == "over":
                self._is_over = True
            elif name.endswith(".end"):
                self._end_one(name.removesuffix(".end"))
            else:
                # The client may have taken it back.
                with contextlib.suppress(FileNotFoundError):
                    rename(self._inbox / name, self._taken / name)
                    self._waiting[name] = read_json(self._taken / name)
            (self._inbox / name).unlink(missing_ok=True)
        return bool(names)

    def _new_names(self) -> list[str]:
        with os.scandir(self._inbox) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith("."))

    def _end_one(self, marker: str) -> None:
        for name, (folder, keepers, _) in self._running.items():
            if name.endswith(marker):
                self._unwanted.add(name)
                keepers[0].say("end", folder)
        for name in [name for name in self._waiting if name.endswith(marker)]:
            del self._waiting[name]
            (self._taken / name).unlink(missing_ok=True)

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
            started = True
            folder, names = order["folder"], [one.name for one in keepers]
            try:
                write_placement(read_order(folder), self._allocation, names)
            except BAD_ORDER as error:
                self._refuse(name, folder, f"the pilot cannot begin with it: {error!r}")
                continue
            for keeper in keepers:
                keeper.cores -= order["cores"]
            self._running[name] = folder, keepers, order["cores"]
            keepers[0].say("start", folder)
        return started

    def _refuse(self, name: str, folder: str, reason: str) -> None:
        """End an order that cannot be begun, and go on: others are under way."""
        print(f"rankwise: {folder}: {reason}", file=sys.stderr, flush=True)
        # Where not even that can be written, the client sees the end of this job.
        with contextlib.suppress(OSError):
            write_end(folder, "lost", LOST, reason)
            (self._taken / name).unlink()

    def _room_for(self, nodes: int, cores: int) -> list[PilotNode] | None:
        """Find nodes with so many free cores: those with the fewest that will do."""
        fitting = [one for one in self._keepers if one.cores >= cores]
        fitting.sort(key=lambda one: one.cores)
        return fitting[:nodes] if len(fitting) >= nodes else None

    def _hear(self, seconds: float) -> bool:
        ready = self._poll.poll(seconds * 1000)
        for source, _ in ready:
            keeper = next(one for one in self._keepers if one.output == source)
            ended = keeper.ended()
            if ended is None:
                self._poll.unregister(source)
                self._lose(keeper)
            for folder in ended or ():
                self._free(folder)
        return bool(ready)

    def _lose(self, keeper: PilotNode) -> None:
        """Go on without a node that is lost; what ran there is for the client to judge."""
        keeper.cores = -1
        for folder, keepers, _ in list(self._running.values()):
            if keeper is keepers[0]:
                if not (Path(folder) / "end.json").exists():
                    write_end(folder, "lost", LOST, f"its node {keeper.name} was lost")
                self._free(folder)

    def _free(self, folder: str) -> None:
        for name, (place, keepers, cores) in list(self._running.items()):
            if place == folder:
                del self._running[name]
                is_clear = name in self._unwanted or is_decided(folder)
                self._ended[name] = time.monotonic() + (0.0 if is_clear else DOUBT_SECONDS)
                for keeper in keepers:
                    if keeper.cores >= 0:
                        keeper.cores += cores

    def _let_go(self) -> None:
        """Forget orders that are over, for good.

        What ends as we are ended is begun again, if this job is put back into the queue. A batch
        system ends one process after the other, so the orders may be told before we are.
        """
        now = time.monotonic()
        for name in [name for name, until in self._ended.items() if now >= until]:
            if self._is_wanted:
                del self._ended[name]
                (self._taken / name).unlink(missing_ok=True)

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


def keep() -> int:
    """Start runners on this node as the pilot says, and report when they have ended."""
    dialect = read_dialect()
    for name in [name for name in os.environ if dialect.is_own(name)]:
        del os.environ[name]
    return run_starter(is_kept=True)


def run_pilot(idle: str, folder: str) -> int:
    """Carry out orders until there are no more."""
    pilot = Pilot(Path(folder), float(idle))
    for number in UNHEEDED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    for number in CANCEL_SIGNALS:
        signal.signal(number, pilot.end)
    pilot.run()
    return 0
