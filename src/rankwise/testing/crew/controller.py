"""A pytest session that starts its ranks itself and is never one of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.terminal import TerminalReporter
from _pytest.tmpdir import TempPathFactory

from rankwise.errors import RankwiseError
from rankwise.launch.cores import domains_of
from rankwise.testing.crew.hearsay import Answers, Hearsay
from rankwise.testing.crew.keeper import OUTPOSTS, remove_folder
from rankwise.testing.crew.member import KEEPER, TEMPLATE, Invitation, name_and_node, name_on_node
from rankwise.testing.crew.panes import open_panes, refuse_without_tmux
from rankwise.testing.crew.pool import Pool, PoolFailure
from rankwise.testing.crew.reporting_rank import show_difference
from rankwise.testing.crew.terminal_loan import terminal_lent
from rankwise.testing.crew.wishes import Wishes
from rankwise.testing.crew.worlds import Binding, Worlds
from rankwise.testing.dispatch import NOBODY, Dispatcher, Suite, make_policy
from rankwise.testing.ended import Ending, report_ending
from rankwise.testing.exchange import Exchange
from rankwise.testing.interop.coverage import CombineAnyway
from rankwise.testing.limits import grace_from
from rankwise.testing.listing import Layout, ListedTest, make_cases, restore_tests
from rankwise.testing.live import live_view
from rankwise.testing.policy import Pace, Sequential
from rankwise.testing.rank_output import silence_ended
from rankwise.testing.reporter import Reporter
from rankwise.testing.results import unpack_any_report
from rankwise.testing.wire import Header, Name

if TYPE_CHECKING:
    from rankwise.testing.crew.slurm_site import SlurmSite

# So long ranks may take to tear down what they have set up, after the last test or Ctrl-C.
_GOODBYE_SECONDS = 10.0
_INTERRUPTED_SECONDS = 3.0
_LOAN_SECONDS = 0.1
# What a rank says that has no use for the terminal any more.
_ENDS_OF_LOANS = ("debugged", "interrupt", "done", "broken")
# A server asks its ranks for no longer than 2 s.
_ANSWER_SECONDS = 4.0


class ControllerSession:
    """The hooks of the session that the user sees."""

    def __init__(
        self,
        config: pytest.Config,
        wishes: Wishes,
        invitation: Invitation,
        folder: Path,
        *,
        site: SlurmSite | None,
        listener: socket.socket,
        keeper: socket.socket,
        template: socket.socket,
        keeper_pid: int,
        doors: dict[str, str],
    ) -> None:
        self._keeper = keeper_pid
        self._config = config
        self._wishes = wishes
        self._seed = invitation.settings["seed"]
        self._folder = folder
        self._site = site
        self._lines = Exchange(
            listener,
            invitation.secret,
            is_expected=self._is_expected,
            on_message=self._take,
            on_gone=self._gone,
            on_stranger=self._note_stranger,
        )
        self._lines.adopt(KEEPER, keeper)
        self._lines.adopt(TEMPLATE, template)
        self._worlds = Worlds(
            self._spawn,
            width=wishes.width,
            folder=folder,
            doors=site.doors if site is not None else doors,
            binding=Binding(
                cores=wishes.cores[: wishes.width] if wishes.binds else None,
                set_threads=wishes.sets_threads,
            ),
        )
        self._worlds.warm = wishes.warm
        self._collections: dict[Name, tuple[Header, bytes]] = {}
        self._tests: list[ListedTest] = []
        self._library = ""
        self._refused = ""
        self._notices: list[str] = []
        self._strangers: dict[str, int] = {}
        self._interrupted: Header | None = None
        self._reporter: Reporter
        self._pool: Pool
        self._questions = 0
        self._answers: dict[int, Answers] = {}
        self._held: list[tuple[Name, Header | None, bytes]] | None = None
        if site is not None:
            self._begin_site(site)
        elif not wishes.fresh:
            # It starts while the tests are collected.
            self._worlds.start_shared()
        elif not wishes.warm:
            self._worlds.start(1, "exact")

    def _is_expected(self, name: object) -> bool:
        if name == TEMPLATE or type(name) is int:
            return True
        return self._site is not None and self._site.is_expected(name)

    def _order_keeper(self, order: Header) -> None:
        self._lines.send(KEEPER, order)
        self._lines.flush()

    def _spawn(self, order: Header) -> None:
        if self._site is None:
            self._order_keeper(order)
            return
        self._site.prepare(order)
        self._lines.send(self._site.starter, order)
        self._lines.flush()

    # Nodes of a batch system

    def _begin_site(self, site: SlurmSite) -> None:
        site.on_notice = self._show
        self._worlds.hear = lambda: Hearsay(self._ask_servers)
        try:
            site.begin(self._lines, self._order_keeper)
        except RankwiseError as error:
            self._refused = str(error)

    def _show(self, text: str) -> None:
        """Say something while the user waits."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if isinstance(terminal, TerminalReporter):
            terminal.ensure_newline()
            terminal.write_line(f"rankwise: {text}")
            terminal.flush()

    def _await_site(self) -> None:
        """Wait until worlds can be started."""
        site = self._site
        if site is None:
            return
        while not site.is_ready:
            self._step()
            self._look_at_site(site)

    def _ask_servers(self, question: Mapping[str, Any]) -> Answers:
        """Ask all servers something and wait for what they say; the rest is dealt with later."""
        number = self._questions = self._questions + 1
        answers = self._answers[number] = []
        assert self._site is not None, "ranks on this machine are looked at from here"
        asked = [server for server in self._site.servers() if self._lines.has(server)]
        for server in asked:
            self._lines.send(server, {**question, "question": number})
        deadline = time.monotonic() + _ANSWER_SECONDS
        self._held = []
        while len(answers) < len(asked) and time.monotonic() < deadline:
            self._lines.step(0.1)
        del self._answers[number]
        self._catch_up()
        return answers

    def _catch_up(self) -> None:
        """Deal with what has come while something else was waited for."""
        held, self._held = self._held, None
        for name, header, body in held or ():
            if header is None:
                self._gone(name)
            else:
                self._take(name, header, body)

    def _lend_terminal(self, member: int, words: str) -> None:
        """Let a member's debugger talk to the user; all else waits until it is done."""
        pid = self._pool.pid_of(member)
        held = self._held = []

        def interrupt() -> None:
            if pid:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGINT)

        with terminal_lent(self._config, words, interrupt):
            self._lines.send(member, {"kind": "terminal", "pid": os.getpid()})
            self._lines.flush()
            while not any(
                name == member and (header is None or header["kind"] in _ENDS_OF_LOANS)
                for name, header, _ in held
            ):
                self._lines.step(_LOAN_SECONDS)
        self._catch_up()

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
        self._pool.on_debug = self._lend_terminal
        site = self._site
        if site is not None:
            self._pool.servers = lambda: [KEEPER, *site.servers()]
            self._pool.explain_end = site.explain_end
            self._pool.lost_nodes = lambda: site.lost
            self._pool.share = site.share

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        CombineAnyway.add_to(self._config)
        if self._config.getoption("tmux", False):
            self._show(open_panes(self._folder, self._wishes.width))

    def _refuse_what_cannot_work(self) -> None:
        option = self._config.getoption
        if option("trace", False):
            raise pytest.UsageError(
                "--trace would stop every rank of every test, and there is one terminal. Write "
                "breakpoint() where one rank is to stop, or run the one test without --n-workers."
            )
        if option("tmux", False):
            if self._site is not None:
                raise pytest.UsageError("--tmux shows ranks of this machine, not of Slurm's nodes")
            refuse_without_tmux()
        if option("usepdb", False) and self._site is not None:
            raise pytest.UsageError(
                "--pdb needs a terminal, and ranks on the nodes of Slurm have none. Run the one "
                "test with --n-workers on one machine."
            )
        if option("dist", "no") != "no" or option("numprocesses", None):
            raise pytest.UsageError(
                "pytest-xdist (-n) and --n-workers cannot both start the processes. --n-workers "
                "alone spreads tests over all workers as -n does. If -n is not on the command line "
                "but in a configuration file, add -n 0."
            )

    def pytest_report_header(self) -> str:
        if self._site is not None:
            self._raise_if_refused()
            return self._describe_slurm(self._site)
        while not self._library and not self._refused:
            self._lines.step(1.0)
        self._raise_if_refused()
        wishes = self._wishes
        crew = "shell" if wishes.fresh else "pool"
        workers = "1 worker" if wishes.width == 1 else f"{wishes.width} workers"
        return f"rankwise: {workers}, {self._library}, scheduler {crew}, policy {wishes.policy}"

    def _describe_slurm(self, site: SlurmSite) -> str:
        wishes = self._wishes
        workers = "1 worker" if wishes.width == 1 else f"{wishes.width} workers"
        how = f"scheduler {wishes.scheduler}, policy {wishes.policy}"
        return f"rankwise: {workers}, {site.title}, {how}"

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
            if self._site is not None:
                self._look_at_site(self._site)
            if self._worlds.warm:
                source = next((one for one in self._collections if _is_template(one)), None)
            else:
                source = self._cold_source()
        _, body = self._collections[source]
        data: dict[str, Any] = json.loads(body)
        if not _is_template(source):
            self._compare(data["nodeids"])
        self._pool.set_order(data["nodeids"])
        return data

    def _look_at_site(self, site: SlurmSite) -> None:
        """Find out how far the nodes are; without a template they are needed for the collection."""
        try:
            site.look()
        except RankwiseError as error:
            raise pytest.UsageError(str(error)) from None
        if site.is_ready and not self._worlds.warm and not self._worlds.alive:
            self._worlds.start(1, "exact")

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
        if kind == "stacks":
            self._answers.get(header["question"], []).append(header)
        elif self._held is not None:
            self._held.append((name, header, body))
        elif isinstance(name, int) and kind not in ("collected", "refused"):
            self._pool.take(name, header, body)
        elif self._site is not None and kind in ("held", "here", "mpi"):
            self._take_for_site(self._site, name, header, body)
        else:
            self._take_from_server(name, header, body)

    def _take_from_server(self, name: Name, header: Header, body: bytes) -> None:
        match header["kind"]:
            case "collected":
                self._take_collection(name, header, body)
            case "refused":
                self._refused = self._refused or str(header["reason"])
            case "interrupt":
                self._interrupted = header
            case "mpi":
                self._library = header["library"]
            case "ended":
                self._pool.ended(header)
            case "watched":
                self._pool.watched(header)
            case "moments":
                self._pool.note_moments(header)
            case "launcher ended" if header["world"] == OUTPOSTS:
                self._outposts_ended()
            case "launcher ended":
                self._pool.launcher_ended(header)
            case "stranger":
                self._note_stranger(header["reason"])
            case "template ended":
                self._template_ended(name)

    def _take_for_site(self, site: SlurmSite, name: Name, header: Header, body: bytes) -> None:
        was_ready = site.is_ready
        try:
            site.take(name, header, body)
        except RankwiseError as error:
            self._refused = self._refused or str(error)
        if site.is_ready and not was_ready and not self._wishes.fresh:
            self._worlds.start_shared()

    def _outposts_ended(self) -> None:
        if self._site is not None and not self._site.is_ready:
            said = self._pool.read_log(OUTPOSTS)
            self._refused = self._refused or (
                f"on the nodes of {self._site.title} pytest could not be started"
                + (f"; this is what was printed:\n{said}" if said else "")
            )

    def _take_collection(self, name: Name, header: Header, body: bytes) -> None:
        if _is_template(name) and header["unsafe"]:
            self._go_cold(header["unsafe"])
            return
        self._collections[name] = header, body

    def _note_stranger(self, reason: str) -> None:
        self._strangers[reason] = self._strangers.get(reason, 0) + 1

    def _gone(self, name: Name) -> None:
        if self._held is not None:
            self._held.append((name, None, b""))
        elif isinstance(name, int):
            self._pool.hung_up(name)
        elif name == KEEPER:
            raise PoolFailure("the process that starts the ranks is gone")
        elif self._site is not None:
            self._site.gone(name)
            if name_and_node(name)[0] != TEMPLATE:
                self._pool.doubt()

    def _template_ended(self, keeper: Name) -> None:
        node = name_and_node(keeper)[1]
        template = name_on_node(TEMPLATE, node) if node else TEMPLATE
        if template in self._collections:
            # A test has ended it, or the machine; the ranks have ended with it.
            self._lines.send(keeper, {"kind": "template"})
            self._lines.flush()
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
        for server in self._pool.servers():
            if name_and_node(server)[0] == KEEPER and self._lines.has(server):
                self._lines.send(server, {"kind": "take over"})
        self._lines.flush()
        if not self._worlds.alive and self._site is None:
            self._worlds.start(1, "exact")

    # Tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly:
            return None
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            errors = "error" if session.testsfailed == 1 else "errors"
            raise session.Interrupted(f"{session.testsfailed} {errors} during collection")
        self._await_site()
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
        times = self._config.pluginmanager.get_plugin("rankwise-timeline")
        if times is not None:
            wishes = self._wishes
            times.know(width=wishes.width, order=self._policy, is_fresh=wishes.fresh)
        self._worlds.know(self._tests)
        self._dispatcher = self._make_dispatcher(reporter)
        self._pool.begin(self._tests, self._dispatcher, str(self._temporary.getbasetemp()))
        view = live_view(
            terminal,
            self._dispatcher,
            [test.nodeid for test in self._tests],
            self._wishes.width,
        )
        if view is not None:
            self._pool.on_look = view.refresh
        try:
            self._pool.run()
            self._pool.end(_GOODBYE_SECONDS)
        except PoolFailure as failure:
            session.shouldfail = str(failure)
        finally:
            if view is not None:
                view.close()
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

    def _layout(self) -> Layout:
        """Give where the seats are."""
        width, cores = self._wishes.width, self._wishes.cores
        if self._site is not None:
            return Layout(width=width, domains=self._site.domains())
        domains = domains_of(cores[:width]) if width <= len(cores) else [0] * width
        return Layout(width=width, domains=domains)

    def _make_dispatcher(self, reporter: Reporter) -> Dispatcher:
        layout = self._layout()
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

    def _log_ending(self, case: int, ending: Ending) -> None:
        test = self._tests[case]
        silence_ended(ending, self._config.getoption("rank_output", "all"))
        reports = report_ending(test, ending, self._config.rootpath)
        if ending.phase == "closing":
            self._reporter.log_more(reports)
        else:
            seats = self._dispatcher.seats_of(case)
            self._reporter.log_ended(test, reports, how=ending.how, seats=seats)

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
        # A second Ctrl-C, or a pool that is broken: then they get none.
        with contextlib.suppress(KeyboardInterrupt, PoolFailure):
            self._pool.interrupt(signal.SIGINT)
            self._pool.end(_INTERRUPTED_SECONDS)
        yield

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        dropped = [
            f"dropped {count} connection{'s' * (count > 1)} to this run: {reason}"
            for reason, count in self._strangers.items()
        ]
        for notice in (*self._notices, *dropped):
            terminalreporter.write_line(f"rankwise: {notice}", yellow=True)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """End everything that was started."""
        if self._site is not None:
            self._site.end()
        # It says goodbye by hanging up.
        with contextlib.suppress(PoolFailure):
            self._order_keeper({"kind": "end"})
            deadline = time.monotonic() + _GOODBYE_SECONDS
            while self._lines.has(KEEPER) and time.monotonic() < deadline:
                self._lines.step(0.05)
        is_gone = not self._lines.has(KEEPER)
        self._lines.close()
        if is_gone:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._keeper, 0)
        remove_folder(self._folder)


def _is_template(name: Name) -> bool:
    return name_and_node(name)[0] == TEMPLATE
