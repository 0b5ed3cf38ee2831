"""Every type of document has somebody who plans it."""

from __future__ import annotations

from rankwise.planning.kinds import PLANNERS
from rankwise.spec.documents import TYPES


def test_every_type_has_its_planner() -> None:
    assert PLANNERS.keys() == TYPES.keys()
