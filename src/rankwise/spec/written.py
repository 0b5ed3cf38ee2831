"""The contents of a document, each with the place where it was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankwise.spec.mistakes import Position


class Scalar(str):
    """A number or a truth value: a text as it was written, with what YAML takes it for.

    Where a document wants text (`PORT: 0080`, `command: true`) it is text already; where it wants
    a number, that is `value`.
    """

    __slots__ = ("value",)

    value: int | float | bool

    @classmethod
    def of(cls, text: str, value: int | float | bool) -> Scalar:
        """Put a text and its value together."""
        made = cls(text)
        made.value = value
        return made


class Section(dict[str, Any]):
    """A mapping."""

    __slots__ = ("keys_at", "position", "values_at")

    def __init__(self, position: Position) -> None:
        super().__init__()
        self.position = position
        self.keys_at: dict[str, Position] = {}
        self.values_at: dict[str, Position] = {}

    def put(self, key: str, value: Any, key_at: Position, value_at: Position) -> None:
        """Add an entry."""
        self[key] = value
        self.keys_at[key] = key_at
        self.values_at[key] = value_at


class Listing(list[Any]):
    """A list."""

    __slots__ = ("position", "values_at")

    def __init__(self, position: Position) -> None:
        super().__init__()
        self.position = position
        self.values_at: list[Position] = []

    def put(self, value: Any, at: Position) -> None:
        """Add an entry at the end."""
        self.append(value)
        self.values_at.append(at)


class Found:
    """Where a path into a document leads, as far as the document goes along with it.

    Steps that the document does not have are passed over: a checker's path also names the kind
    that it has chosen.
    """

    def __init__(self, root: Section, path: Sequence[int | str]) -> None:
        self.value: Any = root
        self.parent: Section | Listing | None = None
        self.key_at = self.value_at = root.position
        self.name = ""
        for step in path:
            self._go(step)

    def _go(self, step: int | str) -> None:
        here = self.value
        if isinstance(here, Section) and isinstance(step, str) and step in here:
            self.key_at, self.value_at = here.keys_at[step], here.values_at[step]
            self.name += f".{step}" if self.name else step
        elif isinstance(here, Listing) and isinstance(step, int) and step < len(here):
            self.key_at = self.value_at = here.values_at[step]
            # People count from 1.
            self.name += f"[{step + 1}]"
        else:
            return
        self.parent, self.value = here, here[step]


def copied(value: Any) -> Any:
    """Make a second of it, for another place in the document; its positions stay the same."""
    if isinstance(value, Section):
        section = Section(value.position)
        for key, entry in value.items():
            section.put(key, copied(entry), value.keys_at[key], value.values_at[key])
        return section
    if isinstance(value, Listing):
        listing = Listing(value.position)
        for entry, at in zip(value, value.values_at, strict=True):
            listing.put(copied(entry), at)
        return listing
    return value
