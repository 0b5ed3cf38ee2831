"""The summary of the HPC Challenge, in `hpccoutf.txt`.

It has a line `name=value` for each result and says no units: they are known from the names.
"""

from __future__ import annotations

from rankwise.metrics.collecting import Collector
from rankwise.metrics.contract import Reading
from rankwise.metrics.lines import lines_of, number_in
from rankwise.plan import Metric
from rankwise.store.samples import Better

_BEGIN, _END = "Begin of Summary section", "End of Summary section"
# How names end, or what is in them; the first that fits counts.
_UNITS: tuple[tuple[str, str, Better], ...] = (
    ("_Tflops", "TFLOP/s", "higher"),
    ("DGEMM_Gflops", "GFLOP/s", "higher"),
    ("FFT_Gflops", "GFLOP/s", "higher"),
    ("_GUPs", "GUP/s", "higher"),
    ("PTRANS_GBs", "GB/s", "higher"),
    ("STREAM_Copy", "GB/s", "higher"),
    ("STREAM_Scale", "GB/s", "higher"),
    ("STREAM_Add", "GB/s", "higher"),
    ("STREAM_Triad", "GB/s", "higher"),
    ("Latency_usec", "us", "lower"),
    ("Bandwidth_GBytes", "GB/s", "higher"),
    ("HPL_time", "s", "lower"),
    ("PTRANS_time", "s", "lower"),
    ("_time", "s", "lower"),
)


def read(wish: Metric, text: str) -> Reading:
    """Read the results; what else the summary says of the run is none."""
    found = Collector(wish)
    is_inside = False
    for line in lines_of(text):
        if line.startswith((_BEGIN, _END)):
            is_inside = line.startswith(_BEGIN)
        elif is_inside:
            name, _, shown = line.strip().partition("=")
            value = number_in(shown.strip())
            if value is not None and (known := _known(name)) and not _was_left_out(value):
                found.add(name, value, known[0], better=known[1])
            elif name == "Success" and value != 1:
                found.fault("HPCC says that the run was no success (Success=0)")
    return found.reading()


def _known(name: str) -> tuple[str, Better] | None:
    return next(((unit, better) for part, unit, better in _UNITS if part in name), None)


def _was_left_out(value: float) -> bool:
    """Tell whether a part did not run: HPCC writes -1 for it."""
    return value == -1
