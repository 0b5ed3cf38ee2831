"""A pytest session that starts its ranks itself and is never one of them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter
from _pytest.tmpdir import TempPathFactory

from rankwise.launch.cores import available_cores, domains_of
from rankwise.launch.mpi import forget_job
from rankwise.testing import wire
from rankwise.testing.crew.forkserver import ForkServer
from rankwise.testing.crew.keeper import Keeper, prevent_start, remove_folder, usual_environment
from rankwise.testing.crew.member import INVITATION, TEMPLATE, Invitation, MemberSession, Membership
from rankwise.testing.crew.outside import stand_in_for_mpi
from rankwise.testing.crew.pool import KEEPER, Pool, PoolFailure
from rankwise.testing.crew.reporting_rank import show_difference
from rankwise.testing.crew.worlds import Binding, Worlds
from rankwise.testing.dispatch import NOBODY, Dispatcher, Suite, make_policy
from rankwise.testing.ended import Ending, report_ending
from rankwise.testing.exchange import Exchange
from rankwise.testing.interop.coverage import CombineAnyway
from rankwise.testing.limits import grace_from
from rankwise.testing.listing import Layout, ListedTest, make_cases, restore_tests
from rankwise.testing.policy import Pace, Sequential
from rankwise.testing.reporter import Reporter
from rankwise.testing.results import unpack_any_report
from rankwise.testing.wire import Header, Name

# So long ranks may take to tear down what they have set up, after the last test or Ctrl-C.
_GOODBYE_SECONDS = 10.0
_INTERRUPTED_SECONDS = 3.0
_POLICIES = ("sequential", "static", "dynamic")


class Wishes:
    """What the command line says about the workers, before it is read in full."""

    def __init__(self, config: pytest.Config) -> None:
        known = config.known_args_namespace
        self.scheduler: str = known.scheduler or ""
        asked = known.n_workers
        self.is_wanted = asked is not None or self.scheduler in ("pool", "shell")
        self.cores = available_cores()
        self.width: int = len(self.cores) if asked in (None, "auto") else int(asked)
        self.fresh = self.scheduler == "shell"
        named = self.scheduler if self.scheduler in _POLICIES else "dynamic"
        self.policy: str = known.rankwise_policy or named
        self.warm: bool = not known.no_warm_start
        self.quiet: bool = known.capture != "no"
        bind: str = known.bind or ("core" if self.fresh else "none")
        # More workers than cores would share some while others are idle.
        self.binds = bind == "core" and self.width <= len(self.cores)
        self.every_world: bool = known.world
        self._sets_threads = "OMP_NUM_THREADS" not in os.environ

    def layout(self) -> Layout:
        """Give where the seats are."""
        used = self.cores[: self.width]
        domains = domains_of(used) if self.width <= len(self.cores) else [0] * self.width
        return Layout(width=self.width, domains=domains)

    def binding(self) -> Binding:
        """Give the cores of the seats, if ranks are to be bound."""
        return Binding(
            cores=self.cores[: self.width] if self.binds else None,
            set_threads=self._sets_threads,
        )


def start_controller(config: pytest.Config, wishes: Wishes, *, collects_garbage: bool) -> None:
    """Make this process the controller of a pool.

    Comes back in other processes too: in the template and in ranks, which are copies of this one.
    They go on as members.
    """
    forget_job()
    folder = Path(tempfile.mkdtemp(prefix="rankwise-"))
    secret = secrets.token_hex(32)
    listener, address = wire.listen_on_file(folder / "controller")
    doors = {name: wire.listen_on_file(folder / name) for name in ("warm", "cold")}
    own, theirs = socket.socketpair()
    invitation = Invitation(
        address=address,
        secret=secret,
        folder=str(folder),
        width=wishes.width,
        settings=MemberSession.settle(config),
    )
    if wishes.binds:
        # Libraries that are loaded for all ranks must not start more threads than a rank has cores.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.stdout.flush()
    sys.stderr.flush()
    if not os.fork():
        own.close()
        listener.close()
        _keep(config, wishes, invitation, doors, theirs, collects_garbage=collects_garbage)
        return
    theirs.close()
    for door, _ in doors.values():
        door.close()
    paths = {name: door_address.path for name, (_, door_address) in doors.items()}
    session = ControllerSession(
        config, wishes, invitation, folder, listener=listener, keeper=own, doors=paths
    )
    config.pluginmanager.register(session, "rankwise-controller")
    stand_in_for_mpi()


def _keep(
    config: pytest.Config,
    wishes: Wishes,
    invitation: Invitation,
    doors: dict[str, tuple[socket.socket, wire.Address]],
    line: socket.socket,
    *,
    collects_garbage: bool,
) -> None:
    """Be the keeper; comes back in its copies, the template and ranks without one."""
    folder = Path(invitation.folder)
    usual = usual_environment()
    command: Sequence[str] = ()
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not wishes.warm:
        command = _clean_command(config)
        os.environ[INVITATION] = invitation.to_text()
    try:
        keeper = Keeper(
            wire.Channel(line),
            invitation.secret,
            warm=doors["warm"][0],
            cold=doors["cold"][0],
            quiet=wishes.quiet,
            folder=folder,
            command=command,
        )
        prevent_start()
        errand = None
        # The template is what everybody waits for: it does not wait for MPI to be loaded here.
        if not (wishes.warm and keeper.start_template()):
            keeper.prepare_mpi()
            errand = keeper.serve()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    membership = Membership(invitation)
    server = None
    if errand is None:
        if wishes.quiet:
            _write_to(folder / "template.log")
        membership.join_as_template()
        server = ForkServer(membership.channel, invitation.secret)
        server.open_door(doors["warm"][0])
        doors["cold"][0].close()
    else:
        errand.take_place(usual)
        membership.join_world()
    MemberSession.enrol(
        config, membership, collects_garbage=collects_garbage, server=server, usual=usual
    )


def _clean_command(config: pytest.Config) -> list[str]:
    """Give the command that starts the same pytest again."""
    arguments = [str(argument) for argument in config.invocation_params.args]
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"import pytest; sys.exit(pytest.main({arguments!r}))"
    )
    return [sys.executable, "-c", code]


def _write_to(path: Path) -> None:
    """Let what this process prints go to a file."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target in (1, 2):
        os.dup2(number, target)
    os.close(number)


