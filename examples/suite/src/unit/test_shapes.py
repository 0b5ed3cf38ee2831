"""What pytest tests, beside the scripts."""

import pytest


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_parts_cover_everything(ranks: int) -> None:
    parts = [set(range(rank, 10, ranks)) for rank in range(ranks)]
    assert set().union(*parts) == set(range(10))


@pytest.mark.skip(reason="an example of a test that is skipped")
def test_later() -> None: ...
