"""Plug-in points: what documents and options know by a name, ours and what other packages add.

A package adds to one with an entry point, in the group that stands here:

    [project.entry-points."rankwise.metric_parsers"]
    my-benchmark = "my_package:read_output"
"""

from __future__ import annotations

import pkgutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise.wording import code, hint

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True, slots=True)
class PluginPoint:
    """A group of entry points. Ours are in `plugins.toml`, in the same form.

    A name of ours cannot be taken by another package. Other packages are looked at only for a
    name that is not ours, because that reads the metadata of everything that is installed.
    """

    group: str
    noun: str
    more: Sequence[str] = ()
    """What else may stand where such a name does."""

    @property
    def ours(self) -> Mapping[str, str]:
        """Return the names of ours, with `module:object` for each."""
        ours: Mapping[str, str] = _OURS[self.group]
        return ours

    def load(self, name: str) -> Any:
        """Return what a name stands for. ImportError, with the reason, if it cannot be had."""
        if name in self.ours:
            return pkgutil.resolve_name(self.ours[name])
        others = self.others()
        if name not in others:
            raise ImportError(self._unknown(name, sorted(others)))
        try:
            return others[name].load()
        except Exception as error:  # Whatever the code of another package raises.
            said = f"{self.noun} {code(name)} cannot be loaded: {type(error).__name__}: {error}"
            raise ImportError(said) from error

    def others(self) -> dict[str, EntryPoint]:
        """Return what other packages add, by name. Loads none of it."""
        # 20 ms to load, and hardly any document needs it.
        from importlib.metadata import entry_points

        found = reversed([*entry_points(group=self.group)])
        return {entry.name: entry for entry in found if entry.name not in self.ours}

    def problem(self, name: str) -> str:
        """Return why a name cannot be used here; empty if it can. Loads nothing of ours."""
        try:
            if name not in self.ours:
                self.load(name)
        except ImportError as error:
            return str(error)
        return ""

    def _unknown(self, name: str, others: Sequence[str]) -> str:
        added = f"; other packages add {', '.join(others)}" if others else ""
        ours = (*self.ours, *self.more)
        remedy = hint(name, (*ours, *others), f"there are {', '.join(ours)}{added}")
        return f"there is no {self.noun} {code(name)}; {remedy}"


_OURS = tomllib.loads(Path(__file__).with_name("plugins.toml").read_text(encoding="utf-8"))

METRIC_PARSERS = PluginPoint("rankwise.metric_parsers", "parser")
"""Functions of the type `Parser` in metrics/base.py."""

REPORT_FORMATS = PluginPoint("rankwise.report_formats", "report format")
"""Functions from `ReportData` in reports/model.py to the text or the bytes of a file."""

NOTIFIERS = PluginPoint("rankwise.notifiers", "notifier")
"""Functions from a table `[notify.NAME]` to a `Notifier` of notify/delivery.py."""

BATCH_SYSTEMS = PluginPoint("rankwise.batch_systems", "batch system")
"""Classes of the type `BatchSystem` in backends/batch/system.py."""

SCHEDULERS = PluginPoint("rankwise.schedulers", "scheduler")
"""Classes and functions of the type `SchedulerFactory` in pytest_plugin/schedulers/base.py."""
