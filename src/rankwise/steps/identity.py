"""What a step has made, in one word: where it is the same, later stages need not run again."""

from __future__ import annotations

import secrets
from pathlib import Path

from rankwise.records import IDENTITY
from rankwise.steps.program import attempt_folder


def identity_at(path: Path, what: str, *, is_new: bool) -> str:
    """Give the identity of something in the workspace, noted in a file beside it.

    What was made anew is another one: it lacks what later stages have put into the old one.
    """
    noted = path.read_text() if path.exists() else ""
    if is_new or noted.partition(" ")[0] != what:
        noted = f"{what} {secrets.token_hex(8)}"
        path.write_text(noted)
    return noted


def note_identity(text: str) -> None:
    """Say what has been made."""
    folder = attempt_folder()
    if folder is not None:
        (folder / IDENTITY).write_text(text)
