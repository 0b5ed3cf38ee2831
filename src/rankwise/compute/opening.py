"""From the names of computes to the computes."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping

from rankwise.compute.capacity import machine, visible_gpus
from rankwise.compute.contract import Compute
from rankwise.compute.local import LocalCompute
from rankwise.plan import Resources
from rankwise.site import ComputeChoice, Site
from rankwise.site.choices import SLURM

_UNLIMITED = Resources(cores=math.inf, memory=sys.maxsize, gpus=sys.maxsize)


def open_computes(
    names: Iterable[str], site: Site, *, secrets: Iterable[str] = ()
) -> dict[str, Compute]:
    """Make the computes ready that the site file has under these names.

    However many names this machine has, it is one compute, and what one task uses of it no other
    can. Where they are told to have different amounts, it has the greatest. `secrets` are the
    names of variables that must not leave this machine by themselves.
    """
    choices = {name: site.compute(name) for name in names}
    computes: dict[str, Compute] = {}
    own = {name: choice for name, choice in choices.items() if choice.backend != SLURM}
    if own:
        computes |= dict.fromkeys(own, _local(own))
    for name in choices.keys() - own.keys():
        from rankwise.compute.slurm.compute import SlurmCompute

        computes[name] = SlurmCompute(choices[name], environment=os.environ, secrets=tuple(secrets))
    return computes


def _local(choices: Mapping[str, ComputeChoice]) -> LocalCompute:
    found = machine()
    told = [
        _UNLIMITED if choice.oversubscribe else choice.capacity(found)
        for choice in choices.values()
    ]
    capacity = Resources(
        cores=max((one.cores for one in told), default=0),
        memory=max((one.memory for one in told), default=0),
        gpus=max((one.gpus for one in told), default=0),
    )
    return LocalCompute(capacity, gpus=visible_gpus())
