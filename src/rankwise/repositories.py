"""Repositories of git, as far as pipelines need them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from rankwise.errors import ComputeFailure


def git(*arguments: str, folder: Path | None = None) -> str:
    """Run git and give what it says; raises ComputeFailure with its own words."""
    line = ["git", *(["-C", str(folder)] if folder is not None else []), *arguments]
    try:
        done = subprocess.run(
            line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise ComputeFailure(f"git does not start: {error.strerror}; is it installed?") from error
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise ComputeFailure(f"git {arguments[0]}: {said}")
    return done.stdout


def changes_in(folder: Path) -> list[str]:
    """Name the files that git knows and that differ from what was committed."""
    said = git("status", "--porcelain", "--untracked-files=no", folder=folder)
    return [line[3:] for line in said.splitlines()]


def folder_for(repository: str) -> str:
    """Give the name of the folder that `git clone` would make."""
    return repository.rstrip("/").removesuffix("/.git").rpartition("/")[2].removesuffix(".git")
