"""What every kind of document is planned from, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rankwise.plan import Task
from rankwise.site import Site
from rankwise.spec.documents import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is asked of a document, beside what it says itself."""

    site: Site
    on: str | None = None
    """The compute to take instead of those in the document."""
    is_strict: bool = False
    choice: Mapping[str, object] = field(default_factory=dict)
    """What the command line says that only some kinds understand."""
    including: tuple[Path, ...] = ()
    """The documents that have led here, the outermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The tasks of one document, whose keys are unique in it, and what people must know."""

    tasks: Sequence[Task]
    notices: Sequence[str] = ()


class Planner(Protocol):
    """How documents of one kind are planned."""

    def __call__(self, document: Document, ask: Ask) -> Planned:
        """Make tasks of a document; raises InputError with every mistake."""
