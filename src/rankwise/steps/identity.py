"""What a step has made, in one word: where it is the same, later stages need not run again."""

from __future__ import annotations

from rankwise.records import IDENTITY
from rankwise.steps.program import attempt_folder


def note_identity(text: str) -> None:
    """Say what has been made."""
    folder = attempt_folder()
    if folder is not None:
        (folder / IDENTITY).write_text(text)
