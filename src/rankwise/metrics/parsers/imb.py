"""Tables of the Intel MPI Benchmarks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rankwise.metrics.collecting import Collector
from rankwise.metrics.contract import Reading
from rankwise.metrics.lines import lines_of, numbers_in, size_in
from rankwise.metrics.units import spell
from rankwise.plan import Metric

_BENCHMARK = re.compile(r"#\s*Benchmarking\s+(?P<name>\S{1,60})")
_PROCESSES = re.compile(r"#\s*#processes\s*=\s*(?P<ranks>\d{1,9})")
_MODE = re.compile(r"#\s*MODE:\s*(?P<mode>\S{1,40})")
_COLUMN = re.compile(r"(?P<name>[\w.]+)\[(?P<unit>[^\]]+)\]")
_RATES = ("Mbytes/sec", "Msg/sec")
_TIMES = {"t": "time", "t_avg": "time", "t_min": "time_min", "t_max": "time_max"}
_NAMES = {"Mbytes/sec": "bandwidth", "Msg/sec": "message_rate"}


def read(wish: Metric, text: str) -> Reading:
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
            _add(found, benchmark, about, columns, numbers)
    return found.reading()


def _add(
    found: Collector,
    benchmark: str,
    about: dict[str, int | str],
    columns: Sequence[str],
    numbers: Sequence[float],
) -> None:
    shown = dict(zip(columns, numbers, strict=True))
    size = size_in(shown["#bytes"]) if "#bytes" in shown else None
    point = about if size is None else {**about, "size": size}
    for column, value in shown.items():
        if column in _RATES:
            # Nothing goes at no speed: of empty messages there is no bandwidth.
            if value or shown.get("#bytes"):
                found.add(f"{benchmark}_{_NAMES[column]}", value, spell(column), point=point)
        elif named := _COLUMN.fullmatch(column):
            name = _TIMES.get(named["name"], named["name"].lower())
            found.add(f"{benchmark}_{name}", value, named["unit"], point=point)
