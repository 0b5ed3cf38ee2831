"""What became better or worse since the run before, by the rules of `rankwise compare`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rankwise.errors import InputError
from rankwise.report.comparison import Side, compare_sides
from rankwise.report.measures import Measure
from rankwise.store import RunRow, Store

# In seconds: more than this is for `rankwise compare`, a report must not take long.
_MOST_WORK = 1.0
# What a comparison of two times one trial takes; it grows with their third power.
_WORK = 6e-6


def judged(
    store: Store, measures: Sequence[Measure], *, run: RunRow, before: RunRow
) -> list[Measure]:
    """Give measures with a verdict each; without any where that would take too long."""
    trials = (max(one.now.count, one.before.count) for one in measures if one.before is not None)
    if sum(_WORK * number**3 for number in trials) > _MOST_WORK:
        return list(measures)
    sides = (Side(given=one.id, runs=[one]) for one in (before, run))
    try:
        compared = compare_sides(store, *sides)
    except (InputError, TypeError, ValueError):
        # Nothing in common, or conditions that nobody can read.
        return list(measures)
    found = {line.series.id: line.result for line in compared.lines}
    return [
        dataclasses.replace(
            one, verdict=str(found[one.series].verdict), why=found[one.series].reason
        )
        if one.series in found
        else one
        for one in measures
    ]
