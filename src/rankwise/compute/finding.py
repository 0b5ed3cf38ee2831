"""What was looked at, and what to change where something is missing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    what: str
    is_well: bool = True
    is_needed: bool = True
    """Whether nothing can run without it; what is only good to know is not."""
    remedy: str = ""
