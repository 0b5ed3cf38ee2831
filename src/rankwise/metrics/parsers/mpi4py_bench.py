"""What `python -m mpi4py.bench` prints: pingpong, ringtest and futures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rankwise.metrics.collecting import Collector
from rankwise.metrics.contract import Reading
from rankwise.metrics.lines import lines_of, numbers_in, size_in
from rankwise.plan import Metric

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


def read(wish: Metric, text: str) -> Reading:
    """Read all tables of a text."""
    found = Collector(wish)
    names = _PINGPONG
    for line in lines_of(text):
        if line.startswith("#"):
            names = _of_title(line, names)
        elif ring := _RING.search(line):
            _add_ring(found, ring.groupdict())
        else:
            first, bar, second = line.partition("|")
            rates = numbers_in(first)
            if len(rates) == 2:
                times = numbers_in(second.replace("±", " ")) if bar else []
                _add(found, names, rates, times)
    return found.reading()


def _of_title(line: str, names: tuple[str, str, str]) -> tuple[str, str, str]:
    return next((known for title, known in _FIRST.items() if line.startswith(title)), names)


def _add(
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


def _add_ring(found: Collector, ring: Mapping[str, str]) -> None:
    seconds = numbers_in(ring["seconds"])
    point = {"size": int(ring["size"]), "ranks": int(ring["ranks"])}
    if seconds and int(ring["loops"]):
        found.add("ringtest_time", seconds[0] / int(ring["loops"]), "s", point=point)
