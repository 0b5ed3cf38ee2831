"""pytest-cov: every rank measures, rank 0 combines and reports."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest


class MeasureOnly:
    """Takes the place of pytest-cov on a rank that does not report."""

    def __init__(self, controller: Any, *, per_test: bool) -> None:
        self.cov_controller = controller  # where the `cov` fixture looks for it
        self._per_test = per_test

    @classmethod
    def replace_in(cls, config: pytest.Config) -> None:
        """Let the coverage that pytest-cov has started run on, but nothing of its reporting."""
        plugin: Any = config.pluginmanager.get_plugin("_cov")
        if plugin is None or plugin.cov_controller is None:
            return
        config.pluginmanager.unregister(plugin, "_cov")
        per_test = config.getoption("cov_context", None) == "test"
        config.pluginmanager.register(cls(plugin.cov_controller, per_test=per_test), "_cov")

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        if self._per_test:
            from pytest_cov.plugin import TestContextPlugin

            session.config.pluginmanager.register(TestContextPlugin(self.cov_controller))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Measure nothing in tests that ask for it."""
        if not item.get_closest_marker("no_cover") and "no_cover" not in getattr(
            item, "fixturenames", ()
        ):
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
        plugin: Any = config.pluginmanager.get_plugin("_cov")
        if plugin is not None and plugin.cov_controller is not None:
            config.pluginmanager.register(cls(plugin.cov_controller))

    def pytest_sessionfinish(self) -> None:
        if self._controller.started:
            self._controller.finish()
