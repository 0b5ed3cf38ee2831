"""What a browser asks for, as plain data, and links that ask for something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

_LONGEST = 300
_LONGEST_NAME = 5000
_MOST_PAGES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One question: a path, what follows it, and when it was asked."""

    path: str = "/"
    query: Mapping[str, str] = field(default_factory=dict)
    run: str = ""
    now: float = 0.0
    form: str = ""
    """The word that our own forms send along."""

    def text(self, name: str) -> str:
        """Give what was written in a field, without what no field has."""
        return self.query.get(name, "").replace("\0", "")[:_LONGEST].strip()

    def name(self, name: str) -> str:
        """Give the name of something that is there, as it is."""
        return self.query.get(name, "")[:_LONGEST_NAME]

    def number(self, name: str, *, default: int = 1, least: int = 1) -> int:
        """Give a number; what is none is the default."""
        given = self.query.get(name, "")
        # Not isdigit alone: it takes digits that int does not.
        if not (given.isascii() and given.isdigit() and len(given) < 10):
            return default
        return min(max(int(given), least), _MOST_PAGES)

    def choice(self, name: str, choices: Mapping[str, object], default: str) -> str:
        """Give one of several words; anything else is the default."""
        given = self.query.get(name, "")
        return given if given in choices else default

    def link(self, **changes: str | int | None) -> str:
        """Give the address of the same page with other parameters; None leaves one out."""
        kept: dict[str, str | int | None] = {**self.query, **changes}
        return address(self.path, **kept)


def address(path: str, **query: str | int | None) -> str:
    """Put an address together; parameters that are empty are left out."""
    given = {name: str(value) for name, value in query.items() if value not in (None, "")}
    # What is no Unicode could not be asked for.
    written = urlencode(given, errors="replace")
    return f"{path}?{written}" if written else path


def run_address(run: str, part: str = "", **query: str | int | None) -> str:
    """Give the address of a run's page."""
    base = f"/runs/{quote(run, safe='', errors='replace')}"
    return address(f"{base}/{part}" if part else base, **query)
