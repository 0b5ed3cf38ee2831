"""What parsers return, and how they collect values; `plugins.METRIC_PARSERS` has their names."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rankwise.plan import Metric
from rankwise.plugins import METRIC_PARSERS
from rankwise.safe_text import clean
from rankwise.stats.comparison import median
from rankwise.store.samples import Better, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedMetrics:
    """What a parser found in a text."""

    samples: tuple[Sample, ...] = ()
    faults: tuple[str, ...] = ()
    """Why what was measured cannot be relied on: a case with any of them has failed."""
    remarks: tuple[str, ...] = ()
    """What a reader of the numbers should know."""


Parser = Callable[[Metric, str], ParsedMetrics]
"""Reads a text. It never raises, whatever the text is: what is wrong is a fault in the result."""


# No table has longer lines; a log may have one of 50 MB.
_LONGEST_LINE = 10_000
# Digits that people of other scripts write are numbers to Python, and 1_000 is as well.
_NUMBER = re.compile(
    r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:nan|inf(?:inity)?)",
    re.IGNORECASE | re.ASCII,
)


def lines_of(text: str) -> Iterator[str]:
    """Return the lines of a text, as they are read when colours are taken away."""
    for line in io.StringIO(text, newline="\n"):
        if len(line) <= _LONGEST_LINE:
            yield plain(line.rstrip("\n"))


def plain(text: str) -> str:
    """Take out of a text whatever no person sees on a terminal."""
    # What was printed over is gone: of a line with a progress bar, the last part counts.
    return clean(text.rstrip("\r").rpartition("\r")[2])


def number_in(word: str) -> float | None:
    """Return the number that a word is, which may be one that is no value; None: it is none."""
    return float(word) if _NUMBER.fullmatch(word) else None


def numbers_in(line: str) -> list[float]:
    """Return the numbers that a line consists of; empty if there is anything else in it."""
    words = line.split()
    return [float(word) for word in words] if all(map(_NUMBER.fullmatch, words)) else []


def size_in(number: float) -> int | None:
    """Return the size of a message that a number may be; None: it is none."""
    return int(number) if math.isfinite(number) and number >= 0 and number.is_integer() else None


NONE = "1"
"""The unit of plain numbers."""

_WRITTEN = {
    "us": "us µs μs usec",
    "ns": "ns nsec",
    "ms": "ms msec",
    "s": "s sec secs seconds",
    "MB/s": "mb/s mbytes/sec",
    "GB/s": "gb/s gbytes/sec",
    "messages/s": "messages/s msg/sec",
    "tasks/s": "tasks/s",
    "%": "%",
    "B": "bytes",
}
_SPELLINGS = {word: unit for unit, words in _WRITTEN.items() for word in words.split()}
# Of the same letters, these are bits: they stay what they are.
_BITS = re.compile(r"[KMGTP]?b(it)?s?(/s|/sec|ps)?")
_TIMES = {"ns", "us", "ms", "s", "min", "h"}
_RATE_ENDS = ("/s", "/sec", "flops", "flop/s", "ups", "bps")


def spell(unit: str) -> str:
    """Return a unit as rankwise spells it; one that it does not know stays as it is."""
    written = unit.strip()
    return written if _BITS.fullmatch(written) else _SPELLINGS.get(written.lower(), written)


def is_known(unit: str) -> bool:
    """Return whether a text is a unit at all, as far as rankwise knows."""
    return bool(_BITS.fullmatch(unit.strip())) or unit.strip().lower() in (*_SPELLINGS, "b")


def direction(unit: str) -> Better:
    """Say what is better of two values; empty: the unit does not tell."""
    if unit in _TIMES:
        return "lower"
    return "higher" if unit.lower().endswith(_RATE_ENDS) else ""


MOST_SAMPLES = 10_000
_MOST_FAULTS = 5
_LONGEST_NAME = 200

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
        return Sample(
            metric=name,
            unit=self.unit,
            better=self.better,
            point=self.point,
            value=median(self.values) if self.value is None else self.value,
            raw=tuple(self.values) if len(self.values) > 1 else (),
        )


class Collector:
    """Takes the values that one parser finds, and keeps what can be relied on."""

    def __init__(self, wish: Metric) -> None:
        self._wish = wish
        self._series: dict[tuple[str, str, _At], _Series] = {}
        self._faults: list[str] = []
        self._remarks: list[str] = []
        self._seen: set[str] = set()

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
        self._seen.add(metric)
        metric, unit = plain(metric)[:_LONGEST_NAME], self._unit(plain(metric), plain(unit))
        where = f" at {_in_words(point)}" if point else ""
        if bad := [number for number in (value, *raw) if not math.isfinite(number)]:
            self.fault(f"{metric}{where} is {bad[0]}, which is no value")
        elif not metric:
            self.fault("there is a value without a name: say `name`")
        elif not unit:
            self.fault(f"{metric} has no unit: say `unit`, or `unit: 1` if it has none")
        # A wrong pattern may match each line of a large log.
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
        """Note why what was measured cannot be relied on."""
        if text not in self._faults:
            self._faults.append(text)

    def remark(self, text: str) -> None:
        """Note what a reader of the numbers should know."""
        if text not in self._remarks:
            self._remarks.append(text)

    def parsed(self) -> ParsedMetrics:
        """Return what came of it; that there is nothing is a fault as well."""
        samples = self._samples()
        if missing := [name for name in self._wish.only if name not in self._seen]:
            names = ", ".join(missing)
            self.fault(f"{self._wish.parser} has found no metric {names} in {self._wish.on}")
        faults = self._faults[:_MOST_FAULTS]
        if left := len(self._faults) - len(faults):
            faults.append(f"and {left} more")
        if not samples and not faults:
            faults.append(f"{self._wish.parser} has found no metric in {self._wish.on}")
        return ParsedMetrics(samples=samples, faults=tuple(faults), remarks=tuple(self._remarks))

    def _samples(self) -> tuple[Sample, ...]:
        """Return what was found by the name that is wanted, if there is one."""
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
        return spell(self._wish.unit or unit)[:_LONGEST_NAME]


def _cleaned(point: Point) -> dict[str, float | int | str]:
    """Return a point with names and texts that can be shown."""
    return {
        plain(name)[:_LONGEST_NAME]: plain(at)[:_LONGEST_NAME] if isinstance(at, str) else at
        for name, at in point.items()
    }


def _in_words(point: Point) -> str:
    return " ".join(f"{name}={value}" for name, value in point.items())


def read(wish: Metric, text: str) -> ParsedMetrics:
    """Read what one wish asks for."""
    parse: Parser = METRIC_PARSERS.load(wish.parser)
    return parse(wish, text)


def read_all(wishes: Iterable[Metric], text_of: Callable[[str], str]) -> ParsedMetrics:
    """Read what all wishes ask for, from texts that are named as in `Metric.on`.

    `text_of` may raise OSError or ValueError for a text that is not there: that is a fault.
    """
    readings = [_read_from(wish, text_of) for wish in wishes]
    return ParsedMetrics(
        samples=tuple(sample for each in readings for sample in each.samples),
        faults=tuple(fault for each in readings for fault in each.faults),
        remarks=tuple(remark for each in readings for remark in each.remarks),
    )


def _read_from(wish: Metric, text_of: Callable[[str], str]) -> ParsedMetrics:
    try:
        text = text_of(wish.on)
    except (OSError, ValueError) as error:
        return ParsedMetrics(faults=(f"{wish.parser} cannot read {wish.on}: {error}",))
    # Ours never raise, by their contract: an error there is to be seen whole.
    if wish.parser in METRIC_PARSERS.ours:
        return read(wish, text)
    # A parser of another package: what it raises must not end the whole run.
    try:
        parsed: object = read(wish, text)
    except Exception as error:  # Whatever that code raises.
        said = f"{wish.parser} failed: {type(error).__name__}: {error}"
    else:
        if isinstance(parsed, ParsedMetrics):
            return parsed
        said = f"{wish.parser} returned {type(parsed).__name__} in place of ParsedMetrics"
    return ParsedMetrics(faults=(said,))
