"""From the names of computes to the computes."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable

from rankwise.compute.capacity import machine, visible_gpus
from rankwise.compute.contract import Compute
from rankwise.compute.local import LocalCompute
from rankwise.plan import Resources
from rankwise.site import Site

_UNLIMITED = Resources(cores=math.inf, memory=sys.maxsize, gpus=sys.maxsize)


def open_computes(names: Iterable[str], site: Site) -> dict[str, Compute]:
    """Make the computes ready that the site file has under these names.

    However many names this machine has, it is one compute, and what one task uses of it no other
    can. Where they are told to have different amounts, it has the greatest.
    """
    found = machine()
    choices = {name: site.compute(name) for name in names}
    told = [
        _UNLIMITED if choice.oversubscribe else choice.capacity(found)
        for choice in choices.values()
    ]
    capacity = Resources(
        cores=max((one.cores for one in told), default=0),
        memory=max((one.memory for one in told), default=0),
        gpus=max((one.gpus for one in told), default=0),
    )
    local = LocalCompute(capacity, gpus=visible_gpus())
    return dict.fromkeys(choices, local)
