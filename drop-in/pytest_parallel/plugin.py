"""The plugin by the name that `PYTEST_PLUGINS=pytest_parallel.plugin` asks for."""

from __future__ import annotations

import pytest

from rankwise.pytest_plugin import plugin

__all__: list[str] = []


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Load rankwise, unless pytest has found it by itself."""
    if not pluginmanager.is_registered(plugin):
        pluginmanager.register(plugin, "rankwise")
