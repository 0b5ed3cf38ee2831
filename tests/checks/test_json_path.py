"""Paths into JSON."""

from __future__ import annotations

import pytest

from rankwise.checks.json_path import find, steps_of

DATA = {"loss": 0.5, "epochs": [{"loss": 2}, {"loss": 1}], "wall time": {"s": 3}, "*": 7}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("$", [DATA]),
        ("$.loss", [0.5]),
        ("$.epochs[0].loss", [2]),
        ("$.epochs[-1].loss", [1]),
        ("$.epochs[*].loss", [2, 1]),
        ("$['wall time'].s", [3]),
        ('$["wall time"]["s"]', [3]),
        ("$.epochs[2]", []),
        ("$.epochs.loss", []),
        ("$.loss.deeper", []),
        ("$[0]", []),
        ("$['*']", [7]),
    ],
)
def test_a_path_leads_to_values(path: str, values: list[object]) -> None:
    assert find(DATA, path) == values


@pytest.mark.parametrize(
    "path", ["loss", "$loss", "$.", "$..loss", "$[", "$[1.5]", "$.a b", "$[?1]"]
)
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="must"):
        steps_of(path)
