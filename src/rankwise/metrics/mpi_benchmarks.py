"""Outputs of MPI benchmarks: OSU, IMB, HPCC, mpi4py.bench."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankwise.metrics import base
from rankwise.metrics.base import Collector, ParsedMetrics, lines_of, numbers_in, size_in
from rankwise.plan import Metric

_BANDWIDTH = "Bandwidth_GBytes"
_BEGIN, _END = "Begin of Summary section", "End of Summary section"
# How names end, or what is in them.
_UNITS: Mapping[str, Sequence[str]] = {
    "TFLOP/s": ("_Tflops",),
    "GFLOP/s": ("DGEMM_Gflops", "FFT_Gflops"),
    "GUP/s": ("_GUPs",),
    "GB/s": ("PTRANS_GBs", "STREAM_Copy", "STREAM_Scale", "STREAM_Add", "STREAM_Triad", _BANDWIDTH),
    "us": ("Latency_usec",),
    "s": ("_time",),
}


def read_hpcc(wish: Metric, text: str) -> ParsedMetrics:
    """Read the results; what else the summary says of the run is none."""
    found = Collector(wish)
    is_inside = False
    for line in lines_of(text):
        if line.startswith((_BEGIN, _END)):
            is_inside = line.startswith(_BEGIN)
        elif is_inside:
            name, _, shown = line.strip().partition("=")
            value = base.number_in(shown.strip())
            # HPCC writes -1 for a part that did not run.
            units = (unit for unit, parts in _UNITS.items() if any(one in name for one in parts))
            if value not in (None, -1) and (unit := next(units, "")):
                found.add(name, value, unit)
            elif name == "Success" and value != 1:
                found.fault("HPCC says that the run was no success (Success=0)")
    return found.parsed()


_BENCHMARK = re.compile(r"#\s*Benchmarking\s+(?P<name>\S{1,60})")
_PROCESSES = re.compile(r"#\s*#processes\s*=\s*(?P<ranks>\d{1,9})")
_MODE = re.compile(r"#\s*MODE:\s*(?P<mode>\S{1,40})")
_IMB_COLUMN = re.compile(r"(?P<name>[\w.]+)\[(?P<unit>[^\]]+)\]")
_RATES = ("Mbytes/sec", "Msg/sec")
_TIMES = {"t": "time", "t_avg": "time", "t_min": "time_min", "t_max": "time_max"}
_NAMES = {"Mbytes/sec": "bandwidth", "Msg/sec": "message_rate"}


def read_imb(wish: Metric, text: str) -> ParsedMetrics:
    """Read all tables of a text."""
    found = Collector(wish)
    benchmark, about, columns = "", dict[str, int | str](), list[str]()
    for line in lines_of(text):
        if started := _BENCHMARK.search(line):
            benchmark, about, columns = started["name"].lower(), {}, []
        elif processes := _PROCESSES.search(line):
            about = {**about, "ranks": int(processes["ranks"])}
        elif mode := _MODE.search(line):
            about, columns = {**about, "mode": mode["mode"].lower()}, []
        elif benchmark and "#repetitions" in line:
            columns = line.replace("int. overlap", "overlap").split()
        elif columns and (numbers := numbers_in(line)) and len(numbers) == len(columns):
            _add_imb(found, benchmark, about, dict(zip(columns, numbers, strict=True)))
    return found.parsed()


def _add_imb(
    found: Collector, benchmark: str, about: dict[str, int | str], shown: Mapping[str, float]
) -> None:
    size = size_in(shown["#bytes"]) if "#bytes" in shown else None
    point = about if size is None else {**about, "size": size}
    for column, value in shown.items():
        if column in _RATES:
            # Nothing goes at no speed: of empty messages there is no bandwidth.
            if value or shown.get("#bytes"):
                found.add(f"{benchmark}_{_NAMES[column]}", value, base.spell(column), point=point)
        elif named := _IMB_COLUMN.fullmatch(column):
            name = _TIMES.get(named["name"], named["name"].lower())
            found.add(f"{benchmark}_{name}", value, named["unit"], point=point)


_RING = re.compile(
    r"time for (?P<loops>\d{1,12}) loops = (?P<seconds>\S{1,40}) seconds "
    r"\((?P<ranks>\d{1,9}) processes, (?P<size>\d{1,18}) bytes\)"
)
# How the second column is called, and in which unit it is. With --no-header it is a pingpong.
_FIRST = {
    "# MPI PingPong Test": ("pingpong_bandwidth", "MB/s", "pingpong_time"),
    "# MPIPoolExecutor": ("futures_rate", "tasks/s", "futures_time"),
}
_PINGPONG = _FIRST["# MPI PingPong Test"]
# Mean, deviation and number of samples.
_STATISTICS = 3


def read_mpi4py_bench(wish: Metric, text: str) -> ParsedMetrics:
    """Read all tables of a text."""
    found = Collector(wish)
    names = _PINGPONG
    for line in lines_of(text):
        if line.startswith("#"):
            titled = (known for title, known in _FIRST.items() if line.startswith(title))
            names = next(titled, names)
        elif ring := _RING.search(line):
            seconds, loops = base.number_in(ring["seconds"]), int(ring["loops"])
            point = {"size": int(ring["size"]), "ranks": int(ring["ranks"])}
            if seconds is not None and loops:
                found.add("ringtest_time", seconds / loops, "s", point=point)
        else:
            first, bar, second = line.partition("|")
            rates = numbers_in(first)
            if len(rates) == 2:
                times = numbers_in(second.replace("±", " ")) if bar else []
                _add_sizes(found, names, rates, times)
    return found.parsed()


def _add_sizes(
    found: Collector, names: tuple[str, str, str], rates: Sequence[float], times: Sequence[float]
) -> None:
    size = size_in(rates[0])
    if size is None:
        # This is another's line.
        return
    point = {"size": size}
    found.add(names[0], rates[1], names[1], point=point)
    if len(times) == _STATISTICS:
        found.add(names[2], times[0], "s", point=point)


_TITLE = re.compile(r"#\s*(?:OSU )?MPI(?P<what>[-\w/ ]{1,80}?) Test\b")
_OSU_COLUMN = re.compile(r"(?P<name>[^\s\[(][^\[(]*?)? ?[\[(](?P<unit>[^\])]+)[\])]")
_COUNTS = ("iterations", "samples")


_Column = tuple[str, str]
"""A metric and its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """What is known of a table when its numbers come."""

    title: str
    columns: tuple[_Column | None, ...] = ()
    """None: no metric, but the number of repetitions."""
    has_size: bool = True


