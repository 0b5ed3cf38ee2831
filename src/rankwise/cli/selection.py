"""From options of the command line to the tasks that are wanted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.errors import InputError

if TYPE_CHECKING:
    from rankwise.planning.selection import Selection
    from rankwise.store import Store

_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was given."""

    only: Sequence[str] | None = None
    failed: bool = False
    fail_fast: bool = False
    repeat: int = 1
    shard: str | None = None


def selection(options: Options, files: Sequence[Path], folder: Path) -> Selection:
    """Say which tasks are wanted; a store in this folder is asked what was before."""
    from rankwise.planning.selection import Selection

    source = str(files[0].absolute())
    shard = _shard_of(options.shard) if options.shard else None
    failed, seconds = None, {}
    if options.failed or shard:
        store = _store_in(folder)
        if store is not None:
            with store:
                failed = _failed_in(store, source) if options.failed else None
                seconds = store.seconds_of(source) if shard else {}
        if options.failed and failed is None:
            raise InputError(f"--failed: {source} has not been run before, as {folder} knows")
        if failed is not None and not failed:
            raise InputError("--failed: all was green the last time: there is nothing to run again")
    return Selection(
        only=tuple(options.only or ()),
        failed=failed,
        shard=shard,
        seconds=seconds,
        repeat=options.repeat,
        fail_fast=options.fail_fast,
    )


def _store_in(folder: Path) -> Store | None:
    from rankwise.store import Store
    from rankwise.store.store import FILE

    return Store.open(folder, read_only=True) if (folder / FILE).exists() else None


def _failed_in(store: Store, source: str) -> set[str] | None:
    """Name what was not green in the newest run of a document; None: there was none."""
    from rankwise.plan import REPEATED

    run = store.last_run_of(source)
    if run is None:
        return None
    return {
        row.body.tags.get(REPEATED, row.key) if row.body is not None else row.key
        for row in store.task_rows(run, bodies=True)
        if not row.state.is_green
    }


def _shard_of(text: str) -> tuple[int, int]:
    found = _SHARD.fullmatch(text)
    number, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= count:
        raise InputError(f"--shard {text}: write it as 2/5, which is the second of five")
    return number, count
