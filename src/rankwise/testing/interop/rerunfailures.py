"""pytest-rerunfailures: a test on several ranks is repeated on all of them or on none."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import ModuleType

import pytest


def _plugin() -> ModuleType | None:
    return sys.modules.get("pytest_rerunfailures")


def prepare_configuration() -> None:
    """Keep the plugin from looking for the controller of pytest-xdist; every rank has its own."""
    if (plugin := _plugin()) is not None:
        plugin.HAS_PYTEST_HANDLECRASHITEM = False  # type: ignore[attr-defined]


def attempts(item: pytest.Item) -> int:
    """Tell how often a test may be run until it passes."""
    plugin = _plugin()
    if plugin is None or not item.config.pluginmanager.has_plugin("rerunfailures"):
        return 1
    return 1 + (plugin.get_reruns_count(item) or 0)


def wants_rerun(item: pytest.Item, reports: Sequence[pytest.TestReport]) -> bool:
    """Tell whether this rank failed in a way that the plugin's options call worth repeating."""
    plugin = _plugin()
    if plugin is None or not any(report.failed for report in reports):
        return False
    # The plugin's own hook has noted here which errors are not to be repeated.
    hopeless = any(getattr(item, "_terminal_errors", {}).values())
    return not hopeless and bool(plugin.get_reruns_condition(item))


def prepare_rerun(item: pytest.Item) -> None:
    """Wait as told and forget what the failed attempt left behind."""
    plugin = _plugin()
    assert plugin is not None
    time.sleep(plugin.get_reruns_delay(item))
    plugin._remove_cached_results_from_failed_fixtures(item)
    plugin._discard_test_class_instance(item)