def read_osu(wish: Metric, text: str) -> ParsedMetrics:
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
            _add_osu(found, table, numbers)
    return found.parsed()


def _is_header(line: str) -> bool:
    return "size" in line.lower().split()[:2] or bool(_OSU_COLUMN.search(line)) or "MB/s" in line


def _with_header(table: _Table, line: str, found: Collector) -> _Table:
    """Say what the columns are: by the title, where that says something else than the header."""
    words = [word.strip() for word in re.split(r"\s{2,}|\t", line.lstrip("# ")) if word.strip()]
    has_size = bool(words) and words[0].lower().startswith("size")
    columns = [_column(table.title, word, found) for word in words[has_size:]]
    return _Table(title=table.title, columns=tuple(columns), has_size=has_size)


def _column(title: str, word: str, found: Collector) -> _Column | None:
    if word.lower() in _COUNTS:
        return None
    shown = _OSU_COLUMN.fullmatch(word)
    name, unit = (shown["name"] or "", shown["unit"]) if shown else ("", word)
    metric = _slug(title)
    if not base.is_known(unit):
        return _slug(f"{title} {word}"), ""
    unit = base.spell(unit)
    if "message rate" in title.lower():
        return "message_rate" if unit == "messages/s" else "bandwidth", unit
    if "bandwidth" in title.lower() and unit == "us" and "latency" in name.lower():
        found.remark(
            f"the table `{title}` has the header `{word}`, but its title says bandwidth: "
            "its values are taken for MB/s"
        )
        return metric, "MB/s"
    # The column of the averages is the metric itself.
    kind = name.lower().replace("latency", "").replace("bandwidth", "").strip()
    return metric if kind in ("", "avg") else f"{metric}_{_slug(kind)}", unit


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9%]+", "_", title.lower()).strip("_")


def _add_osu(found: Collector, table: _Table, numbers: Sequence[float]) -> None:
    size, values = (size_in(numbers[0]), numbers[1:]) if table.has_size else (None, numbers)
    if len(values) != len(table.columns) or (table.has_size and size is None):
        # Some other line of numbers, which has nothing to do with the table.
        return
    point = {} if size is None else {"size": size}
    for column, value in zip(table.columns, values, strict=True):
        if column is not None:
            found.add(column[0], value, column[1], point=point)
