"""pytest-cov: every rank measures, rank 0 combines and reports."""

from __future__ import annotations

from typing import Any

import pytest


class MeasureOnly:
    """Takes the place of pytest-cov on a rank that does not report."""

    def __init__(self, controller: Any, *, per_test: bool) -> None:
        self._controller = controller
        self._per_test = per_test

    @classmethod
    def replace_in(cls, config: pytest.Config) -> None:
        """Let the coverage that pytest-cov has started run on, but nothing of its reporting."""
        plugin: Any = config.pluginmanager.get_plugin("_cov")
        if plugin is None or plugin.cov_controller is None:
            return
        config.pluginmanager.unregister(plugin, "_cov")
        per_test = config.getoption("cov_context", None) == "test"
        config.pluginmanager.register(cls(plugin.cov_controller, per_test=per_test))

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        if self._per_test:
            from pytest_cov.plugin import TestContextPlugin

            session.config.pluginmanager.register(TestContextPlugin(self._controller))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Write this rank's data to a file of its own, where rank 0 finds it."""
        self._controller.cov.stop()
        self._controller.cov.save()
