"""What a site file says of computes and runtimes. Plain data, no effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rankwise.plan import Resources, RuntimeChoice

LOCAL = "local"
"""The compute that is always there."""
CURRENT = "current"
"""The runtime that is always there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeChoice:
    """Where tasks run, and what that place is said to have; None: what is found there."""

    name: str = LOCAL
    """As the document calls it."""
    backend: str = LOCAL
    cores: float | None = None
    memory: int | None = None
    """In bytes."""
    gpus: int | None = None
    oversubscribe: bool = False
    """Whether tasks may run at once that need more than there is."""
    is_mapped: bool = True
    """False: no site file has the name, and this machine stands in."""
    place: str = ""
    """Where it is written: `rankwise.toml:3`."""

    def capacity(self, found: Resources) -> Resources:
        """Put what was told over what was found."""
        return Resources(
            cores=found.cores if self.cores is None else self.cores,
            memory=found.memory if self.memory is None else self.memory,
            gpus=found.gpus if self.gpus is None else self.gpus,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one site file says; names may end in `*`."""

    file: Path
    computes: Mapping[str, ComputeChoice] = field(default_factory=dict)
    runtimes: Mapping[str, RuntimeChoice] = field(default_factory=dict)
    default_compute: str = ""
    default_runtime: str = ""
