"""The pytest session of a process that is one rank of several."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pytest
from _pytest.terminal import TerminalReporter

from rankwise.launch.mpi import mark_as_left
from rankwise.pytest_plugin import fixtures, interop
from rankwise.pytest_plugin.collection import (
    describe_collection,
    describe_early_end,
    describe_interrupt,
    raise_for_errors,
    spare_what_is_loaded,
)
from rankwise.pytest_plugin.communicators import Communicators
from rankwise.pytest_plugin.connections import WireError
from rankwise.pytest_plugin.interop import CombineAnyway, JunitStandIn, MeasureOnly
from rankwise.pytest_plugin.mpirun import GOODBYE_SECONDS, MpirunLink, ReportingRank
from rankwise.pytest_plugin.options import closest_mark, grace_from, policy_from
from rankwise.pytest_plugin.output import (
    PastCapture,
    SilentReporter,
    WriterOnly,
    speak_up,
    write_own_junit,
)
from rankwise.pytest_plugin.reporter import show_notice
from rankwise.pytest_plugin.runtest import Loop, RankRunner

if TYPE_CHECKING:
    from rankwise.pytest_plugin.workers.worker import PoolLink

OPTIONS = (
    *("n_workers", "scheduler", "rankwise_policy", "nprocs", "world", "test_timeout", "rank_grace"),
    *("leak_check", "no_warm_start", "bind", "rank_output", "tmux", "timeline", "notebooks"),
)
_USED = pytest.StashKey[bool]()


def note_use(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Note whether one of these tests has a mark or a fixture of ours."""
    config.stash[_USED] = config.stash.get(_USED, False) or any(map(_uses, items))


def is_used(config: pytest.Config) -> bool:
    """Return whether the command line or a test that was collected wants something of rankwise."""
    return config.stash.get(_USED, False) or has_option(config)


def has_option(config: pytest.Config) -> bool:
    """Return whether an option or a setting of ours is given."""
    given = (getattr(config.known_args_namespace, name, None) for name in OPTIONS)
    is_given = any(one is not None and one is not False and one != "all" for one in given)
    return is_given or bool(config.getini("test_timeout") or config.getini("rank_grace"))


def _is_for_pytest_mpi(config: pytest.Config) -> bool:
    """Return whether pytest-mpi, which has a mark of that name, is asked to act on its marks."""
    return any(config.getoption(name, False) for name in ("with_mpi", "only_mpi"))


def _uses(item: pytest.Item) -> bool:
    mark = closest_mark(item)
    if mark is not None and not (mark.name == "mpi" and _is_for_pytest_mpi(item.config)):
        return True
    info = getattr(item, "_fixtureinfo", None)
    definitions = getattr(info, "name2fixturedefs", {})
    # The last one is what the test gets: suites may have a `comm` of their own.
    return any(
        definitions[name][-1].func.__module__ == fixtures.__name__
        for name in fixtures.NAMES
        if definitions.get(name)
    )


# So long ranks may take to tear down what they have set up, after Ctrl-C.
_INTERRUPTED_SECONDS = 3.0


LinkType = TypeVar("LinkType", bound="MpirunLink | PoolLink")


