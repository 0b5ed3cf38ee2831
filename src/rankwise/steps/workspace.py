"""Steps that make a place to work in: a checkout, an environment."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from rankwise.errors import ComputeFailure, InputError
from rankwise.git import changes_in, folder_for, git
from rankwise.node.equipment import run
from rankwise.node.repository import commit_of, without_login
from rankwise.runtimes.uv import texts_of
from rankwise.steps import expanded, identity_at, leave, note_identity, refuse_secrets

_NOTE = "rankwise-identity"


def checkout_step(*, repository: str, ref: str = "", into: str = "", clean: bool = False) -> None:
    """Check out a commit of a repository; with `clean`, throw away what was changed there."""
    repository = expanded(repository)
    folder = Path(expanded(into or folder_for(repository))).absolute()
    is_there = (folder / ".git").exists()
    commit, is_changed = check_out(repository, folder, expanded(ref), clean=clean)
    print(f"{folder}: {git('log', '-1', '--format=%h %s', folder=folder).strip()}")
    is_new = is_changed or not is_there
    note_identity(identity_at(folder / ".git" / _NOTE, commit, is_new=is_new))
    leave({"GIT_COMMIT": commit})


def check_out(repository: str, folder: Path, ref: str, *, clean: bool) -> tuple[str, bool]:
    """Bring a folder to a state of a repository; may be repeated.

    Gives the commit, and whether anything was removed that was built there.
    """
    repository, login = without_login(repository)
    if Path(repository).exists():
        # As `git clone` does: git takes what is relative from the new folder on.
        repository = str(Path(repository).absolute())
    refuse_secrets("the address", repository)
    refuse_secrets("`ref`", ref)
    if (folder / ".git").exists():
        _look_after_changes(folder, clean=clean)
        git("remote", "set-url", "origin", repository, folder=folder)
    elif folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is there and no repository of git: move it away")
    else:
        # Step by step, so that one that was ended in between can go on.
        git("init", "--quiet", str(folder))
        git("remote", "add", "origin", repository, folder=folder)
    fetch = ("fetch", "--quiet", "--tags", "--force", "--prune", "origin")
    git(*fetch, folder=folder, environment=login)
    if not ref:
        git("remote", "set-head", "origin", "--auto", folder=folder, environment=login)
    commit = _commit(folder, ref or "HEAD")
    git("checkout", "--quiet", "--detach", *(["--force"] if clean else []), commit, folder=folder)
    removed = git("clean", "-ffdx", folder=folder) if clean else ""
    # After the checkout: which modules there are depends on the commit.
    if (folder / ".gitmodules").exists():
        modules = ("submodule", "update", "--quiet", "--init", "--recursive")
        git(*modules, folder=folder, environment=login)
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
    if found := commit_of(str(folder), ref, "refs/remotes/origin"):
        return found
    raise InputError(f"{folder}: the repository has no branch, tag or commit {ref!r}")


_STAMP = ".rankwise-runtime"


def runtime_step(
    *,
    into: str,
    python: str = "",
    packages: Sequence[str] = (),
    requirements: Sequence[str] = (),
    site_packages: bool = False,
) -> None:
    """Make the environment of all later stages; `site_packages`: it sees those of that Python."""
    folder = Path(expanded(into)).absolute()
    identity = make(
        folder,
        _interpreter(expanded(python)),
        packages=packages,
        requirements=[Path(expanded(name)) for name in requirements],
        with_site=site_packages,
    )
    note_identity(identity)
    leave(
        {
            "VIRTUAL_ENV": str(folder),
            "PATH": f"{folder / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "PYTHONHOME": None,
        }
    )


def make(
    folder: Path,
    python: str,
    *,
    packages: Sequence[str],
    requirements: Sequence[Path],
    with_site: bool,
) -> str:
    """Make it, unless it is there as wanted; gives its identity."""
    for file in requirements:
        if not file.is_file():
            raise InputError(f"there is no file {file}")
    # Without site: what is installed there may print as it starts, and the answer is kept.
    version = _run([python, "-I", "-S", "-c", "import sys; print(sys.version, sys.base_prefix)"])
    wanted = [version, str(with_site), *packages, *chain(*map(texts_of, requirements))]
    stamp = hashlib.sha256("\0".join(wanted).encode()).hexdigest()
    noted = folder / _STAMP
    if noted.exists() and noted.read_text().partition(" ")[0] == stamp:
        print(f"{folder}: as it was")
        return identity_at(noted, stamp, is_new=False)
    if folder.exists() and not (folder / "pyvenv.cfg").exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is there, and no virtual environment: move it away")
    # Never changed in place: packages that are no longer asked for would stay.
    shutil.rmtree(folder, ignore_errors=True)
    line = [python, "-m", "venv", str(folder)]
    _run([*line, "--system-site-packages"] if with_site else line)
    asked = [*packages, *(word for file in requirements for word in ("-r", str(file)))]
    if asked:
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        # Seen, not caught: it may take long.
        done = subprocess.run([*pip, "install", "--no-input", *asked], check=False)
        if done.returncode:
            raise ComputeFailure(f"pip exited with code {done.returncode}; see above")
    # Last of all: without it, the next one begins anew.
    print(f"{folder}: made with {version.split()[0]}")
    return identity_at(noted, stamp, is_new=True)


def _interpreter(given: str) -> str:
    if not given:
        return sys.executable
    found = shutil.which(given) or (given if Path(given).is_file() else None)
    if found is None:
        raise InputError(f"there is no Python {given!r}")
    return found


def _run(line: Sequence[str]) -> str:
    done = run(line, None)
    if done.returncode:
        raise ComputeFailure(f"{' '.join(line)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()
