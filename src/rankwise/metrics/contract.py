"""What is to be read from an output, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rankwise.store.samples import Better, Sample

OUTPUT = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody wants to be read from what a program has written."""

    parser: str
    """One of `reading.PARSERS`."""
    name: str = ""
    """What to call the metric; empty: as the output does."""
    unit: str = ""
    """What it is measured in, `1` for a plain number; empty: as the output says."""
    better: Better = ""
    """Empty: as it follows from the unit."""
    only: tuple[str, ...] = ()
    """Which metrics to keep, by the names that the output gives them; empty: all."""
    pattern: str = ""
    """For `regex`: with a group `value`; `metric` and `unit` if they are there, others say where
    on its axes a value was taken."""
    function: str = ""
    """For `python`: FILE.py:FUNCTION."""
    axes: tuple[str, ...] = ()
    """For `json-lines`: the keys that say where on its axes a value was taken."""
    on: str = OUTPUT
    """Where to look: `output`, `stdout`, `stderr`, or the name of a file."""
    seconds: float = 60.0
    """How long a pattern or a function may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was read."""

    samples: tuple[Sample, ...] = ()
    faults: tuple[str, ...] = ()
    """Why what was measured cannot be relied on: a case with any of them has failed."""
    remarks: tuple[str, ...] = ()
    """What somebody should know who looks at the numbers."""


Parser = Callable[[Wish, str], Reading]
"""Reads a text. It never fails, whatever the text is: what is wrong is told as a fault."""
