"""What the controller makes of the tests that several processes have collected."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankwise.pytest_plugin.connections import TEMPLATE, name_on_node, worker_number
from rankwise.pytest_plugin.workers.controller import ControllerSession


def controller_with(**collections: list[str]) -> ControllerSession:
    """Return a controller of which nothing is there but what was collected, and by whom."""
    session: Any = object.__new__(ControllerSession)
    session._options = SimpleNamespace(width=2)
    names = {"rank0": worker_number(0, 0), "rank1": worker_number(0, 1)}
    session._collections = {
        names.get(name, name_on_node(TEMPLATE, name)): (
            {},
            json.dumps({"nodeids": nodeids, "errors": []}).encode(),
        )
        for name, nodeids in collections.items()
    }
    return cast(ControllerSession, session)


def test_the_template_of_one_node_does_not_matter_where_another_node_can_have_none() -> None:
    session = controller_with(n1=["a", "b"], rank0=["a", "b"], rank1=["a", "b"])
    session._compare({"nodeids": ["a", "b"], "errors": []})


def test_ranks_that_have_other_tests_are_refused() -> None:
    session = controller_with(rank0=["a", "b"], rank1=["a"])
    with pytest.raises(pytest.UsageError, match="rank 1"):
        session._compare({"nodeids": ["a", "b"], "errors": []})
