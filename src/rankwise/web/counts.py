"""How many tasks of a run are in which state: asked for by every page, and counted once."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from rankwise.store import RunRow, State, Store

_Counts = Mapping[State, int]
# Counts of runs that are over stay as they are: those of so many are remembered.
_MOST_KNOWN = 2000
_known: dict[tuple[str, str, float], _Counts] = {}
# Those of others, for each connection until somebody has written.
_recent: WeakKeyDictionary[Store, tuple[int, dict[str, _Counts]]] = WeakKeyDictionary()


def counts_of(store: Store, run: RunRow) -> _Counts:
    """Count the tasks of a run; the store is one that this thread only reads."""
    if not run.state.is_over:
        return _counts_now(store, run.id)
    key = (str(store.path), run.id, run.created)
    if (counts := _known.get(key)) is None:
        counts = store.counts(run.id)
        while len(_known) >= _MOST_KNOWN:
            _known.pop(next(iter(_known)), None)
        _known[key] = counts
    return counts


def _counts_now(store: Store, run: str) -> _Counts:
    version = store.data_version()
    known = _recent.get(store)
    if known is None or known[0] != version:
        known = _recent[store] = (version, {})
    counts = known[1].get(run)
    if counts is None:
        counts = known[1][run] = store.counts(run)
    return counts
