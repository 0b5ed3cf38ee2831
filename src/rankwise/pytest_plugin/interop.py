"""What other plugins need to know: benchmark, cov, junit, mpi-pytest, rerunfailures and more."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from _pytest._io import get_terminal_width
from _pytest._io.terminalwriter import should_do_markup
from _pytest.cacheprovider import Cache
from _pytest.junitxml import LogXML, xml_key
from _pytest.tmpdir import TempPathFactory

if TYPE_CHECKING:
    from rankwise.pytest_plugin.collection import ListedTest

_FIELDS = ("name", "fullname", "group", "param", "params", "extra_info")


def measure_only(config: pytest.Config) -> None:
    """Leave files to the process that reports."""
    session = getattr(config, "_benchmarksession", None)
    if session is not None:
        session.json = session.save = session.autosave = None


def take(config: pytest.Config) -> dict[str, Any]:
    """Return what was measured since it was last asked for."""
    session = getattr(config, "_benchmarksession", None)
    if session is None or not session.benchmarks:
        return {}
    measured = [_describe(one) for one in session.benchmarks]
    session.benchmarks.clear()
    return {"benchmarks": measured}


def _describe(one: Any) -> dict[str, Any]:
    known = one.as_dict(include_data=False, stats=False)
    return {
        **{name: known[name] for name in _FIELDS},
        "options": known["options"],
        "iterations": one.iterations,
        "data": list(one.stats.data),
        "has_error": bool(one.has_error),
    }


def record_benchmarks(config: pytest.Config, said: Sequence[Mapping[str, Any]]) -> None:
    """Hand what the first of several ranks has measured to the plugin.

    Under mpirun this process may be one of them, and have it already.
    """
    session = getattr(config, "_benchmarksession", None)
    measured = next((one["benchmarks"] for one in said if "benchmarks" in one), ())
    if session is None or not measured:
        return
    from pytest_benchmark.stats import Metadata

    known = {one.fullname for one in session.benchmarks}
    for one in measured:
        if one["fullname"] in known:
            continue
        fixture = SimpleNamespace(
            **{name: one[name] for name in _FIELDS},
            has_error=one["has_error"],
            cprofile_stats=None,
        )
        restored = Metadata(fixture, one["iterations"], one["options"])
        restored.stats.data = one["data"]
        session.benchmarks.append(restored)


def describe(config: pytest.Config) -> dict[str, Any]:
    """Say what the plugins of this process have decided about the tests."""
    info = _stepwise_info(config)
    if info is None:
        return {}
    return {"test_count": info.last_test_count, "forget": info.last_failed is None}


def adopt(config: pytest.Config, said: dict[str, Any], tests: Sequence[ListedTest]) -> None:
    """Let the plugins of this process, which write the cache, know of it."""
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
    """Return what measures for pytest-cov; None: nothing does."""
    return getattr(config.pluginmanager.get_plugin("_cov"), "cov_controller", None)


class MeasureOnly:
    """Takes the place of pytest-cov on a rank that does not report."""

    def __init__(self, controller: Any, *, per_test: bool) -> None:
        self.cov_controller = controller  # where the `cov` fixture looks for it
        self._per_test = per_test

    @classmethod
    def replace_in(cls, config: pytest.Config) -> None:
        """Let the coverage that pytest-cov has started run on, but nothing of its reporting."""
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
        """Measure nothing in tests that ask for it."""
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
        """Write this rank's data to a file of its own, where rank 0 finds it."""
        self.cov_controller.cov.stop()
        self.cov_controller.cov.save()


class CombineAnyway:
    """Combines on rank 0 what the ranks have measured when pytest-cov does not.

    It gives up when a run ends early (-x, Ctrl-C), but by then the other ranks have written their
    files, and the next run would count them as its own.
    """

    def __init__(self, controller: Any) -> None:
        self._controller = controller

    @classmethod
    def add_to(cls, config: pytest.Config) -> None:
        """Do so if pytest-cov measures in this run."""
        if (controller := _cov_controller(config)) is not None:
            config.pluginmanager.register(cls(controller))

    def pytest_sessionfinish(self) -> None:
        if self._controller.started:
            self._controller.finish()


# Of cases that are no test: what happened outside of them.
_CLASS = "rankwise"
_errors_key = pytest.StashKey[int]()


