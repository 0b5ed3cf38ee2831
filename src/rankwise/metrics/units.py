"""Units: how they are spelled, and which direction is the good one."""

from __future__ import annotations

from rankwise.store.samples import Better

NONE = "1"
"""The unit of plain numbers."""

_SPELLINGS = {
    "us": "us",
    "µs": "us",
    "μs": "us",
    "usec": "us",
    "ns": "ns",
    "nsec": "ns",
    "ms": "ms",
    "msec": "ms",
    "s": "s",
    "sec": "s",
    "secs": "s",
    "seconds": "s",
    "mb/s": "MB/s",
    "mbytes/sec": "MB/s",
    "gb/s": "GB/s",
    "gbytes/sec": "GB/s",
    "messages/s": "messages/s",
    "msg/sec": "messages/s",
    "tasks/s": "tasks/s",
    "%": "%",
    "b": "B",
    "bytes": "B",
}
_TIMES = {"ns", "us", "ms", "s", "min", "h"}
_RATE_ENDS = ("/s", "/sec", "flops", "flop/s", "ups")


def spell(unit: str) -> str:
    """Give a unit as rankwise spells it; one that it does not know stays as it is."""
    return _SPELLINGS.get(unit.strip().lower(), unit.strip())


def is_known(unit: str) -> bool:
    """Tell whether a text is a unit at all, as far as rankwise knows."""
    return unit.strip().lower() in _SPELLINGS


def direction(unit: str) -> Better:
    """Say what is better of two values; empty: nobody can know it from the unit."""
    if unit in _TIMES:
        return "lower"
    return "higher" if unit.lower().endswith(_RATE_ENDS) else ""
