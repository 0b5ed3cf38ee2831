"""A rank of a world that a controller has started, and the template that it is a copy of."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from _pytest.capture import CaptureManager, FDCapture

from rankwise.errors import RankwiseError
from rankwise.launch.cores import bind_to
from rankwise.launch.mpi import (
    load_mpi,
    mark_as_joined,
    place_from_environment,
    prepare_clock,
    send_to_pmix_at_once,
    start_mpi,
)
from rankwise.launch.mpiexec import loaded_library
from rankwise.testing import wire
from rankwise.testing.blackbox import BlackBox, BoxFiles
from rankwise.testing.communicators import Communicators
from rankwise.testing.crew.debugging import RankDebugger, postpone_debugger
from rankwise.testing.crew.forkserver import Errand, ForkServer, exit_as_c_does
from rankwise.testing.crew.loop import Loop
from rankwise.testing.crew.rank import Rank
from rankwise.testing.crew.session import WorldSession
from rankwise.testing.listing import describe_collection, describe_tests
from rankwise.testing.wire import Channel, WireError

if TYPE_CHECKING:
    from mpi4py import MPI


INVITATION = "RANKWISE_INVITATION"
WORLD = "RANKWISE_WORLD"
CORES = "RANKWISE_CORES"
TEMPLATE = "template"
KEEPER = "keeper"
_NODE = "SLURMD_NODENAME"

# More ranks than this in one world would have the numbers of another's.
_RANKS_OF_A_WORLD = 1 << 20


def member_number(world: int, rank: int) -> int:
    """Give the number by which a rank of a world is known in the run."""
    return world * _RANKS_OF_A_WORLD + rank


def world_and_rank(member: int) -> tuple[int, int]:
    """Give the world and the rank behind such a number."""
    return divmod(member, _RANKS_OF_A_WORLD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What a process needs to know to take part in a run."""

    address: wire.Address
    secret: str
    folder: str
    width: int
    settings: Mapping[str, Any]
    is_distant: bool = False
    """Whether it is for processes on nodes that have a folder of their own each."""

    @property
    def own_folder(self) -> Path:
        """The folder of the run on this machine."""
        return Path(self.folder.replace("%n", node_name()))

    def to_text(self) -> str:
        """Write it down for a process that is started from nothing."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> Invitation | None:
        """Find out whether a controller has started this process."""
        text = os.environ.pop(INVITATION, None)
        if text is None:
            return None
        data = json.loads(text)
        return cls(**{**data, "address": wire.Address(**data["address"])})


def node_name() -> str:
    """Give the name of the node that a batch system has started this process on."""
    return os.environ.get(_NODE, "")


def name_on_node(name: str, node: str) -> str:
    """Give the name by which a server on a node is known in the run."""
    return f"{name}@{node}"


def name_and_node(name: wire.Name) -> tuple[str, str]:
    """Give the kind of server behind such a name, and its node."""
    kind, _, node = str(name).partition("@")
    return kind, node


class Membership:
    """This process's part in the run: what `World` is under mpirun."""

    is_reporter = False
    shares_host_with_reporter = True

    def __init__(self, invitation: Invitation) -> None:
        self.invitation = invitation
        self.settings = dict(invitation.settings)
        self.rank = 0
        self.size = invitation.width
        self.world = 0
        self.library = ""
        self.channel: Channel
        self.comm: MPI.Intracomm | None = None
        self.box: BlackBox | None = None

    def join_as_template(self, line: socket.socket | None) -> None:
        """Get a line to the controller, for what is collected.

        The first template has one from the start: the controller may be busy for long.
        """
        if line is not None:
            self.channel = Channel(line)
        elif self.invitation.is_distant:
            self._call(name_on_node(TEMPLATE, node_name()))
        else:
            self._call(TEMPLATE)

    def join_world(self) -> None:
        """Start MPI in the place that mpiexec has given to this process, and call the controller.

        Raises MpiMissing or MpiMismatch when the ranks cannot find each other.
        """
        place = place_from_environment()
        assert place is not None, "no mpiexec has started this process"
        self.world = int(os.environ.pop(WORLD))
        self.rank = place.rank
        if cores := os.environ.pop(CORES, ""):
            bind_to(cores, place.rank)
        files = BoxFiles(self.invitation.own_folder, f"{self.world}.{self.rank}")
        self.box = BlackBox(files)
        mpi = start_mpi(place)
        self.comm = mpi.COMM_WORLD.Dup()
        mark_as_joined()
        self._call(member_number(self.world, self.rank))

    def _call(self, name: wire.Name) -> None:
        self.channel = Channel.open(self.invitation.address, self.invitation.secret, name)
        self.channel.send({"kind": "here", "pid": os.getpid(), "node": node_name()})

    def speak(self) -> None:
        """Nothing was kept back."""

    def leave(self) -> None:
        """Hang up."""
        self.channel.close()

    def abort(self, code: int) -> NoReturn:
        """End at once."""
        os._exit(code or 1)


