"""A rank of a world that a controller has started, and the template that it is a copy of."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Generator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

import pytest
from _pytest.capture import CaptureManager

from rankwise.errors import RankwiseError
from rankwise.launch import mpi
from rankwise.launch.cores import bind_to, read_cores
from rankwise.launch.mpiexec import loaded_library
from rankwise.pytest_plugin import collection, connections, interop
from rankwise.pytest_plugin.communicators import Communicators
from rankwise.pytest_plugin.output import OwnStreams, PastCapture
from rankwise.pytest_plugin.rank_status import StatusFiles, StatusWriter
from rankwise.pytest_plugin.reporter import CollectionRecord
from rankwise.pytest_plugin.worker_session import RankSession
from rankwise.pytest_plugin.workers.debugger import (
    RankDebugger,
    captured_streams,
    postpone_debugger,
)
from rankwise.pytest_plugin.workers.forkserver import ForkRequest, ForkServer, exit_as_c_does

if TYPE_CHECKING:
    from mpi4py import MPI


class PoolLink:
    """This process's part in the run: what `World` is under mpirun."""

    is_reporter = False

    def __init__(self, invitation: connections.Invitation) -> None:
        self.invitation = invitation
        self.settings = dict(invitation.settings)
        self.rank = 0
        self.size = invitation.width
        self.world = 0
        self.channel: connections.Channel
        self.comm: MPI.Intracomm | None = None
        self.mpi: ModuleType | None = None
        self.box: StatusWriter | None = None

    def join_as_template(self, line: socket.socket | None) -> None:
        """Get a line to the controller, for what is collected.

        The first template has one from the start: the controller may be busy for long.
        """
        if line is not None:
            self.channel = connections.Channel(line)
        elif self.invitation.is_distant:
            self._call(connections.name_on_node(connections.TEMPLATE, connections.node_name()))
        else:
            self._call(connections.TEMPLATE)

    def join_world(self) -> None:
        """Start MPI in the place that mpiexec has given to this process, and call the controller.

        Raises MpiMissing or MpiMismatch when the ranks cannot find each other.
        """
        place = mpi.place_from_environment()
        assert place is not None, "no mpiexec has started this process"
        self.world = int(os.environ.pop(connections.WORLD))
        self.rank = place.rank
        # Before MPI starts: its threads keep the cores that the process has then.
        if cores := os.environ.pop(connections.CORES, ""):
            bind_to(cores, place.rank)
        files = StatusFiles(self.invitation.own_folder, f"{self.world}.{self.rank}")
        self.box = StatusWriter(files)
        # A test may forget its modules, and MPI has to be ended all the same.
        self.mpi = mpi.start_mpi(place)
        self.comm = self.mpi.COMM_WORLD.Dup()
        mpi.mark_as_joined()
        self._call(connections.worker_number(self.world, self.rank))

    def _call(self, name: connections.Name) -> None:
        self.channel = connections.Channel.open(
            self.invitation.address, self.invitation.secret, name
        )
        here = {"kind": "here", "pid": os.getpid(), "node": connections.node_name()}
        # Those that a batch system has left to it.
        cores = read_cores() if self.invitation.is_distant else []
        self.channel.send({**here, "cores": cores})

    def speak(self) -> None:
        """Nothing was kept back."""


