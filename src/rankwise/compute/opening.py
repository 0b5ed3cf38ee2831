"""From the name of a compute to the compute."""

from __future__ import annotations

import math
import sys

from rankwise.compute.capacity import machine
from rankwise.compute.contract import Compute
from rankwise.compute.local import LocalCompute
from rankwise.plan import Resources
from rankwise.site import ComputeChoice

_UNLIMITED = Resources(cores=math.inf, memory=sys.maxsize, gpus=sys.maxsize)


def open_compute(choice: ComputeChoice) -> Compute:
    """Make the compute that a site file describes ready for use."""
    found = machine()
    told = _UNLIMITED if choice.oversubscribe else choice.capacity(found)
    return LocalCompute(told, gpus=range(found.gpus))
