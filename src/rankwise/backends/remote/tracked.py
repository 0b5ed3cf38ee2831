"""Records of what we have made elsewhere and must remove, and `rankwise clean`."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise.documents.site import Site
from rankwise.documents.site_models import SSH
from rankwise.errors import RankwiseError, StoreFailure
from rankwise.node.files import write_file
from rankwise.records import INSTANCES

FOLDER = "elsewhere"
"""Of the store."""
# A name becomes that of a file.
_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedInstance:
    """One thing that is elsewhere."""

    name: str
    kind: str
    """`folder`: of an attempt, on a host; `instance`: made by a provider."""
    compute: str
    run: str
    about: Mapping[str, Any]


class Tracked:
    """The files of one store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, entry: TrackedInstance) -> None:
        """Record something, synced to the disk; StoreFailure: it cannot be."""
        data = {name: getattr(entry, name) for name in ("kind", "compute", "run")}
        text = json.dumps({**data, "about": dict(entry.about)})
        try:
            # Templates may have a user's tokens in them.
            write_file(str(self._path(entry.name)), text, 0o600, is_synced=True)
            self._settle()
        except OSError as error:
            raise StoreFailure(
                f"{self._folder}: {error.strerror}; nothing is made elsewhere that cannot be "
                f"written down"
            ) from error

    def drop(self, name: str) -> None:
        """Remove the record of something that is gone."""
        with contextlib.suppress(OSError):
            self._path(name).unlink(missing_ok=True)

    def count(self, run: str, name: str, *events: str) -> None:
        """Note in the folder of a run that an instance was made or deleted."""
        place = self._folder.parent / "runs" / run / INSTANCES
        # The count is for people: what must be known is in the record.
        with contextlib.suppress(OSError), place.open("a") as file:
            file.writelines(f"{event} {name}\n" for event in events)

    def get(self, name: str) -> TrackedInstance | None:
        """Return the record of one thing; None: it is gone, or never was.

        StoreFailure: the record cannot be read.
        """
        path = self._path(name)
        try:
            return TrackedInstance(name=name, **json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise StoreFailure(
                f"{path}: {why}; it records what is on another machine: make it readable, or "
                f"remove it once that is gone"
            ) from error

    def entries(self, *, compute: str = "", run: str = "") -> Iterator[TrackedInstance]:
        """Return all records, the oldest first; StoreFailure, at last: some cannot be read."""
        try:
            # A file that is being written has another suffix until it is whole.
            files = [file for file in self._folder.iterdir() if file.suffix == ".json"]
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreFailure(f"{self._folder}: {error.strerror}") from error
        unread: list[StoreFailure] = []
        # The oldest first: these have cost the most.
        for file in sorted(files, key=_age):
            try:
                entry = self.get(file.stem)
            except StoreFailure as failure:
                unread.append(failure)
                continue
            if entry and compute in ("", entry.compute) and run in ("", entry.run):
                yield entry
        if unread:
            raise unread[0]

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name")
        return self._folder / f"{name}.json"

    def _settle(self) -> None:
        """Sync the folder: the name of a new file is its content."""
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _age(file: Path) -> tuple[float, str]:
    try:
        return file.stat().st_mtime, file.name
    except OSError:
        return 0.0, file.name


def describe(entry: TrackedInstance) -> str:
    """Return what something is, for people."""
    if entry.kind == "instance":
        known = ", ".join(f"{key} {value}" for key, value in entry.about["values"].items())
        state = known or "its id was lost: it may exist or not"
        return f"instance {entry.name} of {entry.compute}, made for {entry.run} ({state})"
    return f"folder {entry.name} on {entry.about['machine']} ({entry.compute}), of {entry.run}"


def clean(
    entries: Sequence[TrackedInstance],
    tracked: Tracked,
    site: Site,
    *,
    needed: Callable[[TrackedInstance], str],
) -> Iterator[tuple[TrackedInstance, str]]:
    """Remove everything that is not needed; `needed` returns by which run it is, or nothing.

    With each comes why it is still there; empty: it is gone.
    """
    from rankwise.backends.cloud import give_back

    for entry in entries:
        trouble = needed(entry)
        if not trouble and entry.kind == "instance":
            trouble = give_back(entry, tracked)
        elif not trouble:
            trouble = _remove_folder(entry, tracked, site)
        yield entry, trouble


def _remove_folder(entry: TrackedInstance, tracked: Tracked, site: Site) -> str:
    """End what an attempt has left on a host, and remove its folder there."""
    from rankwise.backends.ssh import machine_at

    choice = site.compute(entry.compute)
    if choice.backend != SSH:
        return f"{site.file} has no [compute.{entry.compute}] with hosts any more"
    try:
        machine = machine_at(choice, entry.about["machine"])
        # Also ends what still runs there: the marker finds its processes.
        said = machine.ask("remove", {"root": entry.about["root"], "marker": entry.name})
        machine.line.close()
    except RankwiseError as failure:
        return str(failure)
    if not said["is_gone"]:
        return f"{entry.about['root']}/attempts/{entry.name} there cannot be removed"
    tracked.drop(entry.name)
    return ""