class RankSession(Generic[LinkType]):
    """The hooks of a session in which this process is one rank of several."""

    _is_apart = False
    """Whether each rank runs every test, as without rankwise."""

    def __init__(self, config: pytest.Config, link: LinkType, *, collects_garbage: bool) -> None:
        """Garbage collection is off until the first test; then it is as it was."""
        self._config = config
        self._link = link
        self._collects_garbage = collects_garbage
        self._collection_errors: list[pytest.CollectReport] = []
        self._terminal: TerminalReporter | None = None
        self._has_spoken = False
        """Whether others know what this process has collected, or why it has not."""
        self._junit: JunitStandIn | None = None

    def add_to(self, config: pytest.Config) -> None:
        """Let pytest call the hooks of this session."""
        config.pluginmanager.register(self, "rankwise-world")
        config.pluginmanager.register(_AfterConfiguration(self), "rankwise-world-late")

    @property
    def is_reporter(self) -> bool:
        """Whether this is the process that the user sees."""
        return self._link.is_reporter

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self) -> None:
        """Settle what other plugins read when they are configured."""
        interop.share(self._config)
        interop.prepare_configuration()
        seed = self._link.settings["seed"]
        if seed is not None:
            self._config.option.randomly_seed = seed
        if not self._link.is_reporter:
            # By this plugins know a process that must not write report files.
            self._config.workerinput = {  # type: ignore[attr-defined]
                "workerid": f"rank{self._link.rank}",
                "workercount": self._link.size,
                "testrunuid": self._link.settings["run"],
                "randomly_seed": seed,
            }
            if self._config.getoption("color", "no") == "auto":
                # What is written here is shown where rank 0 or the controller writes.
                self._config.option.color = "yes" if self._link.settings["colour"] else "no"

    def rearrange_plugins(self) -> None:
        """Leave reporting to rank 0, once all plugins are configured."""
        config = self._config
        if self._link.is_reporter:
            CombineAnyway.add_to(config)
            return
        self._link.speak()
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            self._terminal = terminal
            config.pluginmanager.unregister(terminal)
            silent = SilentReporter(config, columns=self._link.settings["columns"])
            config.pluginmanager.register(silent, "terminalreporter")
            silent.take_over(terminal)
        self._junit = JunitStandIn.add_to(config)
        MeasureOnly.replace_in(config)
        interop.measure_only(config)

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
            self._listen(rank, past)
        if self._link.box is not None:
            self._link.box.arm()
        return Loop(session, rank, self._link.channel, reporter, at_once=at_once)

    def _listen(self, rank: RankRunner, past: PastCapture) -> None:
        """Have a rank say beside its reports what only the process that reports can show."""
        rank.past_capture = past
        rank.sources += [past.take, lambda: interop.take(self._config)]
        if self._junit is not None:
            rank.sources.append(self._junit.take)

    def _settle_garbage(self) -> None:
        """Let garbage be collected as usual from now on, but seldom looked for in what is loaded.

        That stays until the end; looking through it again and again, which Python does as tests
        make objects, is a good part of the time of short tests.
        """
        spare_what_is_loaded(self._config, is_ours=lambda: not self._is_apart)
        if self._collects_garbage:
            gc.enable()

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Let rank 0 end the run the way that something on this rank wants it ended."""
        if self._link.is_reporter:
            return
        with contextlib.suppress(WireError):
            self._link.channel.send(describe_interrupt(excinfo.value))
        self._has_spoken = True

    def tell_early_end(self, session: pytest.Session) -> None:
        """Let it be known that there will be no tests from here, if nothing else has said so."""
        # Who is told of a usage error is told by `pytest_cmdline_main`.
        if self._has_spoken or session.exitstatus == pytest.ExitCode.USAGE_ERROR:
            return
        self._has_spoken = True
        with contextlib.suppress(WireError):
            self._link.channel.send(*describe_early_end(session, self._collection_errors))


class MpirunSession(RankSession[MpirunLink]):
    """The hooks of a session on a rank that mpirun has started."""

    def __init__(self, config: pytest.Config, link: MpirunLink, *, collects_garbage: bool) -> None:
        super().__init__(config, link, collects_garbage=collects_garbage)
        self._stragglers: list[int] = []
        self._reporter: ReportingRank | None = None
        self._is_apart = False
        self._exit_code = 0
        self._is_over = False
        self._is_cut_off = False
        """Whether the others can no longer be reached, though the run is not over."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self) -> Generator[None, object, object]:
        """Leave it to rank 0 to say what is wrong with the command line, for it says it once."""
        try:
            result = yield
        except pytest.UsageError as error:
            if self._link.is_reporter or self._is_apart:
                raise
            with contextlib.suppress(WireError):
                self._link.channel.send({"kind": "refused", "reason": str(error)})
            result = pytest.ExitCode.USAGE_ERROR
        if not self._link.is_reporter and not self._is_apart:
            self._say_goodbye()
        return result

    # Configuration

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

    def pytest_report_header(self) -> str:
        world, scheduler = self._link, self._scheduler
        return f"rankwise: {world.size} ranks, {world.library}, scheduler {scheduler}"

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
        header, body = describe_collection(session, self._collection_errors)
        try:
            self._link.channel.send({**header, "used": is_used(session.config)}, body)
            self._has_spoken = True
            if self._link.is_reporter:
                self._lead(session)
            else:
                self._follow(session)
        except WireError as error:
            if not self._link.is_reporter and not self._is_told_over():
                self._is_cut_off = True
            # What pytest shows at the end, in the place of "stopping after 1 failures".
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
            raise_for_errors(session)
            reporter.agree_on_order(collections, interop.base_of(self._config))
            reporter.begin(scheduler)
            loop.run()
            seconds = None
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, pytest.exit.Exception)):
                # Who waits for this rank in a test will wait for ever.
                seconds = max(grace_from(self._config), _INTERRUPTED_SECONDS)
            self._link.channel.send({"kind": "stop", "at_once": True})
            raise
        finally:
            # pytest-cov and its like combine what the ranks have written when this is over.
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
                speak_up(self._config, session, self._terminal)
            write_own_junit(self._config, header["junit"])
        elif header["kind"] == "order":
            loop = self._make_loop(session, WriterOnly(self._config))
            self._share_temporary_folder(header["temporary"])
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
                f"no test has a mark of rankwise, so each of the {self._link.size} ranks runs "
                f"every test; --scheduler=sequential gives each test to one",
            )
        self._is_apart = True

    def _go_apart(self) -> None:
        """Be a pytest of its own from now on; MPI runs on, and ends when Python does."""
        self._is_apart = True
        self._config.pluginmanager.unregister(self)
        # Until then, a pytest that a test starts is not one of the ranks.
        self._config.add_cleanup(mark_as_left)
        self._link.leave()

    def _share_temporary_folder(self, base: str) -> None:
        """Put this rank's temporary files below rank 0's, so that a run leaves one folder."""
        if self._link.shares_host_with_reporter:
            interop.move_below(self._config, base, f"rank{self._link.rank}")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Let it be known elsewhere what has failed: this process may be ended before it tells."""
        if self._reporter is not None and report.failed:
            header = {"kind": "noted", "test": report.nodeid, "text": report.longreprtext}
            self._link.channel.put(header)

    # The end

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self._exit_code = int(exitstatus)
        if not self._link.is_reporter and exitstatus != pytest.ExitCode.INTERNAL_ERROR:
            # The run's exit code is what rank 0 says.
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        mark_as_left()
        if self._stragglers:
            print(f"rankwise: ranks {self._stragglers} did not end; all ranks are ended now")
        if self._stragglers or self._is_cut_off:
            # MPI would wait for ranks that are gone, or that wait themselves.
            self._link.abort(self._exit_code)
        if self._link.is_reporter:
            self._link.leave()
            return
        # What has yet to be said, `pytest_cmdline_main` says: rank 0 waits for it.
        if self._has_spoken:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        """Wait for the end of the run on a rank that has nothing more to do; idempotent."""
        if self._link.box is not None:
            # From now on it is rank 0 that takes its time.
            self._link.box.rest()
        # What rank 0 said at its end may be there to be read though nobody listens any more.
        with contextlib.suppress(WireError):
            self._link.channel.send({"kind": "bye"})
        if not self._is_told_over():
            # Rank 0, or what it has started, ended without a word: this must not look like success.
            self._link.abort(self._exit_code)

    def _is_told_over(self) -> bool:
        """Wait for the end of the run; tell whether rank 0 has said that it is over."""
        if not self._is_over:
            with contextlib.suppress(WireError):
                self._await_end()
                self._is_over = True
        return self._is_over

    def _await_end(self) -> None:
        """Stay until rank 0 has ended the run; if it waits for this rank in a test, it cannot.

        Raises WireError when it has ended without saying so.
        """
        while True:
            header, _ = self._link.channel.receive()
            if header["kind"] == "over":
                return
            if header["kind"] == "abort":
                self._link.abort(header["code"])


# Options that let pytest print what it knows and end.
_QUESTIONS = ("help", "version", "markers", "cacheshow", "showfixtures", "show_fixtures_per_test")


class _AfterConfiguration:
    """A second place in the order of hooks, where `RankSession` has a first one."""

    def __init__(self, session: RankSession[Any]) -> None:
        self._session = session

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int | None:
        """Let rank 0 alone answer."""
        asked = any(config.getoption(name, False) for name in _QUESTIONS)
        return None if self._session.is_reporter or not asked else int(pytest.ExitCode.OK)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        self._session.rearrange_plugins()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self._session.is_reporter:
            self._session.tell_early_end(session)
