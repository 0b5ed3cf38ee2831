"""What came of reading an output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rankwise.plan import Metric
from rankwise.store.samples import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was read."""

    samples: tuple[Sample, ...] = ()
    faults: tuple[str, ...] = ()
    """Why what was measured cannot be relied on: a case with any of them has failed."""
    remarks: tuple[str, ...] = ()
    """What somebody should know who looks at the numbers."""


Parser = Callable[[Metric, str], Reading]
"""Reads a text. It never fails, whatever the text is: what is wrong is told as a fault."""
