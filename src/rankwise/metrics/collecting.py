"""Values that a parser has found become samples, or faults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from rankwise.metrics.contract import Reading
from rankwise.metrics.lines import plain
from rankwise.metrics.units import direction, spell
from rankwise.plan import Metric
from rankwise.stats.medians import median
from rankwise.store.samples import Better, Sample

MOST_SAMPLES = 10_000
_MOST_FAULTS = 5
_LONGEST = 200

Point = Mapping[str, float | int | str]
_At = tuple[tuple[str, float | int | str], ...]


@dataclass(slots=True)
class _Series:
    """The values of one metric at one point."""

    unit: str
    better: Better
    point: Point
    values: list[float] = field(default_factory=list)
    value: float | None = None
    """What a program says that they come to; None: their median."""

    def sample(self, name: str) -> Sample:
        many = len(self.values) > 1
        return Sample(
            metric=name,
            unit=self.unit,
            better=self.better,
            point=self.point,
            value=median(self.values) if self.value is None else self.value,
            raw=tuple(self.values) if many else (),
        )


class Collector:
    """Takes the values that one parser finds, and keeps what can be relied on."""

    def __init__(self, wish: Metric) -> None:
        self._wish = wish
        self._series: dict[tuple[str, str, _At], _Series] = {}
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
        metric, unit = plain(metric)[:_LONGEST], self._unit(plain(metric), plain(unit))
        where = f" at {_in_words(point)}" if point else ""
        if not all(map(math.isfinite, (value, *raw))):
            bad = next(number for number in (value, *raw) if not math.isfinite(number))
            self.fault(f"{metric}{where} is {bad}, which is no value")
        elif not metric:
            self.fault("there is a value without a name: say `name`")
        elif not unit:
            self.fault(f"{metric} has no unit: say `unit`, or `unit: 1` if it has none")
        elif len(self._series) >= MOST_SAMPLES:
            self.fault(f"there are more than {MOST_SAMPLES:,} values")
        else:
            cleaned = _cleaned(point or {})
            key = (metric, unit, tuple(sorted(cleaned.items())))
            better = self._wish.better or better or direction(unit)
            series = self._series.setdefault(key, _Series(unit=unit, better=better, point=cleaned))
            series.values.extend(raw or (value,))
            series.value = value if raw else None

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
        samples = self._samples()
        faults = self._faults[:_MOST_FAULTS]
        if left := len(self._faults) - len(faults):
            faults.append(f"and {left} more")
        if not samples and not faults:
            only = f" {', '.join(self._wish.only)}" if self._wish.only else ""
            faults.append(f"{self._wish.parser} has found no metric{only} in {self._wish.on}")
        return Reading(samples=samples, faults=tuple(faults), remarks=tuple(self._remarks))

    def _samples(self) -> tuple[Sample, ...]:
        """Give what was found by the name that is wanted, if there is one."""
        found = {metric for metric, _, _ in self._series}
        wanted = self._wish.name
        if wanted and wanted not in found and len(found) > 1:
            self.fault(
                f"{wanted} may be any of {', '.join(sorted(found)[:_MOST_FAULTS])}: "
                "say which with `only`"
            )
            return ()
        return tuple(
            series.sample(wanted or metric)
            for (metric, _, _), series in self._series.items()
            if wanted not in found or metric == wanted
        )

    def _unit(self, metric: str, unit: str) -> str:
        if self._wish.unit and unit and spell(unit) != spell(self._wish.unit):
            self.remark(f"{metric} is taken in {self._wish.unit}, though the output says {unit}")
        return spell(self._wish.unit or unit)[:_LONGEST]


def _cleaned(point: Point) -> dict[str, float | int | str]:
    """Give a point with names and texts that can be shown."""
    return {
        plain(name)[:_LONGEST]: plain(at)[:_LONGEST] if isinstance(at, str) else at
        for name, at in point.items()
    }


def _in_words(point: Point) -> str:
    return " ".join(f"{name}={value}" for name, value in point.items())