class MemberSession(WorldSession):
    """The hooks of a session in a pool's process: a template, or a rank that had none."""

    _world: Membership  # type: ignore[assignment]

    def __init__(
        self,
        config: pytest.Config,
        membership: Membership,
        *,
        collects_garbage: bool,
        server: ForkServer | None,
        usual: Mapping[bytes, bytes],
    ) -> None:
        super().__init__(config, membership, collects_garbage=collects_garbage)  # type: ignore[arg-type]
        self._server = server
        self._usual = usual
        self._deselected: list[str] = []

    @classmethod
    def enrol(
        cls,
        config: pytest.Config,
        membership: Membership,
        *,
        collects_garbage: bool,
        server: ForkServer | None = None,
        usual: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """Take part in the session that is about to be configured."""
        session = cls(
            config,
            membership,
            collects_garbage=collects_garbage,
            server=server,
            usual=usual or {},
        )
        session.add_to(config)

    def _refuse_what_cannot_work(self) -> None:
        """Leave that to the controller."""

    def rearrange_plugins(self) -> None:
        super().rearrange_plugins()
        postpone_debugger(self._config)

    # Collection

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._collection_errors.append(report)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._deselected += [item.nodeid for item in items]

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> None:
        """Note what is imported next: if that ends this process, the controller knows why."""
        if self._server is not None and isinstance(collector, pytest.Module):
            note = self._world.invitation.own_folder / "importing"
            note.write_text(str(collector.path))

    # Tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        self._settle_garbage()
        try:
            self._describe(session)
            if self._server is not None:
                self._become_rank(self._server.serve())
            self._work(session)
        except WireError:
            # The controller is gone, and there is nobody to tell.
            os._exit(1)
        return True

    def _describe(self, session: pytest.Session) -> None:
        header, body = describe_collection(session, self._collection_errors)
        data = json.loads(body)
        if self._server is not None or self._world.rank == 0:
            data["tests"] = describe_tests(session.items)
            data["deselected"] = self._deselected
        if self._server is not None:
            header["unsafe"] = why_not_copied()
        self._world.channel.send(header, json.dumps(data, default=repr).encode())
        if self._server is not None:
            # Once for all ranks, if no module of the tests has done it.
            with contextlib.suppress(RankwiseError):
                prepare_clock(load_mpi().Get_library_version(), loaded_library())

    def _become_rank(self, errand: Errand | None) -> None:
        """Go on as a rank in this copy of the template."""
        assert errand is not None, "a template makes no templates"
        self._world.channel.drop()
        capture = self._config.pluginmanager.get_plugin("capturemanager")
        assert isinstance(capture, CaptureManager)
        # Copies must not write to the same files.
        capture.stop_global_capturing()
        errand.take_place(self._usual)
        capture.start_global_capturing()
        capture.suspend_global_capture(in_=False)
        self._world.join_world()
        self._config.workerinput["workerid"] = f"rank{self._world.rank}"  # type: ignore[attr-defined]

    def _work(self, session: pytest.Session) -> None:
        channel, box = self._world.channel, self._world.box
        communicators = self._config.stash[Communicators.KEY]
        assert self._world.comm is not None
        communicators.join(self._world.comm)
        assert box is not None
        box.arm()
        rank = Rank(session, communicators, box)
        self._config.pluginmanager.register(rank, "rankwise-rank")
        loop = Loop(session, rank, channel, None, at_once=True)
        rank.on_failure = loop.tell_of_failure
        if self._config.getoption("tmux", False):
            from rankwise.testing.crew.live_output import LiveOutput

            folder = self._world.invitation.own_folder
            live = LiveOutput(folder, self._world.rank, _captured_files(self._config))
            self._config.pluginmanager.register(live, "rankwise-live-output")
        if not self._world.invitation.is_distant:
            RankDebugger.add_to(self._config, channel, communicators)
        channel.send({"kind": "ready", "outputs": _captured_files(self._config)})
        header, body = channel.receive()
        if header["kind"] == "order":
            self._share_temporary_folder(header["temporary"])
            if body:
                loop.adopt(json.loads(body))
            loop.run()

    def _share_temporary_folder(self, base: str) -> None:
        if self._temporary._basetemp is None:
            name = f"world{self._world.world}-rank{self._world.rank}"
            # On another machine it may not be there.
            Path(base).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._temporary._given_basetemp = Path(base) / name

    # The end

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: object) -> None:
        with contextlib.suppress(WireError):
            self._world.channel.send({"kind": "broken", "reason": str(excrepr)})

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self) -> Generator[None, object, object]:
        """End when pytest has: a copy must not go on with what the controller does after it."""
        try:
            return (yield)
        except pytest.UsageError as error:
            self.refuse(str(error))
            return pytest.ExitCode.USAGE_ERROR
        finally:
            self._leave()

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """There is more to come."""

    def refuse(self, reason: str) -> None:
        """Say why there is nothing to run here."""
        with contextlib.suppress(WireError):
            self._world.channel.send({"kind": "refused", "reason": reason})

    def _leave(self) -> NoReturn:
        with contextlib.suppress(WireError):
            self._world.channel.send({"kind": "bye"})
        code = 0
        try:
            self._config._ensure_unconfigure()
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        except Exception:  # what users register to be done at the end may raise anything
            code = 1
        _finalize_mpi()
        exit_as_c_does(code)


def _finalize_mpi() -> None:
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        send_to_pmix_at_once()
        module.Finalize()


def _captured_files(config: pytest.Config) -> dict[str, int]:
    """Give the descriptors of the files that pytest captures output in."""
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    streams = getattr(capture, "_global_capturing", None)
    found = {}
    for name, stream in (("stdout", "out"), ("stderr", "err")):
        one = getattr(streams, stream, None)
        if isinstance(one, FDCapture):
            found[name] = one.tmpfile.fileno()
    return found


def why_not_copied() -> str:
    """Say why a copy of this process could not be a rank; empty: it could."""
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized():
        return "MPI was started while the tests were collected"
    if threading.active_count() > 1:
        names = [thread.name for thread in threading.enumerate()[1:]]
        return f"threads were started while the tests were collected ({', '.join(names)})"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA was started while the tests were collected"
    return ""