class PoolSession(RankSession[PoolLink]):
    """The hooks of a session in a pool's process: a template, or a rank that had none."""

    def __init__(
        self,
        config: pytest.Config,
        link: PoolLink,
        *,
        server: ForkServer | None = None,
        usual: Mapping[bytes, bytes] | None = None,
    ) -> None:
        super().__init__(config, link)
        self._server = server
        self._usual = usual or {}
        self._deselected: list[str] = []
        self._record = CollectionRecord(config)
        config.pluginmanager.register(self._record, "rankwise-collection")

    def rearrange_plugins(self) -> None:
        super().rearrange_plugins()
        postpone_debugger(self._config)
        self._record.past_capture = self._keep_past_capture()

    def _keep_past_capture(self) -> PastCapture:
        is_captured = self._config.getoption("capture", "no") != "no"
        return OwnStreams(self._config) if is_captured else PastCapture(self._config)

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
            note = self._link.invitation.own_folder / "importing"
            # There may be no room for it: then it is empty.
            with contextlib.suppress(OSError):
                note.write_bytes(os.fsencode(collector.path))

    # Tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        self._settle_garbage()
        try:
            self._describe(session)
            if self._server is not None:
                self._become_rank(self._server.serve())
            self._work(session)
        except connections.WireError:
            # The controller is gone: there is no use in an ordinary end.
            os._exit(1)
        return True

    def _describe(self, session: pytest.Session) -> None:
        self._has_spoken = True
        header, body = collection.describe_collection(session, self._collection_errors)
        data = json.loads(body)
        if self._server is not None or self._link.rank == 0:
            data["tests"] = collection.describe_tests(session.items)
            data["conftests"] = collection.describe_conftests(self._config)
            data["deselected"] = self._deselected
            data["collected"] = self._record.describe(session)
        if self._server is not None:
            # Now, when all modules of the tests have been imported.
            header["unsafe"] = why_not_copied()
            if header["unsafe"]:
                # Launchers wait there already: they get their processes from the supervisor.
                self._server.close_fork_sockets()
        self._link.channel.send(header, json.dumps(data, default=repr).encode())
        if self._server is not None:
            # Once for all ranks, if no module of the tests has done it.
            with contextlib.suppress(RankwiseError):
                mpi.prepare_clock(mpi.load_mpi().Get_library_version(), loaded_library())

    def _become_rank(self, fork_request: ForkRequest | None) -> None:
        """Go on as a rank in this copy of the template."""
        assert fork_request is not None, "a template makes no templates"
        # The template goes on with this line; the copy gets one of its own.
        self._link.channel.close()
        capture = self._config.pluginmanager.get_plugin("capturemanager")
        if not isinstance(capture, CaptureManager):
            fork_request.take_place(self._usual)
        else:
            # Copies must not write to the same files.
            capture.stop_global_capturing()
            fork_request.take_place(self._usual)
            capture.start_global_capturing()
            capture.suspend_global_capture(in_=False)
        self._link.join_world()
        self._config.workerinput["workerid"] = f"rank{self._link.rank}"  # type: ignore[attr-defined]

    def _work(self, session: pytest.Session) -> None:
        channel = self._link.channel
        captured = _captured_files(self._config)
        past = self._keep_past_capture()
        loop = self._make_loop(session, past, at_once=True)
        loop.rank.stderr = captured.get("stderr")
        if self._config.getoption("tmux", False):
            from rankwise.pytest_plugin.workers.tmux import LiveOutput

            folder = self._link.invitation.own_folder
            live = LiveOutput(folder, self._link.rank, captured)
            self._config.pluginmanager.register(live, "rankwise-live-output")
        if not self._link.invitation.is_distant:
            RankDebugger.add_to(self._config, channel, Communicators.of(self._config))
        # Everything that the controller needs to report a crash is there from now on.
        channel.send({"kind": "ready", "outputs": {**captured, **past.outputs}})
        header, body = channel.receive()
        if header["kind"] == "order":
            bind_to(header["cores"], self._link.rank)
            self._share_temporary_folder(header["temporary"])
            loop.rank.watch_fixtures(loop.tell_of_fixture, header["hopeless"])
            if body:
                loop.adopt(json.loads(body))
            loop.run()
            loop.rank.note_end()

    def _share_temporary_folder(self, base: str) -> None:
        name = f"world{self._link.world}-rank{self._link.rank}"
        interop.move_below(self._config, base, name)

    # The end

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: object) -> None:
        self._has_spoken = True
        self._tell({"kind": "broken", "reason": str(excrepr)})

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self) -> Generator[None, object, object]:
        """End when pytest has: a copy must not go on with what the controller does after it."""
        try:
            return (yield)
        except pytest.UsageError as error:
            self.refuse(str(error))
            return pytest.ExitCode.USAGE_ERROR
        except BaseException as error:
            # Of hooks at the end of a session, which may raise anything.
            self._tell_fault(error)
            return pytest.ExitCode.INTERNAL_ERROR
        finally:
            self._leave()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """Pass on pytest.exit: pytest would end this process alone."""
        try:
            return (yield)
        except pytest.exit.Exception as error:
            self._tell_fault(error)
            raise

    def _tell_fault(self, error: BaseException) -> None:
        """Let the controller show what went wrong after the last test, and fail for it."""
        text = "".join(traceback.format_exception(error)).strip()
        asks = (
            collection.describe_interrupt(error)
            if isinstance(error, pytest.exit.Exception)
            else None
        )
        fault = {
            "kind": "fault",
            "text": text,
            "interrupt": asks,
            "is_interrupt": isinstance(error, KeyboardInterrupt),
        }
        self._tell(fault)

    def refuse(self, reason: str) -> None:
        """Say why there is nothing to run here."""
        self._tell({"kind": "refused", "reason": reason})

    def _tell(self, header: connections.Header) -> None:
        """Send to the controller, if it is still there."""
        with contextlib.suppress(connections.WireError):
            self._link.channel.send(header)

    def _leave(self) -> NoReturn:
        try:
            # What pytest and the interpreter would do at their end; `exit_as_c_does` skips it.
            self._config._ensure_unconfigure()
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        except BaseException as error:
            # What users register to be done at the end may raise anything.
            self._tell_fault(error)
        _finalize_mpi(self._link.mpi or sys.modules.get("mpi4py.MPI"))
        # Not sooner: an end before this was not asked for.
        self._tell({"kind": "bye"})
        exit_as_c_does(0)


def _finalize_mpi(module: ModuleType | None) -> None:
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        mpi.send_to_pmix_at_once()
        module.Finalize()


def _captured_files(config: pytest.Config) -> dict[str, int]:
    """Return the descriptors of the files that pytest captures output in."""
    found = captured_streams(config.pluginmanager.get_plugin("capturemanager"))
    names = {1: "stdout", 2: "stderr"}
    return {name: found[one].tmpfile.fileno() for one, name in names.items() if one in found}


def why_not_copied() -> str:
    """Say why a copy of this process could not be a rank; empty: it could."""
    if mpi.is_mpi_started():
        return "MPI was started while the tests were collected"
    # A copy has only the thread that forks: locks that others hold stay locked for ever.
    if threading.active_count() > 1:
        names = [thread.name for thread in threading.enumerate()[1:]]
        return f"threads were started while the tests were collected ({', '.join(names)})"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA was started while the tests were collected"
    return ""
