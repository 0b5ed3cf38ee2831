"""Values that a parser has found become samples, or faults."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from rankwise.metrics.contract import Reading
from rankwise.metrics.units import direction, spell
from rankwise.plan import Metric
from rankwise.store.samples import Better, Sample

MOST_SAMPLES = 10_000
_MOST_FAULTS = 5
_LONGEST_NAME = 200

Point = Mapping[str, float | int | str]


class Collector:
    """Takes the values that one parser finds, and keeps what can be relied on."""

    def __init__(self, wish: Metric) -> None:
        self._wish = wish
        self._values: dict[
            tuple[str, str, Better, tuple[tuple[str, object], ...]], list[float]
        ] = {}
        self._points: dict[tuple[tuple[str, object], ...], Point] = {}
        self._given: dict[tuple[str, str, Better, tuple[tuple[str, object], ...]], float] = {}
        self._faults: list[str] = []
        self._remarks: list[str] = []

    def add(
        self,
        metric: str,
        value: float,
        unit: str,
        *,
        better: Better = "",
        point: Point | None = None,
        raw: tuple[float, ...] = (),
    ) -> None:
        """Take a value; several of one metric at one point become one, which is their median."""
        if self._wish.only and metric not in self._wish.only:
            return
        metric, unit = self._name(metric), self._unit(metric, unit)
        where = f" at {_in_words(point)}" if point else ""
        if not all(map(math.isfinite, (value, *raw))):
            bad = next(number for number in (value, *raw) if not math.isfinite(number))
            self.fault(f"{metric}{where} is {bad}, which is no value")
        elif not unit:
            self.fault(f"{metric} has no unit: say `unit`, or `unit: 1` if it has none")
        elif len(self._values) >= MOST_SAMPLES:
            self.fault(f"there are more than {MOST_SAMPLES:,} values")
        else:
            better = self._wish.better or better or direction(unit)
            at = tuple(sorted((point or {}).items()))
            self._points[at] = point or {}
            key = (metric, unit, better, at)
            if raw:
                self._given[key] = value
            self._values.setdefault(key, []).extend(raw or (value,))

    def fault(self, text: str) -> None:
        """Tell why what was measured cannot be relied on."""
        if text not in self._faults:
            self._faults.append(text)

    def remark(self, text: str) -> None:
        """Tell what somebody should know who looks at the numbers."""
        if text not in self._remarks:
            self._remarks.append(text)

    def reading(self) -> Reading:
        """Give what came of it; that there is nothing is a fault as well."""
        samples = tuple(
            Sample(
                metric=key[0],
                unit=key[1],
                better=key[2],
                point=self._points[key[3]],
                value=self._given.get(key, statistics.median(values)),
                raw=tuple(values) if len(values) > 1 else (),
            )
            for key, values in self._values.items()
        )
        faults = self._faults[:_MOST_FAULTS]
        if left := len(self._faults) - len(faults):
            faults.append(f"and {left} more")
        if not samples and not faults:
            only = f" {', '.join(self._wish.only)}" if self._wish.only else ""
            faults.append(f"{self._wish.parser} has found no metric{only} in {self._wish.on}")
        return Reading(samples=samples, faults=tuple(faults), remarks=tuple(self._remarks))

    def _name(self, metric: str) -> str:
        return (self._wish.name or metric)[:_LONGEST_NAME]

    def _unit(self, metric: str, unit: str) -> str:
        if self._wish.unit and unit and spell(unit) != spell(self._wish.unit):
            self.remark(f"{metric} is taken in {self._wish.unit}, though the output says {unit}")
        return spell(self._wish.unit or unit)


def _in_words(point: Point) -> str:
    return " ".join(f"{name}={value}" for name, value in point.items())
