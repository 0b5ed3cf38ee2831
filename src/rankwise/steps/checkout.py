"""Gets a repository of git, at the state that is wanted."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rankwise.errors import InputError, RankwiseError
from rankwise.repositories import changes_in, folder_for, git
from rankwise.steps.identity import identity_at, note_identity
from rankwise.steps.program import expanded, guarded, leave

_NOTE = "rankwise-identity"


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="rankwise.steps.checkout", description=__doc__)
    parser.add_argument("repository", help="its address, or a folder")
    parser.add_argument("--ref", default="", help="branch, tag or commit")
    parser.add_argument("--into", default="", help="the folder")
    parser.add_argument("--clean", action="store_true", help="throw away what was changed there")
    given = parser.parse_args()

    def act() -> None:
        repository = expanded(given.repository)
        folder = Path(expanded(given.into or folder_for(repository))).absolute()
        is_there = (folder / ".git").exists()
        commit, is_changed = check_out(repository, folder, expanded(given.ref), clean=given.clean)
        print(f"{folder}: {git('log', '-1', '--format=%h %s', folder=folder).strip()}")
        is_new = is_changed or not is_there
        note_identity(identity_at(folder / ".git" / _NOTE, commit, is_new=is_new))
        leave({"GIT_COMMIT": commit})

    return guarded(act)


def check_out(repository: str, folder: Path, ref: str, *, clean: bool) -> tuple[str, bool]:
    """Bring a folder to a state of a repository; may be repeated.

    Gives the commit, and whether anything was removed that was built there.
    """
    if (folder / ".git").exists():
        _look_after_changes(folder, clean=clean)
        git("remote", "set-url", "origin", repository, folder=folder)
    elif folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is there and no repository of git: move it away")
    else:
        # Step by step, so that one that was ended in between can go on.
        git("init", "--quiet", str(folder))
        git("remote", "add", "origin", repository, folder=folder)
    git("fetch", "--quiet", "--tags", "--force", "--prune", "origin", folder=folder)
    if not ref:
        git("remote", "set-head", "origin", "--auto", folder=folder)
    commit = _commit(folder, ref or "HEAD")
    git("checkout", "--quiet", "--detach", *(["--force"] if clean else []), commit, folder=folder)
    removed = git("clean", "-ffdx", folder=folder) if clean else ""
    if (folder / ".gitmodules").exists():
        git("submodule", "update", "--quiet", "--init", "--recursive", folder=folder)
    return commit, bool(removed)


def _look_after_changes(folder: Path, *, clean: bool) -> None:
    if clean:
        git("reset", "--quiet", "--hard", folder=folder)
    elif changed := changes_in(folder):
        raise InputError(
            f"{folder} was changed by hand: {', '.join(changed[:3])}; commit it, or say "
            "`clean: true` to throw it away"
        )


def _commit(folder: Path, ref: str) -> str:
    """Find what is meant: a branch as it is there now, then a tag or a commit."""
    for name in (f"refs/remotes/origin/{ref}", f"refs/tags/{ref}", ref):
        try:
            return git(
                "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", folder=folder
            ).strip()
        except RankwiseError:
            continue
    raise InputError(f"{folder}: the repository has no branch, tag or commit {ref!r}")


if __name__ == "__main__":
    sys.exit(main())