class JunitStandIn:
    """Stands on a rank where fixtures look for the file that is to be written."""

    def __init__(self, family: str) -> None:
        self.family = family
        self._attributes: list[tuple[str, str]] = []
        self._properties: list[tuple[str, str]] = []

    @classmethod
    def add_to(cls, config: pytest.Config) -> JunitStandIn | None:
        """Take part in a run that writes such a file; None: it writes none."""
        if not config.getoption("xmlpath", None):
            return None
        stand_in = cls(str(config.getini("junit_family")))
        # It has all that fixtures use of the real one.
        config.stash[xml_key] = cast("LogXML", stand_in)
        # pytest takes away what it finds there when it is over.
        config.pluginmanager.register(stand_in, "rankwise-junit")
        return stand_in

    def node_reporter(self, _report: object) -> JunitStandIn:
        """Return what keeps the attributes of a test; only one runs at a time."""
        return self

    def add_attribute(self, name: str, value: object) -> None:
        """Keep an attribute of the test that runs."""
        self._attributes.append((str(name), str(value)))

    def add_global_property(self, name: object, value: object) -> None:
        """Keep a property of the whole suite. Raises TypeError, as pytest does."""
        __tracebackhide__ = True
        if not isinstance(name, str):
            kind = type(name).__name__
            raise TypeError(f"name parameter needs to be a string, but {kind} given")
        self._properties.append((name, str(value)))

    def take(self) -> dict[str, Any]:
        """Return what was kept since it was last asked for."""
        found = {"attributes": self._attributes, "properties": self._properties}
        self._attributes, self._properties = [], []
        return {name: values for name, values in found.items() if values}


def add_error(config: pytest.Config, words: str) -> None:
    """Add to the file what is wrong with the run and no test's doing.

    There may be no other word of it for a CI that reads this file alone.
    """
    xml = config.stash.get(xml_key, None)
    if not isinstance(xml, LogXML):
        return
    number = config.stash[_errors_key] = config.stash.get(_errors_key, 0) + 1
    # Those of one name would be one case.
    name = f"session ({number})" if number > 1 else "session"
    case = xml.node_reporter(f"{_CLASS}::{name}")
    case.attrs.update(classname=_CLASS, name=name)
    case._add_simple("error", words.partition("\n")[0], words)


def record_properties(
    config: pytest.Config, report: pytest.TestReport, said: Mapping[str, Any]
) -> None:
    """Add to the file what a test on a rank has recorded."""
    xml = config.stash.get(xml_key, None)
    if not isinstance(xml, LogXML):
        return
    for name, value in said.get("attributes", ()):
        xml.node_reporter(report).add_attribute(name, value)
    for name, value in said.get("properties", ()):
        # Each rank sets up the fixtures of the session.
        if (name, value) not in xml.global_properties:
            xml.add_global_property(name, value)


def begin(config: pytest.Config) -> None:
    """Empty the file before any other process of the run opens it, if that is what is asked for."""
    known = config.known_args_namespace
    # With -p no:logging there are neither options nor values of the ini file. What else is wrong
    # is for pytest to say, when it opens the file.
    with contextlib.suppress(ValueError, OSError):
        path = getattr(known, "log_file", None) or config.getini("log_file")
        mode = getattr(known, "log_file_mode", None) or config.getini("log_file_mode")
        if path and mode != "a":
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text("")


def share(config: pytest.Config) -> None:
    """Have this process add to the file: with a position of its own it would overwrite others'."""
    if config.getoption("log_file_mode", "") != "":
        config.option.log_file_mode = "a"


_MODULE = "pytest_mpi.plugin"
NAME = "rankwise-for-mpi-pytest"


def _registered(config: pytest.Config) -> Any:
    # pytest-mpi, another project, has a module of the same name.
    module = sys.modules.get(_MODULE)
    if not hasattr(module, "CHILD_PROCESS_FLAG"):
        return None
    return module if config.pluginmanager.is_registered(module) else None


def acts(config: pytest.Config) -> bool:
    """Return whether tests on several ranks are run by mpi-pytest."""
    return _registered(config) is not None


def has_started_us(config: pytest.Config) -> bool:
    """Return whether this process is a rank that mpi-pytest has started for one test."""
    plugin = _registered(config)
    return plugin is not None and plugin.CHILD_PROCESS_FLAG in os.environ


def replace_in(config: pytest.Config) -> None:
    """Do what mpi-pytest would do in this run, which is not called any more."""
    plugin = _registered(config)
    if plugin is not None:
        config.pluginmanager.unregister(plugin)
        config.pluginmanager.register(_Replacement(), NAME)


def is_replaced(config: pytest.Config) -> bool:
    """Return whether this run has taken the place of mpi-pytest: its ids stay."""
    return config.pluginmanager.has_plugin(NAME)


class _Replacement:
    def pytest_report_header(self) -> str:
        return (
            "rankwise: runs the tests that are marked for mpi-pytest, which does nothing in this "
            "run; to run them with mpi-pytest, add -p no:rankwise"
        )


