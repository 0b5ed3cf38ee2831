"""How attempts have ended, from what their runners have left."""

from __future__ import annotations

from pathlib import Path

from rankwise.records import AttemptEnd, read_end
from rankwise.store import State

LOST_CODE = 1


def end_of(folder: Path) -> AttemptEnd:
    """Tell how an attempt ended whose runner is gone."""
    end = read_end(folder)
    if end is not None:
        return end
    reason = "its runner was killed, or could not write down how it ended"
    if last := _last_words(folder):
        reason += f": {last}"
    return AttemptEnd(outcome=State.LOST, exit_code=LOST_CODE, reason=reason)


def _last_words(folder: Path) -> str:
    try:
        lines = (folder / "runner.log").read_text(errors="replace").strip().splitlines()
    except OSError:
        return f"{folder} is gone"
    return lines[-1] if lines else ""
