"""pytest-randomly: all ranks shuffle with the seed of rank 0."""

from __future__ import annotations

import secrets

import pytest
from _pytest.cacheprovider import Cache


def settle_seed(config: pytest.Config) -> int | None:
    """Turn the plugin's option into a number, as the plugin would; None without the plugin."""
    seed = getattr(config.known_args_namespace, "randomly_seed", None)
    if seed == "last":
        seed = Cache.for_config(config, _ispytest=True).get("randomly_seed", "default")
    if seed == "default":
        seed = secrets.randbits(32)
    return seed if isinstance(seed, int) else None
