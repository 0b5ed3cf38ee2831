"""Other plugins: benchmark, stepwise, cov, junit, logging, mpi-pytest, pytest-mpi and others."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest
from _pytest._io import get_terminal_width
from _pytest._io.terminalwriter import should_do_markup
from _pytest.cacheprovider import Cache
from _pytest.junitxml import LogXML, xml_key
from _pytest.tmpdir import TempPathFactory

if TYPE_CHECKING:
    from rankwise.pytest_plugin.collection import ListedTest

_FIELDS = ("name", "fullname", "group", "param", "params", "extra_info")


def write_no_benchmarks(config: pytest.Config) -> None:
    """Leave the files of pytest-benchmark to the process that reports."""
    session = getattr(config, "_benchmarksession", None)
    if session is not None:
        # It would write one file for each rank.
        session.json = session.save = session.autosave = None


def take_benchmarks(config: pytest.Config) -> dict[str, Any]:
    """Return what pytest-benchmark has measured since the last call."""
    session = getattr(config, "_benchmarksession", None)
    if session is None or not session.benchmarks:
        return {}
    measured = []
    for one in session.benchmarks:
        known = one.as_dict(include_data=False, stats=False)
        data = {"iterations": one.iterations, "data": list(one.stats.data)}
        data |= {name: known[name] for name in (*_FIELDS, "options")}
        measured.append({**data, "has_error": bool(one.has_error)})
    session.benchmarks.clear()
    return {"benchmarks": measured}


def record_benchmarks(config: pytest.Config, said: Sequence[Mapping[str, Any]]) -> None:
    """Pass what the first of several ranks has measured to pytest-benchmark.

    Under mpirun this process may be that rank, and have it already.
    """
    session = getattr(config, "_benchmarksession", None)
    measured = next((one["benchmarks"] for one in said if "benchmarks" in one), ())
    if session is None or not measured:
        return
    from pytest_benchmark.stats import Metadata

    # By name: a test has one benchmark.
    known = {one.fullname for one in session.benchmarks}
    for one in measured:
        if one["fullname"] in known:
            continue
        fixture = SimpleNamespace(cprofile_stats=None, has_error=one["has_error"])
        vars(fixture).update({name: one[name] for name in _FIELDS})
        restored = Metadata(fixture, one["iterations"], one["options"])
        restored.stats.data = one["data"]
        session.benchmarks.append(restored)


def describe_cache(config: pytest.Config) -> dict[str, Any]:
    """Return what --stepwise has decided in the process that has collected the tests."""
    info = _stepwise_info(config)
    if info is None:
        return {}
    return {"test_count": info.last_test_count, "forget": info.last_failed is None}


def adopt_cache(config: pytest.Config, said: dict[str, Any], tests: Sequence[ListedTest]) -> None:
    """Pass that, and the tests, to the plugins of this process, which write pytest's cache."""
    newest = config.pluginmanager.get_plugin("nfplugin")
    if newest is not None:
        newest.cached_nodeids.update(test.id for test in tests)
    info = _stepwise_info(config)
    if info is not None and said:
        info.last_test_count = said["test_count"]
        if said["forget"]:
            info.last_failed = None


def _stepwise_info(config: pytest.Config) -> Any:
    plugin = config.pluginmanager.get_plugin("stepwiseplugin")
    return getattr(plugin, "cached_info", None)


def _cov_controller(config: pytest.Config) -> Any:
    """Return the controller of pytest-cov; None: it does not measure."""
    return getattr(config.pluginmanager.get_plugin("_cov"), "cov_controller", None)


class MeasureOnly:
    """Takes the place of pytest-cov on a rank that does not report: it measures only."""

    def __init__(self, controller: Any, *, per_test: bool) -> None:
        self.cov_controller = controller  # where the `cov` fixture looks for it
        self._per_test = per_test

    @classmethod
    def replace_in(cls, config: pytest.Config) -> None:
        """Keep the measurement that pytest-cov has started, but none of its reports."""
        if (controller := _cov_controller(config)) is not None:
            config.pluginmanager.unregister(name="_cov")
            per_test = config.getoption("cov_context", None) == "test"
            config.pluginmanager.register(cls(controller, per_test=per_test), "_cov")

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        if self._per_test:
            from pytest_cov.plugin import TestContextPlugin

            session.config.pluginmanager.register(TestContextPlugin(self.cov_controller))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Pause the measurement in tests with `no_cover`."""
        fixtures = getattr(item, "fixturenames", ())
        if not item.get_closest_marker("no_cover") and "no_cover" not in fixtures:
            return (yield)
        self.cov_controller.pause()
        try:
            return (yield)
        finally:
            self.cov_controller.resume()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Write the data to a file of this rank, which rank 0 combines with its own."""
        self.cov_controller.cov.stop()
        self.cov_controller.cov.save()


