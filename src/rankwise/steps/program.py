"""What all steps have in common: errors that become words, and folders of the attempt."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from rankwise.errors import RankwiseError
from rankwise.records import write_exports

_FAILED = 1


def guarded(act: Callable[[], None]) -> int:
    """Do it, and give the exit code; what goes wrong is said in words."""
    try:
        act()
    except RankwiseError as error:
        print(f"rankwise: {error}", file=sys.stderr)
        return _FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"rankwise: {where}{error.strerror or error}", file=sys.stderr)
        return _FAILED
    return 0


def expanded(text: str) -> str:
    """Put in variables and `~`, as a shell does."""
    return os.path.expanduser(os.path.expandvars(text))  # noqa: PTH111  # it may be no path


def attempt_folder() -> Path | None:
    """Give the folder of the attempt; None: somebody has called the step by hand."""
    given = os.environ.get("RANKWISE_FOLDER")
    return Path(given) if given else None


def leave(variables: dict[str, str | None]) -> None:
    """Leave variables to later stages."""
    folder = attempt_folder()
    if folder is not None:
        write_exports(folder, variables)
