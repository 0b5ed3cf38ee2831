"""The nodes of a job of Slurm: a supervisor on each, and worlds that srun starts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rankwise.backends.batch.slurm import Slurm
from rankwise.backends.batch.system import Phase
from rankwise.errors import ComputeFailure
from rankwise.launch.cores import Core, share_out
from rankwise.pytest_plugin import connections
from rankwise.pytest_plugin.connections import SUPERVISOR, TEMPLATE, Exchange, Header, Name
from rankwise.pytest_plugin.workers import slurm_allocation
from rankwise.pytest_plugin.workers.forkserver import MEMORY_VARIABLE
from rankwise.pytest_plugin.workers.place import RunOptions, Workplace
from rankwise.pytest_plugin.workers.run_options import SlurmOptions
from rankwise.pytest_plugin.workers.slurm_allocation import HOLDER, NODE, Allocation
from rankwise.pytest_plugin.workers.supervisor import FORK_SOCKETS, NODE_SUPERVISORS

# By what the version of a library begins with: how Slurm talks to it, the best first.
_MPI_TYPES = (("Open MPI", ("pmix",)), ("MPICH", ("pmi2", "pmix")), ("Intel", ("pmi2", "pmix")))
_USUAL_MPI_TYPES = ("pmix", "pmi2")


@dataclass(slots=True, kw_only=True)
class Srun:
    """How steps of one allocation are started."""

    wishes: SlurmOptions
    job: str
    nodes: Sequence[str]
    mpi_type: str = ""
    """What srun takes for --mpi; empty: as the user or the site says."""
    shares: bool = False
    """Whether steps are not to wait for cores that Slurm takes for busy."""
    lost: list[str] = field(default_factory=list)
    """Nodes that are not there any more."""

    @property
    def left(self) -> list[str]:
        """The nodes that are still there."""
        return [node for node in self.nodes if node not in self.lost]

    def of_world(
        self,
        size: int,
        threads: int,
        *,
        is_alone: bool,
        nodes: Sequence[str] = (),
        is_bound: bool = False,
    ) -> list[str]:
        """Return what comes before the program that is to run on `size` ranks.

        With nodes, each rank is on its own. A world that is used again shares its cores with
        others: they take turns. Ranks that bind themselves need all cores of the job.
        """
        cores = self.wishes.cores_per_task * threads
        # With --exact a step takes only the cores that it asks for, so that others fit beside it.
        share = ["--exact" if is_alone and not self.shares and not is_bound else "--overlap"]
        if is_bound:
            share.append("--cpu-bind=none")
        if count := len(set(nodes)):
            # Slurm would spread it over all nodes of the job, and start a daemon on each.
            named = nodes[0] if count == 1 else ",".join(nodes)
            share += [f"--nodes={count}", f"--nodelist={named}"]
        if count > 1:
            share.append("--distribution=arbitrary")
        if self.lost:
            # What ran on a lost node holds its cores until Slurm has noticed, and there may be
            # fewer cores than ranks now.
            share = ["--overlap", "--overcommit", f"--nodelist={','.join(self.left)}"]
            share.append(f"--nodes={min(size, len(self.left))}")
        mpi_type = [f"--mpi={self.mpi_type}"] if self.mpi_type else []
        return [
            *self._usual(),
            *share,
            f"--ntasks={size}",
            *([f"--cpus-per-task={cores}"] if cores > 1 else []),
            *mpi_type,
            # The user's come last: the last one counts.
            *self.wishes.srun_options,
        ]

    def of_supervisors(self) -> list[str]:
        """Return what comes before the program that is to run once on each node."""
        count = len(self.nodes)
        return [
            *self._usual(),
            # With --no-kill, the servers on other nodes go on when one node is lost.
            *("--overlap", "--mpi=none", "--cpu-bind=none", "--mem=0", "--no-kill"),
            *(f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"),
        ]

    def _usual(self) -> list[str]:
        return [
            # What the job's environment has on its PATH is for the tests.
            *(shutil.which("srun") or "srun", f"--jobid={self.job}", "--quiet", "--input=none"),
            # We say what happens to the others when one rank has ended.
            *("--kill-on-bad-exit=0", "--wait=0"),
        ]


def choose_mpi_type(library: str, wishes: SlurmOptions) -> str:
    """Choose the kind of PMI by which Slurm and an MPI library talk; empty: the user has said.

    Raises ComputeFailure if this Slurm cannot.
    """
    if any(word.startswith("--mpi") for word in wishes.srun_options):
        return ""
    known = (kinds for name, kinds in _MPI_TYPES if library.startswith(name))
    wanted = next(known, _USUAL_MPI_TYPES)
    offered = Slurm().mpi_types()
    if usable := [one for one in wanted if one in offered]:
        return usable[0]
    raise ComputeFailure(
        f"{library} needs {' or '.join(f'srun --mpi={one}' for one in wanted)}, and this Slurm "
        f"has {', '.join(offered) or 'none'} (srun --mpi=list). Another way can be named "
        'with --slurm-srun-options="--mpi=…", or mpiexec can be taken: --no-use-srun'
    )


def holder_command() -> list[str]:
    """Return the program that holds the place in a job."""
    code = "from rankwise.pytest_plugin.workers.slurm_allocation import main; sys.exit(main())"
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"]


# Here sockets have short names, and a batch system may give each job one of its own.
_NODE_FOLDER = "/tmp/rankwise-{}-%n"
# So long the servers on the nodes may take to start.
_START_SECONDS = 180.0
# A job that has just been ended takes a moment to say how.
_VERDICT_SECONDS = 10.0


class SlurmSite(Workplace):
    """Gets an allocation, has a server on each of its nodes, and says how to start worlds."""

    def __init__(
        self, wishes: RunOptions, invitation: connections.Invitation, command: Sequence[str]
    ) -> None:
        assert wishes.slurm is not None
        self._wishes = wishes.slurm
        self._warm = wishes.warm
        # The name of the controller's folder cannot be guessed.
        token = Path(invitation.folder).name.removeprefix("rankwise-")
        folder = _NODE_FOLDER.format(token)
        fork_sockets = {name: f"{folder}/{name}" for name in FORK_SOCKETS}
        super().__init__(fork_sockets, width=wishes.slurm.tasks)
        self._invitation = replace(invitation, folder=folder, is_distant=True)
        self._command = command
        self._allocation: Allocation
        self._srun = Srun(wishes=self._wishes, job="", nodes=())
        """How steps are started; it has no nodes before there is an allocation."""
        self._lines: Exchange
        self._order_supervisor: Callable[[Header], None]
        self._variables: Mapping[str, str] = {}
        self._present: set[str] = set()
        self._tasks: list[int] = []
        self._cores_there: dict[str, list[Core]] = {}
        self._memory = 0
        self._is_over = False
        self._submitted = time.monotonic()
        self._servers_ordered = 0.0
        self._shown = ""
        self.library = ""

    # The beginning

    def begin(self, lines: Exchange, order_supervisor: Callable[[Header], None]) -> None:
        """Ask for nodes, or take those of the job that we are in; raises ComputeFailure."""
        self._lines = lines
        self._order_supervisor = order_supervisor
        if self._wishes.srun_options:
            # A step that srun refuses looks like one of a Slurm that is away for a moment.
            Slurm().call(["srun", *self._wishes.srun_options, "--version"])
        if not self._wishes.job:
            self._use(self._submit(f"pytest-{Path.cwd().name}"))
            return
        self._use(Allocation(Slurm(), self._wishes.job, is_ours=False))
        # Inside of the job, its variables say which nodes it has; else Slurm is asked.
        if nodes := os.environ.get("SLURM_JOB_NODELIST"):
            self._variables = os.environ
            self._start_servers(nodes)

    def _submit(self, name: str) -> Allocation:
        line = self._line_to_us()
        return slurm_allocation.submit(self._wishes, holder_command(), name, line=line)

    def _line_to_us(self, **more: object) -> str:
        """Return what the holder of the place needs to call us."""
        address = asdict(self._invitation.address)
        return json.dumps({"address": address, "secret": self._invitation.secret, **more})

    def _use(self, allocation: Allocation) -> None:
        self._allocation = allocation
        self.title = f"job {allocation.job} ({'submitted' if allocation.is_ours else 'found'})"

    @property
    def is_ready(self) -> bool:
        return bool(self.library) and all(node in self._present for node in self._srun.left)

    def is_expected(self, name: object) -> bool:
        """Return whether a process of this name may connect."""
        kind, node = connections.name_and_node(name) if isinstance(name, str) else ("", "")
        return name == HOLDER or (kind in (SUPERVISOR, TEMPLATE) and bool(node))

    def servers(self) -> list[str]:
        """Return the processes that start, end and know ranks."""
        return [
            connections.name_on_node(kind, node)
            for node in self._srun.left
            for kind in (SUPERVISOR, TEMPLATE)
        ]

    def seats(self, bind: str) -> tuple[list[list[Core]], list[int]]:
        """Return the cores and the node of each slot; Slurm alone knows them without a wish."""
        seats: list[list[Core]] = []
        nodes: list[int] = []
        for number, tasks in enumerate(self._tasks):
            cores = self._cores_there.get(self._srun.nodes[number], [])
            seats += share_out(bind or "none", tasks, cores, self._wishes.cores_per_task)
            nodes += [number] * tasks
        if len(seats) < self._width:
            return [[] for _ in range(self._width)], [0] * self._width
        return seats[: self._width], nodes[: self._width]

    def _nodes_of(self, order: Header) -> list[str]:
        """Return the node on which each rank of a world is to be; empty: on any."""
        is_alone = order["world_kind"] == "fresh"
        # The ranks of the shared world are on all nodes, in the order of the slots.
        is_placed = is_alone or (self.keeps_slots and order["world_kind"] != "shared")
        if not is_placed or sum(self._tasks) < self._width:
            return []
        _, nodes = self.seats("none")
        found = [self._srun.nodes[nodes[slot]] for slot in order["slots"][:: order["threads"]]]
        # Slurm packs steps more tightly than we do, if it may.
        return found if self.keeps_slots or len(set(found)) == 1 else []

    # Messages

    def take(self, name: Name, header: Header, body: bytes) -> None:
        """Take in what the holder of the place or the supervisor of a node says."""
        match header["kind"]:
            case "held":
                self._variables = json.loads(body)
                self._order_supervisor({"kind": "surroundings", "environment": self._variables})
                self._start_servers(self._variables.get("SLURM_JOB_NODELIST", ""))
            case "here":
                kind, node = connections.name_and_node(name)
                if kind == SUPERVISOR:
                    self._present.add(node)
                    self._cores_there[node] = [Core(*one) for one in header["cores"]]
            case "mpi" if not self.library and self._srun.nodes:
                if self._wishes.uses_srun:
                    self._srun.mpi_type = choose_mpi_type(header["library"], self._wishes)
                self.library = header["library"]

    def _start_servers(self, nodes: str) -> None:
        """Have a server started on each node."""
        names = Slurm().call(["scontrol", "show", "hostnames", nodes]).split()
        if not self._wishes.uses_srun and len(names) > 1:
            raise ComputeFailure(
                f"--no-use-srun starts ranks on one node only, and job {self._allocation.job} has "
                f"{len(names)} ({nodes}): ask for one with --slurm-options=--nodes=1"
            )
        self._tasks = slurm_allocation.tasks_on_nodes(names, self._variables)
        self._memory = slurm_allocation.memory_per_core(self._allocation.job, self._wishes)
        self._srun = Srun(wishes=self._wishes, job=self._allocation.job, nodes=names)
        self._servers_ordered = time.monotonic()
        self._order_supervisor(
            {
                "kind": "spawn",
                "world": NODE_SUPERVISORS,
                "launch": self._srun.of_supervisors(),
                "program": self._command,
                "environment": {connections.INVITATION: self._invitation.to_text()},
            }
        )

    # While it lasts

    def look(self) -> None:
        """Find out how far it is, as long as it is not ready.

        Raises ComputeFailure when there is nothing to wait for.
        """
        if self.is_ready:
            return
        if self._srun.nodes:
            if time.monotonic() - self._servers_ordered > _START_SECONDS:
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
            self._start_servers(state.nodes)
            return
        if state.is_waiting:
            self._show(f"job {self._allocation.job} waits: {state.reason or state.word}")
            waited = time.monotonic() - self._submitted
            if self._wishes.wait and waited > self._wishes.wait:
                raise ComputeFailure(
                    f"job {self._allocation.job} has not started within {self._wishes.wait:g} s "
                    f"(--slurm-wait); Slurm's reason is {state.reason or state.word}. It is "
                    "cancelled."
                )

    def _show(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self.on_notice(text)

    def prepare(self, order: Header) -> None:
        """Say in the order for a world how to start it."""
        if not self._wishes.uses_srun:
            return
        order["launch"] = self._srun.of_world(
            order["size"],
            order["threads"],
            is_alone=order["world_kind"] == "fresh",
            nodes=self._nodes_of(order),
            is_bound=connections.CORES in order["environment"],
        )
        if self._memory:
            cores = self._wishes.cores_per_task * order["threads"]
            order["environment"][MEMORY_VARIABLE] = str(self._memory * cores)
        if not self._warm:
            order["environment"][connections.INVITATION] = self._invitation.to_text()

    @property
    def starter(self) -> str:
        """Who starts the worlds: the keeper that is here, or, with mpiexec, the one of the node."""
        if self._wishes.uses_srun:
            return SUPERVISOR
        return connections.name_on_node(SUPERVISOR, self._srun.nodes[0])

    def gone(self, name: Name) -> None:
        """Learn that the holder, or the server of a node, has closed its line."""
        kind, node = connections.name_and_node(name)
        if not self._is_over and kind == SUPERVISOR and node in self._srun.left:
            self._srun.lost.append(node)
            self.on_notice(f"node {node} is lost; the tests go on with the others")

    def share(self) -> bool:
        """Let steps start that Slurm keeps waiting though there is room; gives if that is new.

        A controller that was restarted no longer knows that the servers on the nodes share their
        cores with everybody. We count the ranks ourselves.
        """
        if self._srun.shares:
            return False
        self._srun.shares = True
        return True

    @property
    def lost(self) -> Sequence[str]:
        return self._srun.lost

    def explain_end(self) -> str:
        """Say how the allocation ended, if it has; empty: it goes on, as far as is known."""
        deadline = time.monotonic() + _VERDICT_SECONDS
        while True:
            state = self._allocation.look(at_once=True)
            # A job that is completing has no reason yet: that comes with its last state.
            is_ending = state is not None and state.phase is Phase.ENDING
            if not is_ending or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        if self._srun.nodes and not self._srun.left:
            return self._allocation.describe_end() or (
                f"the servers on all nodes of job {self._allocation.job} are gone"
            )
        return self._allocation.describe_end()

    # The end

    def end(self) -> None:
        """Cancel the allocation if it is ours."""
        if not self.title:
            return  # there is no allocation
        self._is_over = True
        for name in (*self.servers(), HOLDER):
            if self._lines.has(name):
                self._lines.send(name, {"kind": "end"})
        self._lines.flush()
        # A holder ends by itself when its line closes, and the job with it.
        if not self._lines.has(HOLDER):
            with contextlib.suppress(ComputeFailure):
                self._allocation.cancel()


class BatchSite(SlurmSite):
    """One node in a job of any batch system: the job itself starts the server there.

    Worlds are started there by the mpiexec of the MPI library.
    """

    def _submit(self, name: str) -> Allocation:
        line = self._line_to_us(server=self._command, invitation=self._invitation.to_text())
        return slurm_allocation.submit_on(self._wishes, holder_command(), name, line)

    def _start_servers(self, _nodes: str) -> None:
        """Note which node it is: the holder there has started the server."""
        self._tasks = [self._wishes.tasks]
        nodes = [self._variables[NODE]]
        self._srun = Srun(wishes=self._wishes, job=self._allocation.job, nodes=nodes)
        self._servers_ordered = time.monotonic()

    def look(self) -> None:
        """Find out how far it is, also whether the server has failed to start."""
        if not self.is_ready and self._srun.nodes:
            self._allocation.look()
            if end := self._allocation.describe_end():
                raise ComputeFailure(f"{end} before the tests could start")
        super().look()
