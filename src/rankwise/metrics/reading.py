"""The parsers by their names, and what they find together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType

from rankwise.metrics.contract import Parser, Reading
from rankwise.plan import Metric

PARSERS: Mapping[str, str] = {
    "osu": "osu",
    "mpi4py.bench": "mpi4py_bench",
    "imb": "imb",
    "hpcc": "hpcc",
    "json-lines": "json_lines",
    "pytest-benchmark": "pytest_benchmark",
    "reframe": "reframe",
    "regex": "regex",
    "python": "python",
}
"""What documents call them, and the modules that they are in."""


def read(wish: Metric, text: str) -> Reading:
    """Read what one wish asks for."""
    module: ModuleType = import_module(f"rankwise.metrics.parsers.{PARSERS[wish.parser]}")
    parse: Parser = module.read
    return parse(wish, text)


def read_all(wishes: Iterable[Metric], text_of: Callable[[str], str]) -> Reading:
    """Read what all wishes ask for, from texts that are named as in `Metric.on`.

    `text_of` may raise OSError or ValueError for a text that is not there: that is a fault.
    """
    readings = [_read_from(wish, text_of) for wish in wishes]
    return Reading(
        samples=tuple(sample for each in readings for sample in each.samples),
        faults=tuple(fault for each in readings for fault in each.faults),
        remarks=tuple(remark for each in readings for remark in each.remarks),
    )


def _read_from(wish: Metric, text_of: Callable[[str], str]) -> Reading:
    try:
        text = text_of(wish.on)
    except (OSError, ValueError) as error:
        return Reading(faults=(f"{wish.parser} cannot read {wish.on}: {error}",))
    return read(wish, text)
