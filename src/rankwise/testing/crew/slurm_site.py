"""The nodes of a Slurm allocation as a place for worlds: had, furnished, looked after, left."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rankwise.errors import ComputeFailure
from rankwise.testing.crew import allocation
from rankwise.testing.crew.allocation import Allocation
from rankwise.testing.crew.forkserver import MEMORY_VARIABLE
from rankwise.testing.crew.holder import HOLDER
from rankwise.testing.crew.keeper import OUTPOSTS
from rankwise.testing.crew.member import (
    INVITATION,
    KEEPER,
    TEMPLATE,
    Invitation,
    name_and_node,
    name_on_node,
)
from rankwise.testing.crew.srun import Srun, choose_talk
from rankwise.testing.crew.wishes import Wishes
from rankwise.testing.exchange import Exchange
from rankwise.testing.wire import Header, Name

# Here sockets have short names, and a batch system may give each job one of its own.
_NODE_FOLDER = "/tmp/rankwise-{}-%n"
# So long the servers on the nodes may take to start.
_START_SECONDS = 180.0
# A job that has just been ended takes a moment to say how.
_VERDICT_SECONDS = 10.0


class SlurmSite:
    """Gets an allocation, has a server on each of its nodes, and says how to start worlds."""

    def __init__(self, wishes: Wishes, invitation: Invitation, command: Sequence[str]) -> None:
        assert wishes.slurm is not None
        self._wishes = wishes.slurm
        self._warm = wishes.warm
        # The folder of the controller has a name that nobody can guess.
        token = Path(invitation.folder).name.removeprefix("rankwise-")
        self.folder = _NODE_FOLDER.format(token)
        self._invitation = replace(invitation, folder=self.folder, is_distant=True)
        self._command = command
        self._allocation: Allocation
        self._srun: Srun | None = None
        self._lines: Exchange
        self._order_keeper: Callable[[Header], None]
        self._variables: Mapping[str, str] = {}
        self._present: set[str] = set()
        self._tasks: list[int] = []
        self._memory = 0
        self._is_over = False
        self._submitted = time.monotonic()
        self._furnished = 0.0
        self._shown = ""
        self.library = ""
        self.on_notice: Callable[[str], None]
        """Told what a person who waits wants to know."""

    # The beginning

    def begin(self, lines: Exchange, order_keeper: Callable[[Header], None]) -> None:
        """Ask for nodes, or take those that we have.

        Raises ComputeFailure.
        """
        self._lines = lines
        self._order_keeper = order_keeper
        if self._wishes.job:
            self._allocation = Allocation(self._wishes.job, is_ours=False)
            # Inside of it, nobody has to be asked.
            if nodes := os.environ.get("SLURM_JOB_NODELIST"):
                self._variables = os.environ
                self._furnish(nodes)
            return
        line = {
            "address": asdict(self._invitation.address),
            "secret": self._invitation.secret,
        }
        code = "from rankwise.testing.crew.holder import main; import sys; sys.exit(main())"
        code = f"import sys; sys.path[:] = {sys.path!r}; {code}"
        program = [sys.executable, "-c", code]
        self._allocation = allocation.submit(
            self._wishes, program, json.dumps(line), f"pytest-{Path.cwd().name}"
        )

    @property
    def doors(self) -> dict[str, str]:
        return {name: f"{self.folder}/{name}" for name in ("warm", "cold")}

    @property
    def title(self) -> str:
        """What the header says of it."""
        how = "submitted" if self._allocation.is_ours else "found"
        return f"job {self._allocation.job} ({how})"

    @property
    def is_ready(self) -> bool:
        """Whether worlds can be started."""
        if self._srun is None or not self.library:
            return False
        return all(node in self._present for node in self._srun.left)

    def is_expected(self, name: object) -> bool:
        """Tell whether somebody of this name may call."""
        kind, node = name_and_node(name) if isinstance(name, str) else ("", "")
        return name == HOLDER or (kind in (KEEPER, TEMPLATE) and bool(node))

    def servers(self) -> list[str]:
        """Name those who start, end and know ranks."""
        if self._srun is None:
            return []
        return [name_on_node(kind, node) for node in self._srun.left for kind in (KEEPER, TEMPLATE)]

    def domains(self) -> list[int]:
        """Give the node of each seat, counted from 0."""
        assert self._srun is not None
        found = [number for number, tasks in enumerate(self._tasks) for _ in range(tasks)]
        width = self._wishes.tasks
        return found[:width] if len(found) >= width else [0] * width

    def _node_of(self, seats: Sequence[int]) -> str:
        """Name the node that all these seats are on; empty: there are several, or none is known."""
        assert self._srun is not None
        found = {self.domains()[seat] for seat in seats}
        if len(found) != 1 or not any(self._tasks):
            return ""
        return self._srun.nodes[found.pop()]

    # Messages

    def take(self, name: Name, header: Header, body: bytes) -> None:
        """Take in what the holder or the keeper of a node says."""
        match header["kind"]:
            case "held":
                self._variables = json.loads(body)
                self._order_keeper({"kind": "surroundings", "environment": self._variables})
                self._furnish(self._variables["SLURM_JOB_NODELIST"])
            case "here":
                kind, node = name_and_node(name)
                if kind == KEEPER:
                    self._present.add(node)
            case "mpi":
                self._learn_library(header["library"])

    def _furnish(self, nodes: str) -> None:
        """Have a server started on each node."""
        names = allocation.expand_nodes(nodes)
        if not self._wishes.uses_srun and len(names) > 1:
            raise ComputeFailure(
                f"--no-use-srun starts ranks on one node only, and job {self._allocation.job} has "
                f"{len(names)} ({nodes}): ask for one with --slurm-options=--nodes=1"
            )
        self._tasks = allocation.tasks_on_nodes(names, self._variables)
        self._memory = allocation.memory_per_core(self._allocation.job, self._wishes)
        srun = self._srun = Srun(wishes=self._wishes, job=self._allocation.job, nodes=names)
        self._furnished = time.monotonic()
        self._order_keeper(
            {
                "kind": "spawn",
                "world": OUTPOSTS,
                "launch": srun.of_outposts(),
                "program": self._command,
                "environment": {INVITATION: self._invitation.to_text()},
            }
        )

    def _learn_library(self, library: str) -> None:
        if not self.library and self._srun is not None:
            if self._wishes.uses_srun:
                self._srun.talk = choose_talk(library, self._wishes)
            self.library = library

    # While it lasts

    def look(self) -> None:
        """Find out how far it is, as long as it is not ready.

        Raises ComputeFailure when there is nothing to wait for.
        """
        if self.is_ready:
            return
        if self._srun is not None:
            if time.monotonic() - self._furnished > _START_SECONDS:
                raise ComputeFailure(
                    f"the nodes of job {self._allocation.job} did not call within "
                    f"{_START_SECONDS:g} s: can they reach {self._invitation.address.host}? "
                    "Another address can be named with --slurm-address"
                )
            return
        state = self._allocation.look()
        if state is None:
            return
        if end := self._allocation.describe_end():
            raise ComputeFailure(f"{end} before the tests could start")
        if not self._allocation.is_ours and state.nodes:
            self._variables = os.environ
            self._furnish(state.nodes)
            return
        if state.is_waiting:
            self._show(f"job {self._allocation.job} waits: {state.reason or state.state}")
            waited = time.monotonic() - self._submitted
            if self._wishes.wait and waited > self._wishes.wait:
                raise ComputeFailure(
                    f"job {self._allocation.job} has not started within {self._wishes.wait:g} s "
                    f"(--slurm-wait); Slurm's reason is {state.reason or state.state}. It is "
                    "cancelled."
                )

    def _show(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self.on_notice(text)

    def prepare(self, order: Header) -> None:
        """Say in the order for a world how to start it."""
        assert self._srun is not None, "worlds are started when there are nodes"
        if not self._wishes.uses_srun:
            return
        is_alone = order["venue"] == "fresh"
        order["launch"] = self._srun.of_world(
            order["size"],
            order["threads"],
            is_alone=is_alone,
            node=self._node_of(order["seats"]) if is_alone else "",
        )
        if self._memory:
            cores = self._wishes.cores_per_task * order["threads"]
            order["environment"][MEMORY_VARIABLE] = str(self._memory * cores)
        if not self._warm:
            order["environment"][INVITATION] = self._invitation.to_text()

    @property
    def starter(self) -> str:
        """Who starts the worlds: the keeper that is here, or, with mpiexec, the one of the node."""
        assert self._srun is not None
        return KEEPER if self._wishes.uses_srun else name_on_node(KEEPER, self._srun.nodes[0])

    def gone(self, name: Name) -> None:
        """Learn that the holder, or the server of a node, has closed its line."""
        kind, node = name_and_node(name)
        if self._is_over or self._srun is None:
            return
        if kind == KEEPER and node in self._srun.left:
            self._srun.lost.append(node)
            self.on_notice(f"node {node} is lost; the tests go on with the others")

    def share(self) -> bool:
        """Let steps start that Slurm keeps waiting though there is room; gives if that is new.

        A controller that was restarted no longer knows that the servers on the nodes share their
        cores with everybody. We count the ranks ourselves.
        """
        if self._srun is None or self._srun.shares:
            return False
        self._srun.shares = True
        return True

    @property
    def lost(self) -> Sequence[str]:
        return self._srun.lost if self._srun is not None else ()

    def explain_end(self) -> str:
        """Say how the allocation ended, if it has; empty: it goes on, as far as is known."""
        deadline = time.monotonic() + _VERDICT_SECONDS
        while True:
            state = self._allocation.look(at_once=True)
            is_ending = state is not None and state.state == "COMPLETING"
            if not is_ending or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        if self._srun is not None and not self._srun.left:
            return self._allocation.describe_end() or (
                f"the servers on all nodes of job {self._allocation.job} are gone"
            )
        return self._allocation.describe_end()

    # The end

    def end(self) -> None:
        """Give back what is ours."""
        if not hasattr(self, "_allocation"):
            return
        self._is_over = True
        for name in (*self.servers(), HOLDER):
            if self._lines.has(name):
                self._lines.send(name, {"kind": "end"})
        self._lines.flush()
        if not self._lines.has(HOLDER):
            with contextlib.suppress(ComputeFailure):
                self._allocation.cancel()
