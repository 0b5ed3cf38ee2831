"""Which runs somebody means who compares: by id, name, tag, branch or commit."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.errors import InputError

if TYPE_CHECKING:
    from rankwise.report.comparison import Side
    from rankwise.store import RunRow, Store

_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_TAG = re.compile(r"(?P<name>[\w.-]+)=(?P<value>.*)")
# So many runs are looked through; older ones are not what anybody compares with today.
_MOST = 2000
_GIT_SECONDS = 10.0


def side_of(store: Store, given: str, *, last: int, folder: Path) -> Side:
    """Give the runs that are meant; of a tag or a branch the last ones, of a commit all.

    Raises InputError if there are none.
    """
    from rankwise.report.comparison import Side

    return Side(given=given, runs=_runs(store, given, last=last, folder=folder))


def _runs(store: Store, given: str, *, last: int, folder: Path) -> list[RunRow]:
    runs = store.runs(_MOST)

    def having(matches: Callable[[RunRow], bool], most: int = _MOST) -> list[RunRow]:
        return [run for run in runs if matches(run)][:most]

    if tag := _TAG.fullmatch(given):
        if found := having(lambda run: run.tags.get(tag["name"]) == tag["value"], last):
            return found
        raise InputError(f"{store.path}: no run has the tag {given}")
    if found := having(lambda run: run.id == given):
        return found
    if found := having(lambda run: run.tags.get("git.branch") == given, last):
        return found
    for commit in filter(None, (given, _resolved(given, folder))):
        if _COMMIT.fullmatch(commit) and (found := having(_is_at(commit))):
            return found
    return [store.find_run(given)]


def _is_at(commit: str) -> Callable[[RunRow], bool]:
    def is_at(run: RunRow) -> bool:
        is_clean = "git.dirty" not in run.tags
        return is_clean and run.tags.get("git.commit", "").startswith(commit)

    return is_at


def _resolved(given: str, folder: Path) -> str:
    """Give the commit that git knows by this name here: HEAD~1, v1.0; empty: none."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--verify", "-q", f"{given}^{{commit}}", "--"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.split("\n")[0].strip() if done.returncode == 0 else ""