class CombineAnyway:
    """Combines the data of all ranks on rank 0 when pytest-cov does not.

    It does not when a run ends early (-x, Ctrl-C), but the other ranks have written their files,
    which the next run would count as its own.
    """

    def __init__(self, controller: Any) -> None:
        self._controller = controller

    @classmethod
    def add_to(cls, config: pytest.Config) -> None:
        """Register it if pytest-cov measures in this run."""
        if (controller := _cov_controller(config)) is not None:
            config.pluginmanager.register(cls(controller))

    def pytest_sessionfinish(self) -> None:
        if self._controller.started:
            self._controller.finish()


# The class of test cases in JUnit files for errors outside of tests.
_CLASS = "rankwise"
_errors_key = pytest.StashKey[int]()


class JunitStandIn:
    """Takes the place of pytest's writer of JUnit files on a rank, for fixtures that use it."""

    def __init__(self, family: str) -> None:
        self.family = family
        self._added: dict[str, list[tuple[str, str]]] = {}

    @classmethod
    def add_to(cls, config: pytest.Config) -> JunitStandIn | None:
        """Register it if this run writes a JUnit file; None: it does not."""
        if not config.getoption("xmlpath", None):
            return None
        stand_in = cls(str(config.getini("junit_family")))
        # It has the methods that fixtures use.
        config.stash[xml_key] = cast("LogXML", stand_in)
        # At the end pytest unregisters what is in the stash.
        config.pluginmanager.register(stand_in, "rankwise-junit")
        return stand_in

    def node_reporter(self, _report: object) -> JunitStandIn:
        """Return the object that takes attributes of a test: itself, as only one test runs."""
        return self

    def add_attribute(self, name: str, value: object) -> None:
        """Add an attribute to the test that runs."""
        self._added.setdefault("attributes", []).append((str(name), str(value)))

    def add_global_property(self, name: object, value: object) -> None:
        """Add a property to the whole suite; raises TypeError, as pytest does."""
        __tracebackhide__ = True
        if not isinstance(name, str):
            kind = type(name).__name__
            raise TypeError(f"name parameter needs to be a string, but {kind} given")
        self._added.setdefault("properties", []).append((name, str(value)))

    def take(self) -> dict[str, Any]:
        """Return what was added since the last call."""
        added, self._added = self._added, {}
        return added


def add_error(config: pytest.Config, words: str) -> None:
    """Add an error that is in no test to the JUnit file: a CI may read nothing else."""
    xml = config.stash.get(xml_key, None)
    if not isinstance(xml, LogXML):
        return
    number = config.stash[_errors_key] = config.stash.get(_errors_key, 0) + 1
    # Two errors of one name would be one case.
    name = f"session ({number})" if number > 1 else "session"
    case = xml.node_reporter(f"{_CLASS}::{name}")
    case.attrs.update(classname=_CLASS, name=name)
    case._add_simple("error", words.partition("\n")[0], words)


def record_properties(
    config: pytest.Config, report: pytest.TestReport, said: Mapping[str, Any]
) -> None:
    """Add to the JUnit file what a test has recorded on a rank."""
    xml = config.stash.get(xml_key, None)
    if not isinstance(xml, LogXML):
        return
    for name, value in said.get("attributes", ()):
        xml.node_reporter(report).add_attribute(name, value)
    for name, value in said.get("properties", ()):
        # Every rank sets up the fixtures of the session, and records the same.
        if (name, value) not in xml.global_properties:
            xml.add_global_property(name, value)


def _empty_log_file(config: pytest.Config) -> None:
    """Empty the file of --log-file, unless its mode is "a", before any process opens it."""
    known = config.known_args_namespace
    # With -p no:logging there are neither options nor values of the ini file. pytest reports other
    # errors itself, when it opens the file.
    with contextlib.suppress(ValueError, OSError):
        path = getattr(known, "log_file", None) or config.getini("log_file")
        mode = getattr(known, "log_file_mode", None) or config.getini("log_file_mode")
        if path and mode != "a":
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text("")


