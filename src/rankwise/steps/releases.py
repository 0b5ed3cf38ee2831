"""The step that deploys, and the releases in a folder: deployed and rolled back."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from rankwise.errors import InputError
from rankwise.files import digest_of_file, matching
from rankwise.node.files import Locked, rename
from rankwise.steps import expanded

CURRENT = "current"
_STAGING, _REMOVING, _LINK = ".staging-", ".removing-", ".current-"
_LOCK = ".lock"
_NOTE = ".rankwise-release.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One release."""

    name: str
    made: float
    """When it was complete."""
    is_current: bool


def releases_in(folder: Path) -> list[Release]:
    """Return all releases, the oldest first."""
    current = current_in(folder)
    found = []
    for place in folder.iterdir() if folder.is_dir() else ():
        # Names with a dot are ours while they are made or removed; links are not releases.
        is_own = not place.is_symlink() and not place.name.startswith(".")
        made = _made(place) if is_own else None
        if made is not None:
            found.append(Release(name=place.name, made=made, is_current=place.name == current))
    return sorted(found, key=lambda release: (release.made, release.name))


def current_in(folder: Path) -> str | None:
    """Name the release that is in use."""
    try:
        return str((folder / CURRENT).readlink())
    except OSError:
        return None


def deploy(source: Path, folder: Path, name: str, *, keep: int) -> Release:
    """Make a release of a folder and put it in use; a repetition changes nothing.

    Raises InputError if that cannot be, also if a release of another build has that name, and
    OSError if the disk is full or gone: the release that was in use stays so in both cases.
    """
    _check(source, folder, name)
    folder.mkdir(parents=True, exist_ok=True)
    with Locked(folder / _LOCK):
        _remove_leftovers(folder)
        place = folder / name
        # Only a folder with our note is whole: the note is written last.
        if _made(place) is None:
            if place.exists():
                raise InputError(f"{place} is there, but no release of rankwise's: move it away")
            _copy(source, folder, name)
        elif _contents(place) != _contents(source):
            why = f"{place} is a release of another build: choose another name, or remove it"
            raise InputError(why)
        _switch(folder, name)
        _remove_old(folder, keep)
    return next(one for one in releases_in(folder) if one.name == name)


def roll_back(folder: Path, to: str | None = None) -> Release:
    """Put another release in use: the one before the current one, or the one that is named."""
    if not releases_in(folder):
        raise InputError(f"{folder}: there are no releases")
    with Locked(folder / _LOCK):
        found = releases_in(folder)
        names = [release.name for release in found]
        if to is None:
            at = next((at for at, release in enumerate(found) if release.is_current), len(found))
            if not at:
                raise InputError(f"{folder}: there is no release before {names[0]}, the oldest")
            to = names[at - 1]
        elif to not in names:
            raise InputError(f"{folder}: there is no release {to!r}, only {', '.join(names)}")
        _switch(folder, to)
    return next(one for one in releases_in(folder) if one.name == to)


def _check(source: Path, folder: Path, name: str) -> None:
    if not source.is_dir():
        what = "is a file, not a folder" if source.exists() else "is not there"
        raise InputError(f"the build {what}: {source}")
    # mkdir would fail only after the build has run for hours.
    nearest = next(one for one in (folder, *folder.parents) if one.exists())
    if not nearest.is_dir():
        raise InputError(f"cannot deploy to {folder}: {nearest} is a file, not a folder")
    if not _NAME.fullmatch(name) or name == CURRENT:
        raise InputError(
            f"{name!r} is no name for a release: letters, digits, `.`, `_`, `+` and `-`, a letter "
            f"or a digit first, and not `{CURRENT}`"
        )
    if (folder / CURRENT).exists() and not (folder / CURRENT).is_symlink():
        raise InputError(f"{folder / CURRENT} is not a link of rankwise's: move it away")
    # A copy of a folder into itself would never end.
    if folder.resolve().is_relative_to(source.resolve()):
        raise InputError(f"the releases cannot be inside of the build: {folder}")


def _copy(source: Path, folder: Path, name: str) -> None:
    staged = folder / f"{_STAGING}{os.getpid()}-{time.time_ns()}"
    shutil.copytree(source, staged, symlinks=True)
    (staged / _NOTE).write_text(json.dumps({"made": time.time(), "source": str(source)}))
    # On the disk before it has its name: after a power cut, a release is whole or not there.
    _sync_tree(staged)
    rename(staged, folder / name)
    _sync(folder)


def _contents(folder: Path) -> dict[str, str]:
    """Say of each file what is in it, and whether it can be run."""
    return {
        # Times and owners differ between two equal builds; contents and the right to run do not.
        name: f"{digest_of_file(folder / name)} {(folder / name).lstat().st_mode & stat.S_IXUSR}"
        for name in matching(["."], folder)
        if name != _NOTE
    }


def _switch(folder: Path, name: str) -> None:
    if current_in(folder) == name:
        return
    link = folder / f"{_LINK}{os.getpid()}-{time.time_ns()}"
    # A new link that takes the old one's place: at no moment there is none.
    link.symlink_to(name)
    rename(link, folder / CURRENT)
    _sync(folder)


def _remove_old(folder: Path, keep: int) -> None:
    """Remove the oldest; the one in use stays."""
    others = [release for release in releases_in(folder) if not release.is_current]
    for release in others[: max(0, len(others) - (keep - 1))]:
        # Out of sight first: half of a release must not look like one.
        gone = folder / f"{_REMOVING}{release.name}-{time.time_ns()}"
        rename(folder / release.name, gone)
        _remove(gone)


def _remove_leftovers(folder: Path) -> None:
    """Remove what others have left that were ended."""
    for place in folder.iterdir():
        # The lock is held, so no other deployment is at work on these.
        if place.name.startswith((_STAGING, _REMOVING)):
            _remove(place)
        elif place.name.startswith(_LINK):
            place.unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    # Builds have read-only folders, from which nothing could be removed.
    for root, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            Path(root).chmod(stat.S_IRWXU)
    shutil.rmtree(folder)


def _made(place: Path) -> float | None:
    """Return when a release was complete; None: it is none."""
    try:
        return float(json.loads((place / _NOTE).read_text())["made"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _sync_tree(folder: Path) -> None:
    for root, _, files in os.walk(folder):
        for name in files:
            path = Path(root, name)
            if not path.is_symlink():
                _sync(path)
        _sync(Path(root))


def _sync(path: Path) -> None:
    """Have the disk keep a file or a folder before anything else is done."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def deploy_step(*, source: str, to: str, name: str, keep: int) -> None:
    """Copy a build to where it stays: all of it or nothing."""
    folder = Path(expanded(to)).absolute()
    before = current_in(folder)
    release = deploy(Path(expanded(source)).absolute(), folder, expanded(name), keep=keep)
    was = f", before it {before}" if before and before != release.name else ""
    print(f"{folder}: {release.name} is in use{was}")
