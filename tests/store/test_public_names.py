"""The names that others use."""

from __future__ import annotations

import pytest

from rankwise import store
from rankwise.store.rows import RunRow, State
from rankwise.store.store import Store


def test_every_public_name_is_there() -> None:
    assert {name: getattr(store, name).__name__ for name in store.__all__} == {
        name: name for name in sorted(store.__all__)
    }
    assert (store.Store, store.State, store.RunRow) == (Store, State, RunRow)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Shop'"):
        store.Shop  # type: ignore[attr-defined]  # noqa: B018  # that is what is tested
