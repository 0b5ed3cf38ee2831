"""Which tests have gone on for too long: decided from what ranks have written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rankwise.testing.blackbox import Moment, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """A test that has to be ended."""

    case: int
    why: Literal["limit", "grace"]
    phase: Phase
    seconds: float
    """For how long the phase had run."""


def find_overdue(
    moments: Sequence[Moment],
    limits: Sequence[float],
    stumbles: Mapping[int, float],
    *,
    grace: float,
    now: float,
) -> list[Overdue]:
    """Find tests over their time limit (0: none), or over the grace after a rank has failed.

    `stumbles` has the moment of each running test's first failure.
    """
    found: dict[int, Overdue] = {}
    for moment in moments:
        taken, limit = now - moment.since, limits[moment.case]
        stumbled = stumbles.get(moment.case)
        if stumbled is not None and now - stumbled > grace and moment.phase != "closing":
            why: Literal["limit", "grace"] = "grace"
        elif limit and taken > limit:
            why = "limit"
        else:
            continue
        if moment.case not in found or found[moment.case].seconds < taken:
            found[moment.case] = Overdue(
                case=moment.case, why=why, phase=moment.phase, seconds=taken
            )
    return list(found.values())
