"""A pytest session under mpirun: one process that the user sees, and its silent peers."""

from __future__ import annotations

import contextlib
import gc
import json
import secrets
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from _pytest.tmpdir import TempPathFactory

from rankwise.launch.mpi import mark_as_left
from rankwise.testing.communicators import Communicators
from rankwise.testing.crew.loop import Loop
from rankwise.testing.crew.rank import Rank
from rankwise.testing.crew.reporting_rank import CollectionsDiffer, ReportingRank
from rankwise.testing.crew.silence import SilentReporter
from rankwise.testing.crew.world import Settings, World
from rankwise.testing.interop import randomly, rerunfailures
from rankwise.testing.interop.coverage import CombineAnyway, MeasureOnly
from rankwise.testing.listing import describe_collection
from rankwise.testing.wire import WireError


class WorldSession:
    """The hooks of a session in which this process is one rank of several."""

    def __init__(self, config: pytest.Config, world: World, *, collects_garbage: bool) -> None:
        self._config = config
        self._world = world
        self._collects_garbage = collects_garbage
        self._collection_errors: list[pytest.CollectReport] = []
        self._stragglers: list[int] = []
        self._reporter: ReportingRank | None = None
        self._exit_code = 0

    @staticmethod
    def settle(config: pytest.Config) -> Settings:
        """Decide on rank 0 what must be the same on all ranks, before options are fully read."""
        return {"seed": randomly.settle_seed(config), "run": secrets.token_hex(16)}

    @classmethod
    def register(cls, config: pytest.Config, world: World, *, collects_garbage: bool) -> None:
        """Take part in the session that is about to be configured.

        Garbage collection is off until the first test; then it is as it was.
        """
        cls(config, world, collects_garbage=collects_garbage).add_to(config)

    def add_to(self, config: pytest.Config) -> None:
        """Let pytest call the hooks of this session."""
        config.pluginmanager.register(self, "rankwise-world")
        config.pluginmanager.register(_AfterConfiguration(self), "rankwise-world-late")

    @property
    def is_reporter(self) -> bool:
        """Whether this is the process that the user sees."""
        return self._world.is_reporter

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self) -> Generator[None, object, object]:
        """Leave it to rank 0 to say what is wrong with the command line, for it says it once."""
        try:
            return (yield)
        except pytest.UsageError as error:
            if self._world.is_reporter:
                raise
            with contextlib.suppress(WireError):
                self._world.channel.send({"kind": "refused", "reason": str(error)})
            return pytest.ExitCode.USAGE_ERROR

    # Configuration

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self) -> None:
        """Settle what other plugins read when they are configured."""
        self._refuse_what_cannot_work()
        rerunfailures.prepare_configuration()
        seed = self._world.settings["seed"]
        if seed is not None:
            self._config.option.randomly_seed = seed
        if not self._world.is_reporter:
            # By this plugins know a process that must not write report files.
            self._config.workerinput = {  # type: ignore[attr-defined]
                "workerid": f"rank{self._world.rank}",
                "workercount": self._world.size,
                "testrunuid": self._world.settings["run"],
                "randomly_seed": seed,
            }

    def _refuse_what_cannot_work(self) -> None:
        option = self._config.getoption
        if option("usepdb", False) or option("trace", False):
            raise pytest.UsageError(
                f"--pdb and --trace need a terminal on every rank, and mpirun gives none to "
                f"{self._world.size - 1} of these {self._world.size} ranks. With --n-workers in "
                f"the place of mpirun, --pdb gives the terminal to the rank that fails."
            )
        if option("dist", "no") != "no" or option("numprocesses", None):
            raise pytest.UsageError(
                "pytest-xdist (-n) and mpirun cannot both start the processes. Use mpirun with "
                "--scheduler=dynamic, which spreads tests on one rank over all ranks as -n does. "
                "If -n is not on the command line but in a configuration file, add -n 0."
            )

    def rearrange_plugins(self) -> None:
        """Leave reporting to rank 0, once all plugins are configured."""
        config = self._config
        if self._world.is_reporter:
            CombineAnyway.add_to(config)
            return
        self._world.speak()
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            config.pluginmanager.unregister(terminal)
            config.pluginmanager.register(SilentReporter(config), "terminalreporter")
        MeasureOnly.replace_in(config)

    @property
    def _scheduler(self) -> str:
        # --stepwise takes everything before the failing test as done, so that has to be true.
        stepwise = self._config.getoption("stepwise", False)
        return "sequential" if stepwise else self._config.getoption("scheduler") or "sequential"

    def pytest_report_header(self) -> str:
        world, scheduler = self._world, self._scheduler
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
        communicators = self._config.stash[Communicators.KEY]
        communicators.join(self._world.comm)
        rank = Rank(session, communicators, self._world.box)
        self._config.pluginmanager.register(rank, "rankwise-rank")
        self._settle_garbage()
        try:
            if self._world.box is not None:
                self._world.box.arm()
            self._world.channel.send(*describe_collection(session, self._collection_errors))
            if self._world.is_reporter:
                self._lead(session, rank)
            else:
                self._follow(session, rank)
        except WireError as error:
            # What pytest shows at the end, in the place of "stopping after 1 failures".
            session.shouldfail = str(error)
            raise session.Failed(str(error)) from error
        return True

    def _settle_garbage(self) -> None:
        """Let garbage be collected as usual from now on, but not looked for in what is loaded.

        That stays until the end; looking through it again and again, which Python does as tests
        make objects, is a good part of the time of short tests.
        """
        gc.freeze()
        if self._collects_garbage:
            gc.enable()

    def _lead(self, session: pytest.Session, rank: Rank) -> None:
        scheduler = self._scheduler
        reporter = self._reporter = ReportingRank(
            session,
            self._world.channel,
            size=self._world.size,
            in_order=scheduler == "sequential",
        )
        self._arrange_terminal(scheduler)
        times = self._config.pluginmanager.get_plugin("rankwise-timeline")
        if times is not None:
            times.know(width=self._world.size, order=scheduler)
        try:
            try:
                collections = reporter.gather_collections()
            except WireError as error:
                raise pytest.UsageError(str(error)) from None
            reporter.log_collection_errors(collections)
            if session.testsfailed and not session.config.option.continue_on_collection_errors:
                errors = "error" if session.testsfailed == 1 else "errors"
                raise session.Interrupted(f"{session.testsfailed} {errors} during collection")
            try:
                reporter.agree_on_order(collections, str(self._temporary.getbasetemp()))
            except CollectionsDiffer as difference:
                raise pytest.UsageError(str(difference)) from None
            reporter.begin(scheduler)
            loop = Loop(session, rank, self._world.channel, reporter)
            rank.on_failure = loop.tell_of_failure
            loop.run()
        except BaseException:
            self._world.channel.send({"kind": "stop", "at_once": True})
            raise
        finally:
            # pytest-cov and its like combine what the ranks have written when this is over.
            self._stragglers = reporter.await_others()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)

    def _arrange_terminal(self, scheduler: str) -> None:
        """Show file names before the dots only where tests come in their order."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if scheduler != "sequential" and isinstance(terminal, TerminalReporter):
            terminal.showfspath = False

    def _follow(self, session: pytest.Session, rank: Rank) -> None:
        loop = Loop(session, rank, self._world.channel, None)
        rank.on_failure = loop.tell_of_failure
        header, body = self._world.channel.receive()
        if header["kind"] == "order":
            self._share_temporary_folder(header["temporary"])
            if body:
                loop.adopt(json.loads(body))
            loop.run()

    @property
    def _temporary(self) -> TempPathFactory:
        factory = self._config._tmp_path_factory  # type: ignore[attr-defined]
        assert isinstance(factory, TempPathFactory)
        return factory

    def _share_temporary_folder(self, base: str) -> None:
        """Put this rank's temporary files below rank 0's, so that a run leaves one folder."""
        if self._world.shares_host_with_reporter and self._temporary._basetemp is None:
            self._temporary._given_basetemp = Path(base) / f"rank{self._world.rank}"

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Let it be known elsewhere what has failed: this process may be ended before it tells."""
        if self._reporter is not None and report.failed:
            header = {"kind": "noted", "test": report.nodeid, "text": report.longreprtext}
            self._world.channel.put(header)

    # The end

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Let rank 0 end the run the way that something on this rank wants it ended."""
        if self._world.is_reporter:
            return
        header = {
            "kind": "interrupt",
            "exit": isinstance(excinfo.value, pytest.exit.Exception),
            "reason": str(excinfo.value),
            "code": getattr(excinfo.value, "returncode", None),
        }
        with contextlib.suppress(WireError):
            self._world.channel.send(header)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self._exit_code = int(exitstatus)
        if not self._world.is_reporter and exitstatus != pytest.ExitCode.INTERNAL_ERROR:
            # The run's exit code is what rank 0 says.
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        mark_as_left()
        if self._stragglers:
            print(f"rankwise: ranks {self._stragglers} did not end; all ranks are ended now")
            self._world.abort(self._exit_code)
        if not self._world.is_reporter:
            with contextlib.suppress(WireError):
                self._world.channel.send({"kind": "bye"})
        else:
            self._world.leave()


# Options that let pytest print what it knows and end.
_QUESTIONS = ("help", "markers", "cacheshow", "showfixtures", "show_fixtures_per_test")


class _AfterConfiguration:
    """A second place in the order of hooks, where `WorldSession` has a first one."""

    def __init__(self, session: WorldSession) -> None:
        self._session = session

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int | None:
        """Let rank 0 alone answer."""
        asked = any(config.getoption(name, False) for name in _QUESTIONS)
        return None if self._session.is_reporter or not asked else int(pytest.ExitCode.OK)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        self._session.rearrange_plugins()
