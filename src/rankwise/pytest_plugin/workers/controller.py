"""A pytest session that starts its ranks itself and is never one of them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from _pytest.terminal import TerminalReporter

from rankwise.errors import RankwiseError
from rankwise.pytest_plugin import collection, connections, interop
from rankwise.pytest_plugin.collection import ListedTest
from rankwise.pytest_plugin.connections import SUPERVISOR, TEMPLATE, Event, Exchange, Header, Name
from rankwise.pytest_plugin.failure_report import AbortedTest, report_ending
from rankwise.pytest_plugin.interop import CombineAnyway
from rankwise.pytest_plugin.options import POLICIES, grace_from, policy_from
from rankwise.pytest_plugin.output import filter_aborted_output
from rankwise.pytest_plugin.rank_status import AFTER, Answers, RemoteStatus
from rankwise.pytest_plugin.reporter import (
    Reporter,
    report_collection,
    show_collection,
    show_notice,
)
from rankwise.pytest_plugin.schedulers.base import Domains
from rankwise.pytest_plugin.schedulers.dispatcher import Dispatcher, ScheduledSuite, make_dispatcher
from rankwise.pytest_plugin.serialize import unpack_any_report
from rankwise.pytest_plugin.workers.debugger import lend_terminal
from rankwise.pytest_plugin.workers.place import RunOptions, Workplace, settle_cores
from rankwise.pytest_plugin.workers.pool import Pool, PoolFailure, RankBroken
from rankwise.pytest_plugin.workers.supervisor import NODE_SUPERVISORS, read_log
from rankwise.pytest_plugin.workers.worlds import World, Worlds, WorldState

if TYPE_CHECKING:
    from rankwise.pytest_plugin.live_view import LiveView

# So long the process that starts all others may take to end them.
_GOODBYE_SECONDS = 10.0
# So long ranks may take to tear down what they have set up, after Ctrl-C.
_INTERRUPTED_SECONDS = 3.0
# A server asks its ranks for no longer than 2 s.
_ANSWER_SECONDS = 4.0


class ControllerSession:
    """The hooks of the session that the user sees."""

    def __init__(
        self,
        config: pytest.Config,
        options: RunOptions,
        invitation: connections.Invitation,
        folder: Path,
        *,
        place: Workplace,
        listener: socket.socket,
        supervisor: socket.socket,
        template: socket.socket,
        supervisor_pid: int,
    ) -> None:
        self._supervisor_pid = supervisor_pid
        self._config = config
        self._options = options
        self._seed = invitation.settings["seed"]
        self._folder = folder
        self._place = place
        self._lines = Exchange(
            listener,
            invitation.secret,
            is_expected=self._is_expected,
            on_message=self._take,
            on_gone=self._gone,
            on_stranger=lambda reason: self._strangers.update([reason]),
        )
        self._lines.adopt(SUPERVISOR, supervisor)
        self._lines.adopt(TEMPLATE, template)
        self._worlds = Worlds(
            self._spawn,
            width=options.width,
            folder=folder,
            fork_sockets=place.fork_sockets,
            sets_threads=options.sets_threads,
        )
        self._worlds.warm = options.warm
        self._imports_may_use_mpi = not options.warm
        self._collections: dict[Name, tuple[Header, bytes]] = {}
        self._tests: list[ListedTest] = []
        self._refused = ""
        self._notices: list[str] = list(options.notices)
        self._lost: list[str] = []
        self._strangers: Counter[str] = Counter()
        self._interrupted: Header | None = None
        self._early_end: tuple[Header, bytes] | None = None
        self._unheard: dict[Name, Name] = {}
        """Templates that have ended and that may have said why, with their supervisors."""
        self._faults: dict[str, list[str]] = {}
        """What went wrong at the end of workers' sessions, and whose."""
        self._dispatcher: Dispatcher | None = None
        self._reporter: Reporter
        self._pool: Pool
        self._view: LiveView | None = None
        self._questions = itertools.count()
        place.on_notice = lambda text: show_notice(config, text)
        if options.slurm is not None:
            self._worlds.make_remote_status = lambda: RemoteStatus(self._ask_servers)
        try:
            if options.bind and options.slurm is None:
                settle_cores(options, place, self._worlds)
            place.begin(self._lines, self._order_supervisor)
        except RankwiseError as error:
            self._refused = str(error)
        if place.is_ready:
            # It starts while the tests are collected.
            self._start_first_world()

    def _start_first_world(self) -> None:
        if not self._options.fresh:
            self._worlds.start_shared()
        elif not self._worlds.warm:
            self._worlds.start(1, "exact")

    def _is_expected(self, name: object) -> bool:
        # Not `isinstance`, by which `true` in a message would be a number as well.
        return name == TEMPLATE or type(name) is int or self._place.is_expected(name)

    def _order_supervisor(self, order: Header) -> None:
        self._lines.send(SUPERVISOR, order)
        self._lines.flush()

    def _spawn(self, order: Header) -> None:
        self._place.prepare(order)
        self._lines.send(self._place.starter, order)
        self._lines.flush()

    def _ask_servers(self, question: Mapping[str, Any]) -> Answers:
        """Ask all servers something and wait for what they say; the rest is dealt with later."""
        number = next(self._questions)
        asked = [server for server in self._place.servers() if self._lines.has(server)]
        for server in asked:
            self._lines.send(server, {**question, "question": number})

        def answers(events: Sequence[Event]) -> Answers:
            headers = [header for _, header, _ in events if header is not None]
            return [header for header in headers if header.get("question") == number]

        events = self._lines.collect(lambda got: len(answers(got)) >= len(asked), _ANSWER_SECONDS)
        self._lines.deliver(events)
        return answers(events)

    # Configuration

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self) -> None:
        # First of all plugins: what they do when they are configured depends on it.
        interop.refuse_in_pool(self._config, is_remote=self._options.slurm is not None)
        interop.append_to_log_file(self._config)
        if self._seed is not None:
            self._config.option.randomly_seed = self._seed
        self._pool = Pool(
            self._lines,
            self._worlds,
            self._folder,
            place=self._place,
            listener=self,
            grace=grace_from(self._config),
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        CombineAnyway.add_to(self._config)
        if self._config.getoption("tmux", False):
            from rankwise.pytest_plugin.workers.tmux import open_panes

            show_notice(self._config, open_panes(self._folder, self._options.width))

    def pytest_report_header(self) -> list[str]:
        self._raise_if_refused()
        while not self._place.title:
            self._step()
        options = self._options
        workers = "1 worker" if options.width == 1 else f"{options.width} workers"
        how = f"scheduler {options.start_mode}, policy {options.policy}"
        lines = [f"rankwise: {workers}, {self._place.title}, {how}"]
        if options.launched > 1:
            lines.append(
                f"rankwise: rank 0 of the launcher's {options.launched} starts the workers, the "
                f"other ranks have ended"
            )
        return lines

    # Collection

    def pytest_collection(self, session: pytest.Session) -> bool | None:
        """Leave it to the template or to ranks: here MPI is never started."""
        if session.config.option.collectonly:
            return None
        collection.sort_out_garbage(self._config)
        data = self._await_collection(session)
        collection.load_conftests(self._config, data["conftests"])
        tests = collection.restore_tests(session, data["tests"])
        self._tests = tests
        session.items = list(tests)  # type: ignore[arg-type]
        report_collection(session, data["collected"], tests, data["errors"], data["deselected"])
        session.testscollected = len(tests)
        show_collection(self._config, data["collected"], len(tests) + len(data["deselected"]))
        return True

    def _log_collection_errors(self, errors: Sequence[dict[str, Any]]) -> None:
        for report in (unpack_any_report(one, self._config) for one in errors):
            self._config.hook.pytest_collectreport(report=report)

    def _await_collection(self, session: pytest.Session) -> dict[str, Any]:
        source: Name | None = None
        while source is None:
            self._step()
            if self._early_end is not None:
                header, body = self._early_end
                self._log_collection_errors(json.loads(body))
                collection.raise_early_end(session, header)
            self._look_at_place()
            if self._worlds.warm:
                source = next((one for one in self._collections if _is_template(one)), None)
            else:
                source = self._cold_source()
        _, body = self._collections[source]
        data: dict[str, Any] = json.loads(body)
        if not _is_template(source):
            self._compare(data)
        # Plugins may shuffle: tests are counted in the order of the process that has collected.
        self._pool.set_order(data["nodeids"])
        return data

    def _look_at_place(self) -> None:
        """Look how far the place is; raises UsageError if no worker can be started there."""
        try:
            self._place.look()
        except RankwiseError as error:
            raise pytest.UsageError(str(error)) from None
        if self._place.is_ready and not self._worlds.warm and not self._worlds.alive:
            # There is no template, so ranks collect.
            self._worlds.start(1, "exact")

    def _cold_source(self) -> Name | None:
        """Return the first rank, once all ranks of a world have collected."""
        for world in self._worlds.alive.values():
            if all(worker in self._collections for worker in world.workers):
                source = world.workers[0]
                return None if self._isolate(world) else source
        return None

    def _isolate(self, world: World) -> bool:
        """Replace a world in which imports saw several ranks, if no test has more than one.

        In worlds of one rank, modules that ask MPI.COMM_WORLD for its size get the answer of plain
        pytest.
        """
        _, body = self._collections[world.workers[0]]
        sizes = {test["size"] for test in json.loads(body)["tests"]["tests"]}
        if not self._imports_may_use_mpi or world.size == 1 or sizes != {1}:
            return False
        if world.state is WorldState.READY:
            self._collections.clear()
            self._options.every_world = True
            self._worlds.dismiss(world)
            self._worlds.start(1, "exact")
        return True

    def _compare(self, first: Mapping[str, Any]) -> None:
        """Make sure that all ranks have the same tests; an error may be why they have not."""
        own = first["nodeids"]
        for worker, (_, body) in self._collections.items():
            if not isinstance(worker, int):
                continue  # the template of a node that could have one
            data = json.loads(body)
            rank = connections.world_and_rank(worker)[1]
            try:
                collection.require_same_tests(own, rank, data["nodeids"], self._options.width)
            except pytest.UsageError:
                errors = {one["nodeid"]: one for one in (*data["errors"], *first["errors"])}
                self._log_collection_errors(list(errors.values()))
                raise

    def _step(self) -> None:
        try:
            self._pool.step()
        except RankBroken as broken:
            self._end_broken(broken)
        except PoolFailure as failure:
            raise pytest.UsageError(str(failure)) from None
        self._raise_if_refused()
        if self._interrupted is not None:
            collection.raise_interrupt(self._interrupted)

    def _raise_if_refused(self) -> None:
        if self._refused:
            raise pytest.UsageError(self._refused)

    # Messages

    def _take(self, name: Name, header: Header, body: bytes) -> None:
        # The pool knows what ends a rank's session, but only once there are tests.
        has_no_tests = _is_template(name) or self._dispatcher is None
        match header["kind"]:
            # What it has loaded cannot be copied: each rank must load it by itself.
            case "collected" if _is_template(name) and header["unsafe"]:
                self._go_cold(header["unsafe"])
            case "collected":
                self._collections[name] = header, body
            case "refused":
                self._refused = self._refused or str(header["reason"])
            case "ended early":
                self._early_end = self._early_end or (header, body)
            case "fault":
                self._note_fault(name, header)
            case "interrupt" if has_no_tests:
                self._interrupted = self._interrupted or header
            case "broken" if has_no_tests:
                raise RankBroken(header["reason"])
            case _ if isinstance(name, int):
                self._pool.take(name, header, body)
            case _:
                self._take_from_server(name, header, body)

    def _take_from_server(self, name: Name, header: Header, body: bytes) -> None:
        match header["kind"]:
            case "held" | "here" | "mpi":
                self._take_for_place(name, header, body)
            case "launcher ended" if header["world"] == NODE_SUPERVISORS:
                self._node_supervisors_ended()
            case "stranger":
                self._strangers[header["reason"]] += 1
            case "template ended":
                self._template_ended(name)
            case _:
                self._pool.take_from_server(header)

    def _take_for_place(self, name: Name, header: Header, body: bytes) -> None:
        was_ready = self._place.is_ready
        try:
            self._place.take(name, header, body)
        except RankwiseError as error:
            self._refused = self._refused or str(error)
        if self._place.is_ready and not was_ready:
            self._start_first_world()

    def _node_supervisors_ended(self) -> None:
        if not self._place.is_ready:
            said = read_log(self._folder, NODE_SUPERVISORS)
            self._refused = self._refused or (
                f"on the nodes of {self._place.title} pytest could not be started"
                + (f"; this is what was printed:\n{said}" if said else "")
            )

    def _gone(self, name: Name) -> None:
        if isinstance(name, int):
            self._pool.hung_up(name)
        elif name == SUPERVISOR:
            raise PoolFailure("the process that starts the ranks is gone")
        else:
            self._place.gone(name)
            if self._place.lost:
                # Ranks are no longer where their slots were.
                self._worlds.bind(None)
            if not _is_template(name):
                self._pool.doubt()
        if name in self._unheard:
            self._template_ended(self._unheard.pop(name))

    def _template_ended(self, supervisor: Name) -> None:
        node = connections.name_and_node(supervisor)[1]
        template = connections.name_on_node(TEMPLATE, node) if node else TEMPLATE
        if template in self._collections:
            # A test has ended it, or the machine; the ranks have ended with it.
            self._lines.send(supervisor, {"kind": "template"})
            self._lines.flush()
        # What it has said last may still be on its way: judged when its line has closed.
        elif self._lines.has(template):
            self._unheard[template] = supervisor
        elif self._worlds.warm and not (self._refused or self._interrupted or self._early_end):
            module = "a conftest.py"
            # It may be empty: there was no room for it.
            with contextlib.suppress(OSError, ValueError):
                note = (self._folder / "importing").read_bytes()
                module = os.path.relpath(os.fsdecode(note))
            self._imports_may_use_mpi = True
            self._go_cold(f"{module} uses MPI, or ends the process, when it is imported")

    def _go_cold(self, why: str) -> None:
        """Have ranks load everything themselves."""
        if not self._worlds.warm:
            return  # The template of another node was the first to say so.
        self._worlds.warm = False
        self._notices.append(
            f"{why}: ranks import the tests themselves, which makes starting them slower"
        )
        servers = self._place.servers()
        if self._dispatcher is None and sum(map(_is_template, servers)) > 1:
            # Templates of other nodes may make copies, which do not say what they have collected.
            self._pool.drop_all()
        for server in (SUPERVISOR, *servers):
            if connections.name_and_node(server)[0] == SUPERVISOR and self._lines.has(server):
                self._lines.send(server, {"kind": "take over"})
        self._lines.flush()

    # Tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly:
            return None
        collection.raise_for_errors(session)
        while not self._place.is_ready:
            self._step()
            self._look_at_place()
        reporter = self._reporter = Reporter(
            session,
            self._obey_reporter,
            self._tests,
            size=self._options.width,
            rank=None,
            policy=self._policy,
            is_fresh=self._options.fresh,
        )
        self._worlds.know(self._tests)
        try:
            domains = settle_cores(
                self._options, self._place, self._worlds, self._tests, self._step
            )
        except RankwiseError as error:
            raise pytest.UsageError(str(error)) from None
        self._dispatcher = self._make_dispatcher(reporter, domains)
        self._pool.begin(self._tests, self._dispatcher, interop.base_of(self._config))
        self._open_view()
        try:
            self._pool.run()
            # Who waits for a rank that has ended the run will wait for ever.
            patience = max(grace_from(self._config), _INTERRUPTED_SECONDS)
            self._pool.end(patience if self._interrupted is not None else None)
        except RankBroken as broken:
            self._end_broken(broken)
        except PoolFailure as failure:
            reporter.end_session(str(failure))
        finally:
            if self._view is not None:
                self._view.close()
            reporter.save_durations()
        if self._interrupted is not None:
            collection.raise_interrupt(self._interrupted)
        # Every test may have passed: an error at the end of a session fails the run all the same.
        if self._faults:
            details = "\n".join(self._faults)
            reporter.end_session("a worker's session ended with an error", details)
        reporter.conclude()
        return True

    def _open_view(self) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if isinstance(terminal, TerminalReporter) and terminal.isatty:
            from rankwise.pytest_plugin.live_view import live_view

            assert self._dispatcher is not None
            names = [test.nodeid for test in self._tests]
            self._view = live_view(terminal, self._dispatcher, names, self._options.width)

    @property
    def _policy(self) -> str:
        return policy_from(self._config, self._options.policy)

    def _make_dispatcher(self, reporter: Reporter, domains: Domains) -> Dispatcher:
        width, options = self._options.width, self._options
        cases = collection.make_cases(
            self._tests,
            reporter.known_durations(),
            width,
            fresh=options.fresh,
            every_world=options.every_world,
            aligned=self._policy in POLICIES,
        )
        return make_dispatcher(
            self._policy,
            ScheduledSuite(cases=cases, groups=[test.groups for test in self._tests]),
            width=width,
            careful=reporter.careful,
            strict=reporter.strict,
            maxfail=reporter.maxfail,
            domains=domains,
            worlds=self._worlds,
        )

    def _obey_reporter(self, header: Header) -> None:
        match header["kind"]:
            case "stop" if self._dispatcher is not None:
                self._dispatcher.stop()
            case "logged" if self._dispatcher is not None:
                self._dispatcher.logged(header["case"])

    def on_verdict(self, header: Header, body: bytes) -> None:
        self._reporter.take(header, body)

    def on_ending(self, case: int, ending: AbortedTest) -> None:
        test = self._tests[case]
        filter_aborted_output(ending, self._config.getoption("rank_output", "all"))
        reports = report_ending(test, ending, self._config.rootpath)
        if ending.phase in AFTER:
            self._reporter.log_more(test, reports)
        else:
            slots = self._dispatcher.slots_of(case) if self._dispatcher is not None else ()
            self._reporter.log_ended(case, reports, how=ending.how, slots=slots)

    def on_lost(self, words: str) -> None:
        """Fail the run for workers that ended unasked where no test can be blamed."""
        self._lost.append(words)
        self._reporter.fail_session(words)

    def on_debug(self, worker: int, pid: int, words: str) -> None:
        lend_terminal(self._config, self._lines, worker, pid, words)

    def on_look(self) -> None:
        if self._view is not None:
            self._view.refresh()

    def on_interrupt(self, header: Header) -> None:
        assert self._dispatcher is not None
        self._interrupted = self._interrupted or collection.name_rank(header)
        self._dispatcher.stop(at_once=True)

    def _note_fault(self, name: Name, header: Header) -> None:
        if header["is_interrupt"] and self._pool.is_interrupted:
            return
        who = f"rank {connections.world_and_rank(name)[1]}" if isinstance(name, int) else str(name)
        self._faults.setdefault(header["text"], []).append(who)
        if header["interrupt"] is not None and self._interrupted is None:
            self._interrupted = header["interrupt"]

    def _end_broken(self, broken: RankBroken) -> NoReturn:
        """Show an internal error of a rank as if it were one of this process."""
        excinfo = pytest.ExceptionInfo.from_exception(broken)
        self._config.hook.pytest_internalerror(excrepr=str(broken), excinfo=excinfo)
        pytest.exit("internal error on a worker", int(pytest.ExitCode.INTERNAL_ERROR))

    # The end

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_keyboard_interrupt(self) -> Generator[None, None, None]:
        """Wait a moment for ranks to tear down what they have set up."""
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
        for text, ranks in self._faults.items():
            who = ", ".join(dict.fromkeys(ranks))
            terminalreporter.section(f"error at the end of the session of {who}", red=True)
            terminalreporter.write_line(text)
        for words in self._lost:
            terminalreporter.write_line(f"rankwise: ERROR: {words}", red=True)
        for notice in (*self._notices, *dropped):
            terminalreporter.write_line(f"rankwise: {notice}", yellow=True)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """End everything that was started."""
        # The allocation first: servers on its nodes end what they have started.
        self._place.end()
        # It says goodbye by hanging up.
        with contextlib.suppress(PoolFailure):
            self._order_supervisor({"kind": "end"})
            # What others say meanwhile is of no use any more.
            self._lines.collect(lambda _: not self._lines.has(SUPERVISOR), _GOODBYE_SECONDS)
        # One that hangs is not waited for.
        is_gone = not self._lines.has(SUPERVISOR)
        self._lines.close()
        if is_gone:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._supervisor_pid, 0)
        shutil.rmtree(self._folder, ignore_errors=True)


def _is_template(name: Name) -> bool:
    return connections.name_and_node(name)[0] == TEMPLATE
