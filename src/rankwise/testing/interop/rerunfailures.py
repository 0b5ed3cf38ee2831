"""pytest-rerunfailures: a test on several ranks is repeated on all of them or on none."""

from __future__ import annotations

import sys
import time
from types import ModuleType

import pytest


def _plugin() -> ModuleType | None:
    return sys.modules.get("pytest_rerunfailures")


def prepare_configuration() -> None:
    """Tell the plugin that no controller of pytest-xdist is there, and that it may log reruns."""
    if (plugin := _plugin()) is not None:
        plugin.HAS_PYTEST_HANDLECRASHITEM = False  # type: ignore[attr-defined]
        plugin.works_with_current_xdist = lambda: True  # type: ignore[attr-defined]


def attempts(item: pytest.Item) -> int:
    """Tell how often a test may be run until it passes."""
    plugin = _plugin()
    if plugin is None or not item.config.pluginmanager.has_plugin("rerunfailures"):
        return 1
    is_excluded = getattr(plugin, "_is_rerun_path_excluded", None)
    if is_excluded is not None and is_excluded(item):
        return 1
    return 1 + (plugin.get_reruns_count(item) or 0)


def is_worth_repeating(item: pytest.Item) -> bool:
    """Tell whether this rank failed in a way that the plugin's options call worth repeating."""
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
