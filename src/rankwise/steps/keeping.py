"""Steps that keep files: artifacts of a stage, a cache between runs, and what is in the web."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tarfile
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from rankwise.errors import ComputeFailure, InputError
from rankwise.files import digest_of_file, digest_of_files, matching
from rankwise.node.files import Beside, discard, read_record
from rankwise.runtimes.uv import COMPLETE, made_once


def artifacts_step(*, into: str, objects: str, patterns: Sequence[str]) -> None:
    """Keep files of this folder, to be found in `into`; each different one is in `objects`."""
    kept = keep(patterns, Path.cwd(), Path(into), Path(objects))
    print(f"{len(kept)} artifact{'s' * (len(kept) != 1)} kept in {into}")


def keep(patterns: Sequence[str], folder: Path, into: Path, objects: Path) -> list[str]:
    """Keep what fits the patterns, all of it or nothing, and name it; may be repeated."""
    names: list[str] = []
    for pattern in patterns:
        found = matching([pattern], folder)
        if not found:
            raise InputError(f"no artifact fits {pattern!r} in {folder}")
        if found[0].startswith("../"):
            raise InputError(f"the artifact {found[0]} is outside of {folder}: copy it there first")
        names += [name for name in found if name not in names]
    with Beside(into) as beside:
        # Of a try that was killed, in a process of the same number.
        discard(beside)
        for name in names:
            place = Path(beside, name)
            place.parent.mkdir(parents=True, exist_ok=True)
            _link(_stored(folder / name, objects), place)
        if into.exists():
            # An earlier try of the same stage, which no other stage has read.
            shutil.rmtree(into)
    return names


def _stored(file: Path, objects: Path) -> Path:
    """Keep a file under the digest of what is in it and of whether it can be run."""
    is_program = bool(file.stat().st_mode & stat.S_IXUSR)
    begun = hashlib.sha256(b"x" if is_program else b"-")
    with file.open("rb") as source:
        name = hashlib.file_digest(source, lambda: begun).hexdigest()
    place = objects / name[:2] / name[2:]
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with Beside(place) as beside:
            shutil.copyfile(file, beside)
            # Linked from all runs that have it: a change would change all of them.
            Path(beside).chmod(0o555 if is_program else 0o444)
    return place


def _link(stored: Path, place: Path) -> None:
    try:
        place.hardlink_to(stored)
    except OSError:
        shutil.copy2(stored, place)


_KEPT = 10
"""So many caches stay; those that were not used for the longest time go first."""


def cache_step(
    *, store: str, command: str, paths: Sequence[str], key: Sequence[str] = (), save: bool = False
) -> None:
    """Put back what a folder of caches has for these files and this command, or keep it there."""
    folder = Path.cwd()
    cache = Path(store, f"{key_of(key, command, paths, folder)}.tar")
    (save_cache if save else restore_cache)(cache, paths, folder)


def key_of(files: Sequence[str], command: str, paths: Sequence[str], folder: Path) -> str:
    """Return the name of the cache that is wanted."""
    for pattern in files:
        if not matching([pattern], folder):
            raise InputError(f"no file fits {pattern!r} in {folder}: the key of the cache is wrong")
    digest = hashlib.sha256(digest_of_files(files, folder).encode())
    # What is in there may hold its own path, as virtual environments do.
    for part in (str(folder), command, *paths):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def restore_cache(cache: Path, paths: Sequence[str], folder: Path) -> bool:
    """Put back what was kept; False: there is nothing."""
    present = [path for path in paths if (folder / path).exists()]
    if present:
        print(f"cache: {', '.join(present)} is there already")
        return False
    try:
        with tarfile.open(cache) as archive:
            # It comes from ourselves. A Python before 3.11.4 trusts all, and does not look at this.
            archive.extraction_filter = lambda member, _: member
            archive.extractall(folder)
    except FileNotFoundError:
        print("cache: nothing was kept for these files")
        return False
    except (tarfile.TarError, EOFError) as error:
        # The next run would take half of it for all of it.
        for path in paths:
            discard(str(folder / path))
        raise ComputeFailure(f"{cache} is damaged ({error}): remove it") from error
    # The time of the last use: by it, old ones are removed.
    os.utime(cache)
    print(f"cache: {', '.join(paths)} put back")
    return True


def save_cache(cache: Path, paths: Sequence[str], folder: Path) -> bool:
    """Keep it, all or nothing; False: it is kept already."""
    if cache.exists():
        return False
    missing = [path for path in paths if not (folder / path).exists()]
    if missing:
        raise InputError(f"the stage has not made {missing[0]!r}, which is to be cached")
    cache.parent.mkdir(parents=True, exist_ok=True)
    with Beside(cache) as beside, tarfile.open(beside, "w") as archive:
        for path in paths:
            # An absolute path would become one below the folder.
            archive.add(folder / path, arcname=os.path.relpath(folder / path, folder))
    _remove_old(cache.parent)
    print(f"cache: {', '.join(paths)} kept")
    return True


def _remove_old(folder: Path) -> None:
    for path in sorted(folder.glob("*.tar"), key=_last_use)[:-_KEPT]:
        path.unlink(missing_ok=True)


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # Another process has removed it.


_SILENT_SECONDS = 60


def fetch_step(*, url: str, into: str, name: str) -> None:
    """Fetch a file from the web into a folder, as `content/NAME`, unless it is there unchanged."""
    folder = Path(into)

    def make(content: Path, _: int) -> Mapping[str, object]:
        content.mkdir()
        return {"url": url, "sha256": _fetched(url, content / name)}

    def is_sound(content: Path) -> bool:
        noted = read_record(str(folder / COMPLETE), "sha256") or {}
        return bool(noted.get("sha256") == digest_of_file(content / name))

    made_once(folder, make, is_sound=is_sound, say=print, what=url)
    print(f"{url} is {folder}/content/{name}; to fetch it again, remove {folder}")


def _fetched(url: str, place: Path) -> str:
    """Fetch a file, and return its digest; ComputeFailure if it does not come whole."""
    try:
        with urlopen(url, timeout=_SILENT_SECONDS) as answer, place.open("wb") as file:
            print(f"fetching {answer.url}", flush=True)
            shutil.copyfileobj(answer, file)
        told, size = answer.headers["Content-Length"], place.stat().st_size
    except (OSError, ValueError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()
        raise ComputeFailure(f"{url} could not be fetched: {error}") from error
    if told not in (None, str(size)):
        raise ComputeFailure(f"{url} did not come whole: {size} of {told} bytes; run it again")
    return digest_of_file(place)
