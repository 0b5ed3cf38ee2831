"""The ranks of an `mpirun`: how they meet, and how rank 0 leads them and reports for all."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

import rankwise
from rankwise.errors import MpiMismatch, RankwiseError
from rankwise.launch.cores import Core, domains_of, read_cores
from rankwise.launch.mpi import Place, library_name, mark_as_joined, start_mpi
from rankwise.pytest_plugin import connections
from rankwise.pytest_plugin.collection import number_groups, raise_early_end, require_same_tests
from rankwise.pytest_plugin.connections import Channel, Header, WireError
from rankwise.pytest_plugin.failure_report import AbortedTest, report_ending
from rankwise.pytest_plugin.marks import limit_of, requirements_of, size_of
from rankwise.pytest_plugin.options import POLICIES, grace_from, limit_from
from rankwise.pytest_plugin.output import LastWords
from rankwise.pytest_plugin.rank_status import StatusFiles, StatusWriter, describe_overdue
from rankwise.pytest_plugin.reporter import Reporter, explain_gone
from rankwise.pytest_plugin.serialize import unpack_any_report
from rankwise.pytest_plugin.stacks import Frame, describe_ranks

if TYPE_CHECKING:
    from mpi4py import MPI

    from rankwise.pytest_plugin.schedulers.base import Domains

# Ranks that have nothing left to do need no longer than this to say goodbye.
GOODBYE_SECONDS = 10.0


class ReportingRank(Reporter):
    """Collects what the ranks say through the coordinator."""

    def __init__(
        self, session: pytest.Session, channel: Channel, *, size: int, policy: str
    ) -> None:
        super().__init__(session, channel.send, session.items, size=size, rank=0, policy=policy)
        self._channel = channel
        self._broken: set[str] = set()
        self._interrupt: Header | None = None
        """What a rank wants that has ended the run after the last test."""
        self._leaving: set[int] = set()
        """Ranks that have ended the run themselves: they wait for no other rank in a test."""

    # Before the first test

    def gather_collections(self) -> dict[int, tuple[Header, bytes]]:
        """Wait until every rank has said what it has collected.

        Raises WireError when a rank has left instead, UsageError when it refused to collect.
        """
        collections: dict[int, tuple[Header, bytes]] = {}
        while len(collections) < self._size:
            header, body = self._channel.receive()
            if header["kind"] == "collected":
                collections[header["rank"]] = header, body
            elif header["kind"] == "interrupt":
                self.take(header, body)
            elif header["kind"] == "ended early":
                self._log_errors(json.loads(body), [header["rank"]])
                raise_early_end(self._session, header)
            elif header["kind"] == "refused":
                where = describe_ranks([header["rank"]], self._size)
                raise pytest.UsageError(f"[{where}] {header['reason']}")
            elif header["kind"] == "gone":
                self._gone.add(header["rank"])
                raise WireError(
                    f"rank {header['rank']} ended before it had collected its tests; "
                    f"what it printed says why"
                )
        return collections

    def is_rankwise_used(self, collections: Mapping[int, tuple[Header, bytes]]) -> bool:
        """Return whether the ranks are to work together.

        What could not be collected may have marks; no test runs then, unless the user wants it.
        Raises UsageError when the ranks disagree.
        """
        unused = sorted(rank for rank, (header, _) in collections.items() if not header["used"])
        proceeds = self._config.option.continue_on_collection_errors
        errors = any(json.loads(body)["errors"] for _, body in collections.values())
        if not unused or (errors and not proceeds):
            return True
        if len(unused) < self._size:
            who = describe_ranks(unused, self._size)
            raise pytest.UsageError(
                f"{who}: no test with a rankwise mark was collected, but there are some on "
                f"other ranks; marks must not depend on the rank"
            )
        return False

    def log_collection_errors(self, collections: Mapping[int, tuple[Header, bytes]]) -> None:
        """Report what could not be collected on other ranks and is not known from this one."""
        found: dict[str, tuple[dict[str, Any], list[int]]] = {}
        for rank, (_, body) in sorted(collections.items()):
            for data in json.loads(body)["errors"]:
                found.setdefault(data["nodeid"], (data, []))[1].append(rank)
        self._broken = set(found)
        for data, ranks in found.values():
            if 0 not in ranks:
                self._log_errors([data], ranks)

    def _log_errors(self, errors: Sequence[dict[str, Any]], ranks: Sequence[int]) -> None:
        for data in errors:
            report = unpack_any_report(data, self._config)
            # Other ranks may have collected the same file, and report it under its plain name.
            report.nodeid = f"{report.nodeid} [{describe_ranks(ranks, self._size)}]"
            self._config.hook.pytest_collectreport(report=report)

    def agree_on_order(
        self, collections: Mapping[int, tuple[Header, bytes]], temporary: str
    ) -> None:
        """Make sure that all ranks have the same tests, and tell them in which order to count.

        Tests of a module that some rank could not collect are left out. Raises UsageError.
        """
        digest = collections[0][0]["digest"]
        items = self._session.items
        if self._broken:
            items[:] = [item for item in items if not self._is_broken(item.nodeid)]
        own = [item.nodeid for item in items]
        same = not self._broken
        for rank, (header, body) in sorted(collections.items()):
            if self._broken or header["digest"] != digest:
                theirs = [n for n in json.loads(body)["nodeids"] if not self._is_broken(n)]
                require_same_tests(own, rank, theirs, self._size)
                same = False
        order = b"" if same else json.dumps(own).encode()
        # Where all digests are equal, an empty order spares the ranks the long list.
        header = {"kind": "share", "what": "order", "temporary": temporary}
        self._channel.send(header, order)

    def _is_broken(self, nodeid: str) -> bool:
        return any(nodeid.startswith((f"{broken}::", f"{broken}/")) for broken in self._broken)

    def begin(self, scheduler: str, domains: Domains) -> None:
        """Hand the suite over to the coordinator."""
        items = self._session.items
        known = self.known_durations()
        limit = limit_from(self._config)
        groups, _ = number_groups(items)
        tests = [
            [
                *(size_of(item), known.get(item.nodeid), numbers, limit_of(item, limit)),
                *(item.nodeid, requirements_of(item).exclusive),
            ]
            for item, numbers in zip(items, groups, strict=True)
        ]
        self._channel.send(
            {
                "kind": "begin",
                "scheduler": scheduler,
                "domains": domains,
                # Schedulers of other packages know no domains: an exclusive test gets all slots.
                "aligned": scheduler in POLICIES,
                "careful": self.careful,
                "strict": self.strict,
                "maxfail": self.maxfail,
                "grace": grace_from(self._config),
                "root": str(self._config.rootpath),
            },
            json.dumps(tests).encode(),
        )

    # After the last test

    def await_others(self, seconds: float | None = None) -> list[int]:
        """Wait until the other ranks have ended their sessions; returns those that did not.

        Each part of what they have yet to do may take as long as a test; all of it no longer than
        is said here, unless all of them have ended the run themselves.
        """
        missing = set(range(self._size)) - {0} - self._gone
        patience = self._patience if seconds is None else seconds
        deadline = _after(patience)
        while missing:
            if seconds is not None and missing <= self._leaving:
                deadline = _after(self._patience)
            left = None if deadline is None else max(0.01, deadline - time.monotonic())
            self._channel.set_timeout(left)
            try:
                header, body = self._channel.receive()
            except WireError:
                if seconds is None:
                    self._fail_for(missing, patience)
                break
            if seconds is None:
                # A rank that says something goes on.
                deadline = _after(patience)
            if header["kind"] == "overdue":
                self._log_overdue(header, body)
                break
            if header["kind"] in ("bye", "gone"):
                missing.discard(header["rank"])
                if header.get("lost"):
                    self.lost.append(header["rank"])
                    self.end_session(explain_gone(header))
            elif header["kind"] == "interrupt":
                self._leaving.add(header["rank"])
                self._interrupt = self._interrupt or header
                # No rank waits for this one in a test: the coordinator need not end them.
                self._tell({"kind": "stop"})
            elif header["kind"] in ("late", "verdict", "stopped"):
                self.take(header, body)
        self.save_durations()
        return sorted(missing)

    def take(self, header: Header, body: bytes) -> None:
        """Report what the coordinator passes on; raises what another rank ended the run with."""
        if header["kind"] == "interrupt":
            self._leaving.add(header["rank"])
        super().take(header, body)

    def conclude(self) -> None:
        if self._interrupt is not None:
            self.take(self._interrupt, b"")
        super().conclude()

    @property
    def _patience(self) -> float | None:
        """How long a rank may be silent at its end; None: as long as it likes.

        Ranks on this machine that have run a test are looked after by the coordinator, which is
        there first.
        """
        limits = [limit_of(item, limit_from(self._config)) for item in self._session.items]
        if not all(limits):
            return None
        return max(limits, default=limit_from(self._config)) + GOODBYE_SECONDS

    def _fail_for(self, missing: Collection[int], patience: float | None) -> None:
        """Fail the run for ranks that have not come to their end."""
        who = describe_ranks(sorted(missing), self._size)
        within = f" within {patience:g} s" if patience is not None else ""
        self.end_session(f"{who} did not end{within} after the last test")

    def _log_overdue(self, header: Header, body: bytes) -> None:
        """Report ranks that take too long over what comes after their last test."""
        stacks = {
            int(rank): tuple(Frame(*frame) for frame in frames)
            for rank, frames in json.loads(body).items()
        }
        ending = AbortedTest(
            size=self._size,
            phase=header["phase"],
            headline=describe_overdue(header["name"], header["limit"], header["phase"]),
            how="timed out",
            seconds=header["seconds"],
            waiting=stacks,
            unanswered=[rank for rank in header["ranks"] if rank not in stacks],
        )
        item = self._tests[header["case"]]
        self.log_more(item, report_ending(item, ending, self._config.rootpath))


def _after(seconds: float | None) -> float | None:
    """Return the moment that comes so much later; None: none does."""
    return None if seconds is None else time.monotonic() + seconds


_STOP_SECONDS = 5.0

_START = (
    "import os, sys; sys.path.insert(0, sys.argv[1]); "
    # For schedulers of other packages.
    "sys.path += sys.argv[2].split(os.pathsep); "
    "from rankwise.pytest_plugin import mpirun_coordinator as one; "
    "one.serve(0) if sys.argv[3] else one.serve_by_pipes(); os._exit(0)"
)
_THIS_MACHINE = "127.0.0.1"


class CoordinatorProcess:
    """Started before it is known where to listen; ends when rank 0 hangs up or is gone."""

    def __init__(self, scheduler: str | None) -> None:
        # Without site-packages it starts sooner; schedulers of other packages may be found by what
        # is there.
        flags = ["-I", "-S"] if scheduler in (None, *POLICIES) else ["-I"]
        source, places = str(Path(rankwise.__file__).parent.parent), os.pathsep.join(sys.path)
        start = [sys.executable, *flags, "-c", _START, source, places]
        # Not a copy of this process, in which MPI, or threads, may be at work.
        self._line: socket.socket | None = None
        if hasattr(socket, "send_fds"):
            self._line, theirs = connections.pair()
            with theirs:
                # Ctrl-C is for the ranks; the coordinator ends when rank 0 has.
                self._process = subprocess.Popen(
                    [*start, "by socket"],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
        else:
            # On Windows.
            pipe = subprocess.PIPE
            self._process = subprocess.Popen([*start, ""], stdin=pipe, stdout=pipe)
        self._folder: str | None = None

    def open(self, hosts: list[str]) -> dict[str, Any]:
        """Let it listen for a rank on each of these hosts; returns what a rank needs to connect.

        Raises OSError, or ValueError if it is gone.
        """
        secret, host, folder = secrets.token_hex(32), hosts[0], ""
        if len(set(hosts)) == 1:
            host, folder = _THIS_MACHINE, tempfile.mkdtemp(prefix="rankwise-")
            self._folder = folder
        settings = {"secret": secret, "width": len(hosts), "folder": folder, "host": host}
        address = self._listen(settings)
        return {"address": asdict(address), "secret": secret, "folder": folder}

    def _listen(self, settings: dict[str, Any]) -> connections.Address:
        message = json.dumps(settings).encode()
        if self._line is None:
            question, answer = self._process.stdin, self._process.stdout
            assert question is not None
            assert answer is not None
            question.write(message + b"\n")
            question.flush()
            return connections.Address(**json.loads(answer.readline()))
        try:
            # On several machines there is no folder.
            path = Path(settings["folder"] or os.devnull) / "coordinator"
            listener, address = connections.listen_on_file(path)
        except OSError:
            # Nor has every system room for a long path.
            listener, address = connections.listen_on_host(settings["host"])
        with listener:
            # The coordinator runs already: the open socket goes to it through the line.
            socket.send_fds(self._line, [message], [listener.fileno()])
        return address

    def stop(self) -> None:
        """End it and wait until it has ended; idempotent."""
        for line in (self._line, self._process.stdin):
            if line is not None:
                line.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


Settings = dict[str, Any]


class MpirunLink:
    """This rank's membership: the communicator of all, and the line to the coordinator."""

    def __init__(
        self, place: Place, comm: MPI.Intracomm, library: str, seats: list[tuple[str, list[Core]]]
    ) -> None:
        hosts = [host for host, _ in seats]
        self.seats = seats
        """Where each rank is, and the cores that its launcher has left to it."""
        self.rank = place.rank
        self.size = place.size
        self.comm = comm
        self.channel: connections.Channel
        self.settings: Settings = {}
        self.library = library
        self.is_reporter = place.rank == 0
        self.shares_host_with_reporter = hosts[place.rank] == hosts[0]
        self._coordinator: CoordinatorProcess | None = None
        self._pid = os.getpid()
        self._has_left = False
        self._last_words: LastWords | None = None
        self.box: StatusWriter | None = None

    @classmethod
    def join(
        cls, place: Place, scheduler: str | None, settle: Callable[[], Settings]
    ) -> MpirunLink:
        """Start MPI and connect to the coordinator, which rank 0 starts; collective.

        What `settle` gives on rank 0 becomes the settings of all.

        Raises MpiMissing or MpiMismatch when the ranks cannot find each other.
        """
        # Before MPI starts, as both take their time.
        coordinator = CoordinatorProcess(scheduler) if place.rank == 0 else None
        try:
            mpi = start_mpi(place)
        except RankwiseError:
            if coordinator is not None:
                coordinator.stop()
            raise
        # Messages of ours must never meet those of a test.
        comm = mpi.COMM_WORLD.Dup()
        seats = comm.allgather((mpi.Get_processor_name(), read_cores()))
        hosts = [host for host, _ in seats]
        world = cls(place, comm, library_name(mpi.Get_library_version()), seats)
        world._coordinator = coordinator
        mark_as_joined()
        world._connect(hosts, settle)
        # MPI waits for all ranks when a process ends; the others must learn before that, through
        # the coordinator, that this one leaves.
        atexit.register(world.leave)
        world._guard_exit()
        if not world.is_reporter:
            world._last_words = LastWords.begin()
        return world

    def domains(self) -> Domains:
        """Return the domains of all ranks: where they are bound to several, these count as one."""
        return domains_of([cores for _, cores in self.seats], [host for host, _ in self.seats])

    def _connect(self, hosts: list[str], settle: Callable[[], Settings]) -> None:
        """Get a line to the coordinator on every rank; collective.

        Raises MpiMismatch on all ranks when one of them has none.
        """
        offer: tuple[Settings, Settings] | None = None
        problem = ""
        if self._coordinator is not None:
            try:
                offer = self._coordinator.open(hosts), settle()
            except (OSError, ValueError) as error:
                problem = f"rank 0 cannot be called by the others: {error}"
        offer = self.comm.bcast(offer, root=0)
        if offer is not None:
            invitation, self.settings = offer
            address = connections.Address(**invitation["address"])
            try:
                self.channel = Channel.open(address, invitation["secret"], self.rank)
                # At once: who has not shown the secret for long is dropped, and others may take
                # longer to get here, or to collect.
                self.channel.send({"kind": "here", "pid": os.getpid()})
                if invitation["folder"]:
                    files = StatusFiles(Path(invitation["folder"]), str(self.rank))
                    self.box = StatusWriter(files)
            except (OSError, WireError) as error:
                problem = f"rank {self.rank} cannot reach rank 0: {error}"
        # A rank that gave up alone would leave the others waiting in their next collective call.
        problems = list(filter(None, self.comm.allgather(problem)))
        if problems:
            if self._coordinator is not None:
                self._coordinator.stop()
            raise MpiMismatch(problems[0])

    def _guard_exit(self) -> None:
        """Let os._exit say nothing but failure until this rank has left the run.

        Some launchers take exit code 0 of one rank for that of all, and end the others at once:
        a test that ends its process would be a success, whatever has failed before.
        """
        exit_at_once = os._exit
        # While a test runs, what is written to stderr is kept for its report.
        screen = os.dup(2)

        def fail(status: int) -> NoReturn:
            if os.getpid() == self._pid and not self._has_left:
                where = os.environ.get("PYTEST_CURRENT_TEST", "fixtures or hooks")
                words = f"rankwise: os._exit({status}) on rank {self.rank} in {where}\n"
                with contextlib.suppress(OSError):
                    os.write(screen, words.encode(errors="replace"))
                status = status or 1
            exit_at_once(status)

        # Replaced on the module, where tests look it up.
        os._exit = fail

    def speak(self) -> None:
        """Let this rank write to stderr; what it had to say until now, rank 0 says."""
        if self._last_words is not None:
            self._last_words.end()

    def leave(self) -> None:
        """Say goodbye and hang up; on rank 0 also end the coordinator. Idempotent."""
        if self._has_left or os.getpid() != self._pid:
            # A copy that a test has made, and that has come to its end, is no rank.
            return
        # Not later: what fails below is not tried again at exit.
        self._has_left = True
        if self._last_words is not None and (words := self._last_words.end()):
            with contextlib.suppress(connections.WireError):
                self.channel.send({"kind": "refused", "reason": words})
        with contextlib.suppress(connections.WireError):
            self.channel.send({"kind": "bye"})
        self.channel.close()
        if self._coordinator is not None:
            self._coordinator.stop()

    def abort(self, code: int) -> None:
        """End all ranks at once, those that hang included; does not come back."""
        # Its goodbye tells the coordinator that this end is meant.
        self.leave()
        # MPI ends this process as it is: what was printed last would be lost.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        self.comm.Abort(code or 1)
