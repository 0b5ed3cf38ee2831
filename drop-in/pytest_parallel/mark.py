"""The marks as pytest_parallel has them: the number of ranks is a parameter of the test."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from rankwise.pytest_plugin.marks import OrderedSizes
from rankwise.pytest_plugin.marks import mark as _mark

__all__ = ["parallel", "parallel_from_context"]

parallel_from_context = _mark.parallel_from_context


def parallel(n_procs: int | Sequence[int], **wishes: Any) -> pytest.MarkDecorator:
    """Run a test on `n_procs` ranks, or once on each number of ranks of a list.

    The number is in the test's id, also if it is one, in the place that the decorator has among
    others. The keywords are those of `rankwise.mark.parallel`, and `exclusive_numa_domain`.
    """
    if isinstance(n_procs, Collection) and not isinstance(n_procs, (str, bytes)):
        return pytest.mark.parallel(OrderedSizes(n_procs), **wishes)
    return pytest.mark.parallel(OrderedSizes([n_procs]), **wishes)
