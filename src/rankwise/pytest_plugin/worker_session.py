"""The pytest session of a process that is one rank of several, and the one under mpirun."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pytest
from _pytest.terminal import TerminalReporter

from rankwise.launch.mpi import mark_as_left
from rankwise.pytest_plugin import collection, fixtures, interop, output
from rankwise.pytest_plugin.communicators import Communicators
from rankwise.pytest_plugin.connections import WireError
from rankwise.pytest_plugin.interop import CombineAnyway, JunitStandIn, MeasureOnly
from rankwise.pytest_plugin.mpirun import GOODBYE_SECONDS, MpirunLink, ReportingRank
from rankwise.pytest_plugin.options import LATE_GC, closest_mark, grace_from, policy_from
from rankwise.pytest_plugin.output import PastCapture
from rankwise.pytest_plugin.reporter import show_notice
from rankwise.pytest_plugin.runtest import Loop, RankRunner

if TYPE_CHECKING:
    from rankwise.pytest_plugin.workers.worker import PoolLink

# Where pytest stores our options for ranks.
OPTIONS = (
    *("n_workers", "scheduler", "rankwise_policy", "nprocs", "world", "test_timeout", "rank_grace"),
    *(
        "leak_check",
        "no_warm_start",
        "bind",
        "rank_output",
        "tmux",
        "timeline",
        "notebooks",
        "too_few",
    ),
)
_USED = pytest.StashKey[bool]()


def note_use(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Note whether one of these tests uses a mark or a fixture of ours."""
    config.stash[_USED] = config.stash.get(_USED, False) or any(map(_uses, items))


def is_used(config: pytest.Config) -> bool:
    """Return whether the command line, the configuration or a collected test uses rankwise."""
    return config.stash.get(_USED, False) or has_option(config)


def has_option(config: pytest.Config) -> bool:
    """Return whether an option or a setting of ours is given."""
    given = (getattr(config.known_args_namespace, name, None) for name in OPTIONS)
    # "all" is the default of --rank-output.
    is_given = any(one is not None and one is not False and one != "all" for one in given)
    return is_given or bool(config.getini("test_timeout") or config.getini("rank_grace"))


def _uses(item: pytest.Item) -> bool:
    mark = closest_mark(item)
    # pytest-mpi has a mark `mpi` too, and acts on it with these options.
    others = ("with_mpi", "only_mpi") if mark is not None and mark.name == "mpi" else ()
    if mark is not None and not any(item.config.getoption(name, False) for name in others):
        return True
    info = getattr(item, "_fixtureinfo", None)
    definitions = getattr(info, "name2fixturedefs", {})
    # The last definition is the one that counts: suites may have a `comm` of their own.
    return any(
        definitions[name][-1].func.__module__ == fixtures.__name__
        for name in fixtures.NAMES
        if definitions.get(name)
    )


# How long ranks may take to tear down their fixtures after Ctrl-C.
_INTERRUPTED_SECONDS = 3.0


LinkType = TypeVar("LinkType", bound="MpirunLink | PoolLink")