def append_to_log_file(config: pytest.Config) -> None:
    """Open the file of --log-file in mode "a": otherwise the processes overwrite each other."""
    if config.getoption("log_file_mode", "") != "":
        config.option.log_file_mode = "a"


class ActsAsPytestMpi:
    """The options of pytest-mpi, and what its marks mean with them, where it is not installed."""

    _HELP: ClassVar[Mapping[str, str]] = {
        "--with-mpi": "of pytest-mpi: skip tests marked mpi_skip, expect mpi_xfail to fail",
        "--only-mpi": "of pytest-mpi: skip tests that are not marked mpi",
    }

    @classmethod
    def add_to(cls, config: pytest.Config, parser: pytest.Parser) -> None:
        """Declare the options, unless pytest-mpi or a conftest has done so."""
        groups = (parser._anonymous, *parser._groups)
        known = {name for group in groups for option in group.options for name in option.names()}
        if known.isdisjoint(cls._HELP):
            for name, words in cls._HELP.items():
                parser.addoption(name, action="store_true", help=words)
            config.pluginmanager.register(cls(), "rankwise-as-pytest-mpi")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        from rankwise.pytest_plugin.options import closest_mark

        skip, xfail = pytest.mark.skip, pytest.mark.xfail
        fails = skip(reason="test does not work under MPI")
        marks = {"mpi_skip": fails, "mpi_break": fails}
        marks["mpi_xfail"] = xfail(reason="test fails under MPI")
        for item in items:
            if config.getoption("with_mpi"):
                for name in marks.keys() & item.keywords.keys():
                    item.add_marker(marks[name])
                # It fails only where there are other ranks.
                if "mpi_xfail" in item.keywords and closest_mark(item) is None:
                    item.add_marker("mpi")
            elif "mpi" not in item.keywords:
                item.add_marker(skip(reason="test does not use MPI"))


NAME = "rankwise-for-mpi-pytest"


def _registered(config: pytest.Config) -> Any:
    # pytest-mpi, another project, has a module of the same name.
    module = sys.modules.get("pytest_mpi.plugin")
    if not hasattr(module, "CHILD_PROCESS_FLAG"):
        return None
    return module if config.pluginmanager.is_registered(module) else None


def acts(config: pytest.Config) -> bool:
    """Return whether mpi-pytest runs the tests on several ranks."""
    return _registered(config) is not None


def has_started_us(config: pytest.Config) -> bool:
    """Return whether mpi-pytest has started this process as a rank of one test."""
    plugin = _registered(config)
    return plugin is not None and plugin.CHILD_PROCESS_FLAG in os.environ


def replace_in(config: pytest.Config) -> None:
    """Take the place of mpi-pytest in this run: its hooks are not called."""
    plugin = _registered(config)
    if plugin is not None:
        config.pluginmanager.unregister(plugin)
        config.pluginmanager.register(_Replacement(), NAME)


def is_replaced(config: pytest.Config) -> bool:
    """Return whether rankwise has taken the place of mpi-pytest, whose ids of tests stay."""
    return config.pluginmanager.has_plugin(NAME)


class _Replacement:
    def pytest_report_header(self) -> str:
        return (
            "rankwise: runs the tests that are marked for mpi-pytest, which does nothing in this "
            "run; to run them with mpi-pytest, add -p no:rankwise"
        )


def _settle_seed(config: pytest.Config) -> int | None:
    """Return the seed for pytest-randomly, which it would choose itself; None without it."""
    seed = getattr(config.known_args_namespace, "randomly_seed", None)
    if seed == "last":
        seed = Cache.for_config(config, _ispytest=True).get("randomly_seed", "default")
    if seed == "default":
        seed = secrets.randbits(32)
    return seed if isinstance(seed, int) else None


def _rerunfailures() -> ModuleType | None:
    return sys.modules.get("pytest_rerunfailures")


def prepare_rerunfailures() -> None:
    """Let pytest-rerunfailures log reruns as it does without pytest-xdist."""
    if (plugin := _rerunfailures()) is not None:
        # With `config.workerinput` it takes this process for a worker of pytest-xdist.
        plugin.HAS_PYTEST_HANDLECRASHITEM = False  # type: ignore[attr-defined]
        plugin.works_with_current_xdist = lambda: True  # type: ignore[attr-defined]


