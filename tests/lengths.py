"""How much of what is drawn, or goes on for long, is run.

Every day a part, so that a change is judged within minutes; all of it with RANKWISE_FULL_LENGTH=1.
"""

from __future__ import annotations

import os

IS_FULL = bool(os.environ.get("RANKWISE_FULL_LENGTH"))


def part(every_day: int, all_of_it: int) -> int:
    """Return the number of rounds to go."""
    return all_of_it if IS_FULL else every_day
