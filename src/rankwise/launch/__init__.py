"""How the ranks of a program find each other."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any


@cache
def read_tables(name: str) -> dict[str, Any]:
    """Return the tables of a file of this folder."""
    # Read late: most processes start no ranks.
    import tomllib

    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