class ControllerSession:
    """The hooks of the session that the user sees."""

    def __init__(
        self,
        config: pytest.Config,
        wishes: Wishes,
        invitation: Invitation,
        folder: Path,
        *,
        listener: socket.socket,
        keeper: socket.socket,
        doors: dict[str, str],
    ) -> None:
        self._config = config
        self._wishes = wishes
        self._seed = invitation.settings["seed"]
        self._folder = folder
        self._lines = Exchange(
            listener,
            invitation.secret,
            is_expected=lambda name: name == TEMPLATE or type(name) is int,
            on_message=self._take,
            on_gone=self._gone,
        )
        self._lines.adopt(KEEPER, keeper)
        self._worlds = Worlds(
            self._order_keeper,
            width=wishes.width,
            folder=folder,
            doors=doors,
            binding=wishes.binding(),
        )
        self._worlds.warm = wishes.warm
        self._collections: dict[Name, tuple[Header, bytes]] = {}
        self._tests: list[ListedTest] = []
        self._library = ""
        self._refused = ""
        self._notices: list[str] = []
        self._interrupted: Header | None = None
        self._reporter: Reporter
        self._pool: Pool
        self._has_collected = False
        if not wishes.fresh:
            # It starts while the tests are collected.
            self._worlds.start_shared()
        elif not wishes.warm:
            self._worlds.start(1, "exact")

    def _order_keeper(self, order: Header) -> None:
        self._lines.send(KEEPER, order)
        self._lines.flush()

    # Configuration

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self) -> None:
        self._refuse_what_cannot_work()
        if self._seed is not None:
            self._config.option.randomly_seed = self._seed
        self._pool = Pool(self._lines, self._worlds, self._folder, grace=grace_from(self._config))
        self._pool.on_verdict = self._log
        self._pool.on_ending = self._log_ending
        self._pool.on_interrupt = self._note_interrupt
        self._pool.on_notice = self._notices.append

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        CombineAnyway.add_to(self._config)

    def _refuse_what_cannot_work(self) -> None:
        option = self._config.getoption
        if option("usepdb", False) or option("trace", False):
            raise pytest.UsageError(
                "--pdb and --trace need a terminal, and the ranks of --n-workers have none. Run "
                "the one test without --n-workers."
            )
        if option("dist", "no") != "no" or option("numprocesses", None):
            raise pytest.UsageError(
                "pytest-xdist (-n) and --n-workers cannot both start the processes. --n-workers "
                "alone spreads tests over all workers as -n does. If -n is not on the command line "
                "but in a configuration file, add -n 0."
            )

    def pytest_report_header(self) -> str:
        while not self._library and not self._refused:
            self._lines.step(1.0)
        self._raise_if_refused()
        wishes = self._wishes
        crew = "shell" if wishes.fresh else "pool"
        workers = "1 worker" if wishes.width == 1 else f"{wishes.width} workers"
        return f"rankwise: {workers}, {self._library}, scheduler {crew}, policy {wishes.policy}"

    # Collection

    def pytest_collection(self, session: pytest.Session) -> bool | None:
        """Leave it to the template or to ranks: here MPI is never started."""
        if session.config.option.collectonly:
            return None
        data = self._await_collection()
        for report in (unpack_any_report(one, self._config) for one in data["errors"]):
            self._config.hook.pytest_collectreport(report=report)
        tests = restore_tests(session, data["tests"])
        self._tests = tests
        session.testscollected = len(tests)
        if data["deselected"]:
            left_out = [SimpleNamespace(nodeid=nodeid) for nodeid in data["deselected"]]
            self._config.hook.pytest_deselected(items=left_out)
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if isinstance(terminal, TerminalReporter):
            terminal._numcollected = len(tests) + len(data["deselected"])
            if terminal.verbosity >= 0:
                terminal.report_collect(final=True)
        return True

    def _await_collection(self) -> dict[str, Any]:
        source: Name | None = None
        while source is None:
            self._step()
            if self._worlds.warm:
                source = TEMPLATE if TEMPLATE in self._collections else None
            else:
                source = self._cold_source()
        _, body = self._collections[source]
        data: dict[str, Any] = json.loads(body)
        if source != TEMPLATE:
            self._compare(data["nodeids"])
        self._pool.set_order(data["nodeids"])
        return data

    def _cold_source(self) -> Name | None:
        """Give the first rank, once all ranks of a world have collected."""
        for world in self._worlds.alive.values():
            if all(member in self._collections for member in world.members):
                return world.members[0]
        return None

    def _compare(self, own: Sequence[str]) -> None:
        for member, (_, body) in self._collections.items():
            theirs = json.loads(body)["nodeids"]
            if sorted(theirs) != sorted(own):
                rank = int(member) % self._wishes.width
                raise pytest.UsageError(show_difference(0, own, rank, theirs, self._wishes.width))

    def _step(self) -> None:
        try:
            self._pool.step()
        except PoolFailure as failure:
            raise pytest.UsageError(str(failure)) from None
        self._raise_if_refused()
        if self._interrupted is not None:
            self._end_by(self._interrupted)

    def _raise_if_refused(self) -> None:
        if self._refused:
            raise pytest.UsageError(self._refused)

    # Messages

    def _take(self, name: Name, header: Header, body: bytes) -> None:
        kind = header["kind"]
        if kind == "collected":
            self._take_collection(name, header, body)
        elif kind == "refused":
            self._refused = self._refused or str(header["reason"])
        elif kind == "interrupt" and name == TEMPLATE:
            self._interrupted = header
        elif kind == "mpi":
            self._library = header["library"]
        elif kind == "ended":
            self._pool.ended(header)
        elif kind == "launcher ended":
            self._pool.launcher_ended(header)
        elif kind == "template ended":
            self._template_ended()
        elif isinstance(name, int):
            self._pool.take(name, header, body)

    def _take_collection(self, name: Name, header: Header, body: bytes) -> None:
        if name == TEMPLATE and header["unsafe"]:
            self._go_cold(header["unsafe"])
            return
        self._collections[name] = header, body

    def _gone(self, name: Name) -> None:
        if isinstance(name, int):
            self._pool.hung_up(name)
        elif name == KEEPER:
            raise PoolFailure("the process that starts the ranks is gone")

    def _template_ended(self) -> None:
        if TEMPLATE in self._collections:
            # A test has ended it, or the machine; the ranks have ended with it.
            self._order_keeper({"kind": "template"})
        elif self._worlds.warm and not self._refused:
            module = "a conftest.py"
            with contextlib.suppress(OSError):
                module = os.path.relpath((self._folder / "importing").read_text())
            self._go_cold(f"{module} uses MPI, or ends the process, when it is imported")

    def _go_cold(self, why: str) -> None:
        """Have ranks load everything themselves."""
        self._worlds.warm = False
        self._notices.append(
            f"{why}: ranks import the tests themselves, which makes starting them slower"
        )
        self._order_keeper({"kind": "take over"})
        if not self._worlds.alive:
            self._worlds.start(1, "exact")

    # Tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly:
            return None
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            errors = "error" if session.testsfailed == 1 else "errors"
            raise session.Interrupted(f"{session.testsfailed} {errors} during collection")
        reporter = self._reporter = Reporter(
            session,
            self._obey_reporter,
            self._tests,
            size=self._wishes.width,
            rank=None,
            in_order=self._policy == "sequential",
        )
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if self._policy != "sequential" and isinstance(terminal, TerminalReporter):
            terminal.showfspath = False
        self._worlds.know(self._tests)
        self._dispatcher = self._make_dispatcher(reporter)
        self._pool.begin(self._tests, self._dispatcher, str(self._temporary.getbasetemp()))
        try:
            self._pool.run()
            self._pool.end(_GOODBYE_SECONDS)
        except PoolFailure as failure:
            session.shouldfail = str(failure)
        finally:
            reporter.save_durations()
        if self._interrupted is not None:
            self._end_by(self._interrupted)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    @property
    def _policy(self) -> str:
        # --stepwise takes everything before the failing test as done, so that has to be true.
        stepwise = self._config.getoption("stepwise", False)
        return "sequential" if stepwise else self._wishes.policy

    @property
    def _temporary(self) -> TempPathFactory:
        factory = self._config._tmp_path_factory  # type: ignore[attr-defined]
        assert isinstance(factory, TempPathFactory)
        return factory

    def _make_dispatcher(self, reporter: Reporter) -> Dispatcher:
        layout = self._wishes.layout()
        cases = make_cases(
            self._tests,
            reporter.known_durations(),
            layout,
            fresh=self._wishes.fresh,
            every_world=self._wishes.every_world,
            aligned=self._policy == "dynamic",
        )
        suite = Suite(cases=cases, groups=[test.groups for test in self._tests])
        pace = Pace(batching=not reporter.careful)
        policy = make_policy(
            self._policy,
            suite,
            layout.width,
            pace,
            strict=reporter.strict,
            domains=layout.domains,
        )
        if isinstance(policy, Sequential) and reporter.strict:
            policy.keep_apart()
        return Dispatcher(
            suite,
            policy,
            pace,
            width=layout.width,
            reporter=NOBODY,
            maxfail=reporter.maxfail,
            acknowledged=reporter.careful,
            venues=self._worlds,
        )

    def _obey_reporter(self, header: Header) -> None:
        match header["kind"]:
            case "stop":
                self._dispatcher.stop()
            case "logged":
                self._dispatcher.logged(header["case"])

    def _log(self, header: Header, body: bytes) -> None:
        self._reporter.take(header, body)

    def _log_ending(self, test: ListedTest, ending: Ending) -> None:
        reports = report_ending(test, ending, self._config.rootpath)
        if ending.phase == "closing":
            self._reporter.log_more(reports)
        else:
            self._reporter.log_ended(test, reports)

    def _note_interrupt(self, header: Header) -> None:
        reason = f"{header['reason']} (rank {header['rank']})"
        self._interrupted = self._interrupted or {**header, "reason": reason}
        self._dispatcher.stop(at_once=True)

    def _end_by(self, header: Header) -> None:
        """End as a rank wants the run ended."""
        self._interrupted = None
        if header["exit"]:
            pytest.exit(header["reason"], header["code"])
        raise KeyboardInterrupt(header["reason"])

    # The end

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_keyboard_interrupt(self) -> Generator[None, None, None]:
        """Give ranks a moment to tear down what they have set up."""
        with contextlib.suppress(KeyboardInterrupt, Exception):
            self._pool.interrupt(signal.SIGINT)
            self._pool.end(_INTERRUPTED_SECONDS)
        yield

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        for notice in self._notices:
            terminalreporter.write_line(f"rankwise: {notice}", yellow=True)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """End everything that was started."""
        with contextlib.suppress(Exception):
            self._order_keeper({"kind": "end"})
            deadline = time.monotonic() + _GOODBYE_SECONDS
            while self._lines.has(KEEPER) and time.monotonic() < deadline:
                self._lines.step(0.05)
        self._lines.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        remove_folder(self._folder)