class RankSession(Generic[LinkType]):
    """The hooks of a session in which this process is one rank of several."""

    _is_apart = False
    """Whether each rank runs every test by itself, as without rankwise."""

    def __init__(self, config: pytest.Config, link: LinkType) -> None:
        self._config = config
        self._link = link
        self.is_reporter = link.is_reporter
        """Whether this is the process whose output the user sees."""
        self._collection_errors: list[pytest.CollectReport] = []
        self._terminal: TerminalReporter | None = None
        self._has_spoken = False
        """Whether the others know what this process has collected, or why it has not."""
        self._junit: JunitStandIn | None = None

    def add_to(self, config: pytest.Config) -> None:
        """Let pytest call the hooks of this session."""
        config.pluginmanager.register(self, "rankwise-world")
        config.pluginmanager.register(_AfterConfiguration(self), "rankwise-world-late")

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self) -> None:
        """Set what other plugins read when they are configured."""
        interop.append_to_log_file(self._config)
        interop.prepare_rerunfailures()
        seed = self._link.settings["seed"]
        if seed is not None:
            self._config.option.randomly_seed = seed
        if not self.is_reporter:
            # Plugins that find this attribute, which is pytest-xdist's, write no report files.
            self._config.workerinput = {  # type: ignore[attr-defined]
                "workerid": f"rank{self._link.rank}",
                "workercount": self._link.size,
                "testrunuid": self._link.settings["run"],
                "randomly_seed": seed,
            }
            if self._config.getoption("color", "no") == "auto":
                # The output is shown in the terminal of rank 0 or of the controller.
                self._config.option.color = "yes" if self._link.settings["colour"] else "no"

    def rearrange_plugins(self) -> None:
        """Leave reports to rank 0 or the controller, once all plugins are configured."""
        config = self._config
        if self.is_reporter:
            CombineAnyway.add_to(config)
            return
        self._link.speak()
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            # Under mpirun it may be needed again, if the suite does not use rankwise.
            self._terminal = terminal
            config.pluginmanager.unregister(terminal)
            silent = output.SilentReporter(config, columns=self._link.settings["columns"])
            config.pluginmanager.register(silent, "terminalreporter")
            # Live logs and others hold the reporter that was replaced.
            silent.take_over(terminal)
        self._junit = JunitStandIn.add_to(config)
        MeasureOnly.replace_in(config)
        interop.write_no_benchmarks(config)

    def _make_loop(
        self,
        session: pytest.Session,
        past: PastCapture | None,
        reporter: ReportingRank | None = None,
        *,
        at_once: bool = False,
    ) -> Loop:
        """Make what runs tests on this rank."""
        communicators = Communicators.of(self._config)
        assert self._link.comm is not None
        communicators.join(self._link.comm)
        rank = RankRunner(session, communicators, self._link.box)
        self._config.pluginmanager.register(rank, "rankwise-rank")
        if past is not None:
            # Only the process that reports can show these.
            rank.past_capture = past
            rank.sources += [past.take, lambda: interop.take_benchmarks(self._config)]
            rank.sources += [self._junit.take] if self._junit is not None else []
        if self._link.box is not None:
            self._link.box.arm()
        return Loop(session, rank, self._link.channel, reporter, at_once=at_once)

    def _settle_garbage(self) -> None:
        """Enable garbage collection, but let what is loaded be searched rarely.

        It stays until the end, and Python searches all of it again and again as tests make objects:
        that is a good part of the time of short tests.
        """
        collection.spare_what_is_loaded(self._config, is_ours=lambda: not self._is_apart)
        if self._config.stash.get(LATE_GC, False):
            gc.enable()

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Let rank 0 end the run in the way in which something on this rank ends it."""
        if self.is_reporter:
            return
        with contextlib.suppress(WireError):
            self._link.channel.send(collection.describe_interrupt(excinfo.value))
        self._has_spoken = True

    def tell_early_end(self, session: pytest.Session) -> None:
        """Report that no tests come from this process, unless that is known already."""
        # `pytest_cmdline_main` reports usage errors.
        if self._has_spoken or session.exitstatus == pytest.ExitCode.USAGE_ERROR:
            return
        self._has_spoken = True
        with contextlib.suppress(WireError):
            self._link.channel.send(
                *collection.describe_early_end(session, self._collection_errors)
            )


class MpirunSession(RankSession[MpirunLink]):
    """The hooks of a session on a rank that mpirun has started."""

    def __init__(self, config: pytest.Config, link: MpirunLink) -> None:
        super().__init__(config, link)
        self._stragglers: list[int] = []
        self._reporter: ReportingRank | None = None
        self._exit_code = 0
        self._is_over = False
        self._is_cut_off = False
        """Whether the others cannot be reached any more, though the run is not over."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self) -> Generator[None, object, object]:
        """Let rank 0 alone report what is wrong with the command line."""
        try:
            result = yield
        except pytest.UsageError as error:
            if self.is_reporter or self._is_apart:
                raise
            with contextlib.suppress(WireError):
                self._link.channel.send({"kind": "refused", "reason": str(error)})
            result = pytest.ExitCode.USAGE_ERROR
        if not self.is_reporter and not self._is_apart:
            self._say_goodbye()
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self) -> None:
        interop.refuse_xdist(
            self._config,
            "mpirun",
            "Use mpirun with --scheduler=dynamic, which spreads tests on one rank over all ranks",
        )
        super().pytest_configure()

    def _refuse_debuggers(self) -> None:
        option = self._config.getoption
        if option("usepdb", False) or option("trace", False):
            raise pytest.UsageError(
                f"--pdb and --trace need a terminal on every rank, and mpirun gives none to "
                f"{self._link.size - 1} of these {self._link.size} ranks. With --n-workers in "
                f"the place of mpirun, --pdb gives the terminal to the rank that fails."
            )

    @property
    def _scheduler(self) -> str:
        return policy_from(self._config, self._config.getoption("scheduler") or "sequential")

    def pytest_report_header(self) -> list[str]:
        world, scheduler = self._link, self._scheduler
        lines = [f"rankwise: {world.size} ranks, {world.library}, scheduler {scheduler}"]
        if self._config.getoption("bind"):
            lines.append("rankwise: --bind has no effect under mpirun, which binds ranks itself")
        return lines

    # Collection

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self._reporter is None:
            self._collection_errors.append(report)

    # Tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly:
            return None
        self._settle_garbage()
        header, body = collection.describe_collection(session, self._collection_errors)
        try:
            self._link.channel.send({**header, "used": is_used(session.config)}, body)
            self._has_spoken = True
            if self.is_reporter:
                self._lead(session)
            else:
                self._follow(session)
        except WireError as error:
            if not self.is_reporter and not self._is_told_over():
                self._is_cut_off = True
            # pytest shows it at the end, in the place of "stopping after 1 failures".
            if self._reporter is not None:
                self._reporter.end_session(str(error))
            session.shouldfail = str(error)
            raise session.Failed(str(error)) from error
        return None if self._is_apart else True

    def _lead(self, session: pytest.Session) -> None:
        scheduler = self._scheduler
        reporter = self._reporter = ReportingRank(
            session, self._link.channel, size=self._link.size, policy=scheduler
        )
        seconds: float | None = GOODBYE_SECONDS
        try:
            try:
                collections = reporter.gather_collections()
            except WireError as error:
                raise pytest.UsageError(str(error)) from None
            if not reporter.is_rankwise_used(collections):
                self._let_all_go_apart(session)
                return
            self._refuse_debuggers()
            loop = self._make_loop(session, None, reporter)
            reporter.log_collection_errors(collections)
            collection.raise_for_errors(session)
            reporter.agree_on_order(collections, interop.base_of(self._config))
            reporter.begin(scheduler, self._link.domains())
            loop.run()
            seconds = None
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, pytest.exit.Exception)):
                # Others may wait for this rank in a test, and would wait for ever.
                seconds = max(grace_from(self._config), _INTERRUPTED_SECONDS)
            self._link.channel.send({"kind": "stop", "at_once": True})
            raise
        finally:
            # Plugins such as pytest-cov combine afterwards what the ranks have written.
            self._stragglers = reporter.await_others(seconds)
            self._is_cut_off = self._is_cut_off or bool(reporter.lost)
            if self._is_apart:
                self._go_apart()
        reporter.conclude()

    def _follow(self, session: pytest.Session) -> None:
        header, body = self._link.channel.receive()
        if header["kind"] == "apart":
            self._go_apart()
            if self._terminal is not None:
                output.speak_up(self._config, session, self._terminal)
            output.write_own_junit(self._config, header["junit"], self._terminal)
        elif header["kind"] == "order":
            loop = self._make_loop(session, output.WriterOnly(self._config))
            if self._link.shares_host_with_reporter:
                # Below the temporary files of rank 0, so that a run leaves one folder.
                interop.move_below(self._config, header["temporary"], f"rank{self._link.rank}")
            if body:
                loop.adopt(json.loads(body))
            loop.run()
            loop.rank.note_end()

    # A suite that does not use rankwise

    def _let_all_go_apart(self, session: pytest.Session) -> None:
        """Let every rank run every test by itself, as it would without rankwise."""
        junit = self._config.getoption("xmlpath", None)
        self._link.channel.send({"kind": "share", "what": "apart", "junit": junit})
        if session.items:
            show_notice(
                self._config,
                f"no test has a rankwise mark, so each of the {self._link.size} ranks runs "
                f"every test; --scheduler=sequential gives each test to one",
            )
        self._is_apart = True

    def _go_apart(self) -> None:
        """Continue as a pytest of its own; MPI stays initialized until Python ends."""
        self._is_apart = True
        self._config.pluginmanager.unregister(self)
        # Until then, a pytest that a test starts must not take itself for a rank.
        self._config.add_cleanup(mark_as_left)
        self._link.leave()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send failures to the coordinator: this process may be killed before it prints them."""
        if self._reporter is not None and report.failed:
            header = {"kind": "noted", "test": report.nodeid, "text": report.longreprtext}
            self._link.channel.put(header)

    # The end

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self._exit_code = int(exitstatus)
        if not self.is_reporter and exitstatus != pytest.ExitCode.INTERNAL_ERROR:
            # The exit code of the run is that of rank 0.
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        mark_as_left()
        if self._stragglers:
            print(f"rankwise: ranks {self._stragglers} did not end; all ranks are stopped")
        if self._stragglers or self._is_cut_off:
            # MPI_Finalize would wait for ranks that are gone, or that wait themselves.
            self._link.abort(self._exit_code)
        if self.is_reporter:
            self._link.leave()
            return
        # Otherwise `pytest_cmdline_main` reports a usage error first: rank 0 waits for it.
        if self._has_spoken:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        """Wait for the end of the run, on a rank that has nothing left to do; idempotent."""
        if self._link.box is not None:
            # No time limit any more: rank 0 may take as long as it needs.
            self._link.box.rest()
        # If rank 0 has gone, its last message may still be there to be read.
        with contextlib.suppress(WireError):
            self._link.channel.send({"kind": "bye"})
        if not self._is_told_over():
            # Rank 0 or its coordinator has ended without a word, which must not look like success.
            self._link.abort(self._exit_code)

    def _is_told_over(self) -> bool:
        """Wait until rank 0 ends the run; returns whether it has said so.

        If rank 0 waits for this rank in a test, it cannot: then the coordinator aborts all ranks.
        """
        with contextlib.suppress(WireError):
            while not self._is_over:
                header, _ = self._link.channel.receive()
                if header["kind"] == "abort":
                    self._link.abort(header["code"])
                self._is_over = header["kind"] == "over"
        return self._is_over


# Options that let pytest print something and end, without a run.
_QUESTIONS = ("help", "version", "markers", "cacheshow", "showfixtures", "show_fixtures_per_test")


class _AfterConfiguration:
    """Hooks that `RankSession` needs at a second place in their order."""

    def __init__(self, session: RankSession[Any]) -> None:
        self._session = session

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int | None:
        """Let rank 0 alone answer options such as --help."""
        asked = any(config.getoption(name, False) for name in _QUESTIONS)
        return None if self._session.is_reporter or not asked else int(pytest.ExitCode.OK)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        self._session.rearrange_plugins()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self._session.is_reporter:
            self._session.tell_early_end(session)
