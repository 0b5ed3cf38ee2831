"""Repositories of git, as far as pipelines need them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rankwise.errors import ComputeFailure
from rankwise.node.repository import GitFailure, call_git


def git(
    *arguments: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> str:
    """Run git and give what it says; raises ComputeFailure with its own words."""
    place = str(folder or "")
    try:
        return call_git(*arguments, folder=place, environment=environment, seconds=seconds)
    except GitFailure as failure:
        raise ComputeFailure(str(failure)) from failure


def changes_in(folder: Path) -> list[str]:
    """Name the files that git knows and that differ from what was committed."""
    said = git("status", "--porcelain", "--untracked-files=no", folder=folder)
    return [line[3:] for line in said.splitlines()]


def folder_for(repository: str) -> str:
    """Return the name of the folder that `git clone` would make."""
    return repository.rstrip("/").removesuffix("/.git").rpartition("/")[2].removesuffix(".git")
