"""Tables of the OSU micro-benchmarks, and of their likes in mpi4py's demos.

What a table shows is known from its title. A header is read, but not believed: mpi4py's `osu_bw`
prints MB/s under `Latency [us]`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.metrics.collecting import Collector
from rankwise.metrics.contract import Reading
from rankwise.metrics.lines import lines_of, numbers_in, size_in
from rankwise.metrics.units import is_known, spell
from rankwise.plan import Metric

_TITLE = re.compile(r"#\s*(?:OSU )?MPI(?P<what>[-\w/ ]{1,80}?) Test\b")
_COLUMN = re.compile(r"(?P<name>[^\s\[(][^\[(]*?)? ?[\[(](?P<unit>[^\])]+)[\])]")
_COUNTS = ("iterations", "samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    metric: str
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """What is known of a table when its numbers come."""

    title: str
    columns: tuple[_Column | None, ...] = ()
    """None: no metric, but the number of repetitions."""
    has_size: bool = True


def read(wish: Metric, text: str) -> Reading:
    """Read all tables of a text."""
    found = Collector(wish)
    table: _Table | None = None
    for line in lines_of(text):
        stripped = line.strip()
        if title := _TITLE.match(stripped):
            table = _Table(title=" ".join(title["what"].split()))
        elif table and stripped.startswith("#") and _is_header(stripped):
            table = _with_header(table, stripped, found)
        elif table and table.columns and (numbers := numbers_in(stripped)):
            _add(found, table, numbers)
    return found.reading()


def _is_header(line: str) -> bool:
    return "size" in line.lower().split()[:2] or bool(_COLUMN.search(line)) or "MB/s" in line


def _with_header(table: _Table, line: str, found: Collector) -> _Table:
    """Say what the columns are: by the title, where that says something else than the header."""
    words = [word.strip() for word in re.split(r"\s{2,}|\t", line.lstrip("# ")) if word.strip()]
    has_size = bool(words) and words[0].lower().startswith("size")
    columns = [_column(table.title, word, found) for word in words[has_size:]]
    return _Table(title=table.title, columns=tuple(columns), has_size=has_size)


def _column(title: str, word: str, found: Collector) -> _Column | None:
    if word.lower() in _COUNTS:
        return None
    shown = _COLUMN.fullmatch(word)
    name, unit = (shown["name"] or "", shown["unit"]) if shown else ("", word)
    metric = _slug(title)
    if not is_known(unit):
        return _Column(metric=_slug(f"{title} {word}"), unit="")
    unit, meant = spell(unit), _unit_of(title)
    if "message rate" in title.lower():
        return _Column(metric="message_rate" if unit == "messages/s" else "bandwidth", unit=unit)
    if meant == "MB/s" and unit == "us" and "latency" in name.lower():
        found.remark(
            f"the table `{title}` has the header `{word}`, but its title says bandwidth: "
            "its values are taken for MB/s"
        )
        return _Column(metric=metric, unit=meant)
    return _Column(metric=_metric_of_column(metric, name), unit=unit)


def _unit_of(title: str) -> str:
    return "MB/s" if "bandwidth" in title.lower() else "us" if "latency" in title.lower() else ""


def _metric_of_column(metric: str, name: str) -> str:
    """Name a column: that of the averages is the metric itself."""
    kind = name.lower().replace("latency", "").replace("bandwidth", "").strip()
    return metric if kind in ("", "avg") else f"{metric}_{_slug(kind)}"


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9%]+", "_", title.lower()).strip("_")


def _add(found: Collector, table: _Table, numbers: Sequence[float]) -> None:
    size, values = (size_in(numbers[0]), numbers[1:]) if table.has_size else (None, numbers)
    if len(values) != len(table.columns) or (table.has_size and size is None):
        # Some other line of numbers, which has nothing to do with the table.
        return
    for column, value in zip(table.columns, values, strict=True):
        if column is not None:
            found.add(column.metric, value, column.unit, point=_at(size))


def _at(size: int | None) -> dict[str, int]:
    return {} if size is None else {"size": size}
