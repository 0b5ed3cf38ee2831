"""Names that a person may have meant."""

from __future__ import annotations

import pytest

from rankwise.wording import name_nearest


@pytest.mark.parametrize(
    ("text", "names", "said"),
    [
        ("trayn-1", ["train-1", "test-9"], "Did you mean train-1?"),
        ("train", ["train-1", "train-2"], "Did you mean train-2 or train-1?"),
        ("xyz", ["train-1"], "There is train-1."),
        ("xyz", ["a", "b", "c", "d"], "There is a, b, c, …."),
    ],
)
def test_the_nearest_names_are_given_or_else_the_first(
    text: str, names: list[str], said: str
) -> None:
    assert name_nearest(text, names) == said