def attempts(item: pytest.Item) -> int:
    """Return how often a test may run until it passes."""
    plugin = _rerunfailures()
    # By the module: the name of the plugin depends on how it was loaded.
    if plugin is None or not item.config.pluginmanager.is_registered(plugin):
        return 1
    # Older versions have no such function.
    if getattr(plugin, "_is_rerun_path_excluded", lambda _: False)(item):
        return 1
    return 1 + (plugin.get_reruns_count(item) or 0)


def is_worth_repeating(item: pytest.Item) -> bool:
    """Return whether the options of the plugin allow to repeat what failed on this rank."""
    plugin = _rerunfailures()
    assert plugin is not None
    # The hook of the plugin has noted here which errors must not be repeated.
    if any(getattr(item, "_terminal_errors", {}).values()):
        return False
    failures = getattr(plugin, "_get_reruns_condition_failures", None)
    known = () if failures is None else (failures(item),)
    return bool(plugin.get_reruns_condition(item, *known))


def prepare_rerun(item: pytest.Item, attempt: int) -> None:
    """Wait as long as the options say, and remove what the last attempt has left."""
    plugin = _rerunfailures()
    assert plugin is not None
    factor = getattr(plugin, "get_reruns_delay_backoff_factor", lambda _: 1.0)(item)
    time.sleep(plugin.get_reruns_delay(item) * factor ** (attempt - 1))
    plugin._remove_cached_results_from_failed_fixtures(item)
    plugin._discard_test_class_instance(item)
    if hasattr(plugin, "_remove_failed_subtests_from_report"):
        plugin._remove_failed_subtests_from_report(item, item)
        plugin._remove_failed_subtest_reports_from_stats(item.config, item.session, item.nodeid)


def note_attempts(item: object, count: int) -> None:
    """Store the number of attempts for --fail-on-flaky."""
    if count > 1:
        item.execution_count = count  # type: ignore[attr-defined]


def refuse_xdist(config: pytest.Config, starter: str, advice: str) -> None:
    """Raise UsageError if pytest-xdist would start processes too."""
    if config.getoption("dist", "no") != "no" or config.getoption("numprocesses", None):
        raise pytest.UsageError(
            f"pytest-xdist (-n) and {starter} cannot both start the processes. {advice} as -n "
            "does. If -n is not on the command line but in a configuration file, add -n 0."
        )


def refuse_in_pool(config: pytest.Config, *, is_remote: bool) -> None:
    """Raise UsageError for options that workers cannot support, here or on other machines."""
    option = config.getoption
    if option("trace", False):
        raise pytest.UsageError(
            "--trace would stop every rank of every test, and there is one terminal. Write "
            "breakpoint() where one rank is to stop, or run the one test without --n-workers."
        )
    if option("tmux", False):
        from rankwise.pytest_plugin.workers.tmux import refuse_without_tmux

        if is_remote:
            raise pytest.UsageError("--tmux shows ranks of this machine, not of Slurm's nodes")
        refuse_without_tmux()
    if is_remote and option("usepdb", False):
        raise pytest.UsageError(
            "--pdb needs a terminal, and ranks on the nodes of Slurm have none. Run the one "
            "test with --n-workers on one machine."
        )
    refuse_xdist(config, "--n-workers", "--n-workers alone spreads tests over all workers")


def settle(config: pytest.Config) -> dict[str, Any]:
    """Return what must be the same in all processes; called before options are fully read."""
    _empty_log_file(config)
    return {
        "seed": _settle_seed(config),
        "run": secrets.token_hex(16),
        "colour": should_do_markup(sys.stdout),
        # Ranks have no terminal that they could ask.
        "columns": get_terminal_width(),
    }


def base_of(config: pytest.Config) -> str:
    """Return the folder for temporary files of this process; empty with -p no:tmpdir."""
    factory = _factory(config)
    return "" if factory is None else str(factory.getbasetemp())


def move_below(config: pytest.Config, base: str, name: str) -> None:
    """Put the temporary files of this process there, unless it has some elsewhere already."""
    factory = _factory(config)
    if base and factory is not None and factory._basetemp is None:
        # On another machine the folder may not exist.
        Path(base).mkdir(mode=0o700, parents=True, exist_ok=True)
        factory._given_basetemp = Path(base) / name


def _factory(config: pytest.Config) -> TempPathFactory | None:
    factory = getattr(config, "_tmp_path_factory", None)
    return factory if isinstance(factory, TempPathFactory) else None