def settle_seed(config: pytest.Config) -> int | None:
    """Turn the plugin's option into a number, as the plugin would; None without the plugin."""
    seed = getattr(config.known_args_namespace, "randomly_seed", None)
    if seed == "last":
        seed = Cache.for_config(config, _ispytest=True).get("randomly_seed", "default")
    if seed == "default":
        seed = secrets.randbits(32)
    return seed if isinstance(seed, int) else None


def _plugin() -> ModuleType | None:
    return sys.modules.get("pytest_rerunfailures")


def prepare_configuration() -> None:
    """Let it know that no controller of pytest-xdist is there, and that it may log reruns."""
    if (plugin := _plugin()) is not None:
        plugin.HAS_PYTEST_HANDLECRASHITEM = False  # type: ignore[attr-defined]
        plugin.works_with_current_xdist = lambda: True  # type: ignore[attr-defined]


def attempts(item: pytest.Item) -> int:
    """Return how often a test may be run until it passes."""
    plugin = _plugin()
    # Its name there depends on how it was loaded.
    if plugin is None or not item.config.pluginmanager.is_registered(plugin):
        return 1
    is_excluded = getattr(plugin, "_is_rerun_path_excluded", None)
    if is_excluded is not None and is_excluded(item):
        return 1
    return 1 + (plugin.get_reruns_count(item) or 0)


def is_worth_repeating(item: pytest.Item) -> bool:
    """Return whether this rank failed in a way that the plugin's options call worth repeating."""
    plugin = _plugin()
    assert plugin is not None
    # The plugin's own hook has noted here which errors are not to be repeated.
    if any(getattr(item, "_terminal_errors", {}).values()):
        return False
    failures = getattr(plugin, "_get_reruns_condition_failures", None)
    known = () if failures is None else (failures(item),)
    return bool(plugin.get_reruns_condition(item, *known))


def prepare_rerun(item: pytest.Item, attempt: int) -> None:
    """Wait as told after this many attempts, and forget what the last one left behind."""
    plugin = _plugin()
    assert plugin is not None
    factor = getattr(plugin, "get_reruns_delay_backoff_factor", lambda _: 1.0)(item)
    time.sleep(plugin.get_reruns_delay(item) * factor ** (attempt - 1))
    plugin._remove_cached_results_from_failed_fixtures(item)
    plugin._discard_test_class_instance(item)
    if hasattr(plugin, "_remove_failed_subtests_from_report"):
        plugin._remove_failed_subtests_from_report(item, item)
        plugin._remove_failed_subtest_reports_from_stats(item.config, item.session, item.nodeid)


def note_attempts(item: object, count: int) -> None:
    """Leave the number of attempts where --fail-on-flaky looks for it."""
    if count > 1:
        item.execution_count = count  # type: ignore[attr-defined]


def refuse_xdist(config: pytest.Config, starter: str, advice: str) -> None:
    """Raise UsageError if pytest-xdist is to start processes beside ours."""
    if config.getoption("dist", "no") != "no" or config.getoption("numprocesses", None):
        raise pytest.UsageError(
            f"pytest-xdist (-n) and {starter} cannot both start the processes. {advice} as -n "
            "does. If -n is not on the command line but in a configuration file, add -n 0."
        )


def refuse_in_pool(config: pytest.Config, *, is_remote: bool) -> None:
    """Raise UsageError for options that workers, or workers on other machines, cannot follow."""
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


# What all processes of a run have in common


def settle(config: pytest.Config) -> dict[str, Any]:
    """Decide what must be the same in all processes, before options are fully read."""
    begin(config)
    return {
        "seed": settle_seed(config),
        "run": secrets.token_hex(16),
        "colour": should_do_markup(sys.stdout),
        "columns": get_terminal_width(),
    }


def base_of(config: pytest.Config) -> str:
    """Return this process's folder for temporary files; empty: it has none (-p no:tmpdir)."""
    factory = _factory(config)
    return "" if factory is None else str(factory.getbasetemp())


def move_below(config: pytest.Config, base: str, name: str) -> None:
    """Have this process put its temporary files there, unless it has begun elsewhere."""
    factory = _factory(config)
    if base and factory is not None and factory._basetemp is None:
        # On another machine it may not be there.
        Path(base).mkdir(mode=0o700, parents=True, exist_ok=True)
        factory._given_basetemp = Path(base) / name


def _factory(config: pytest.Config) -> TempPathFactory | None:
    factory = getattr(config, "_tmp_path_factory", None)
    return factory if isinstance(factory, TempPathFactory) else None
