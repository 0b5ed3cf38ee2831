"""What the command line says about workers."""

from __future__ import annotations

import os

import pytest

from rankwise.launch.cores import available_cores

_POLICIES = ("sequential", "static", "dynamic")


class Wishes:
    """What the command line says about the workers, before it is read in full."""

    def __init__(self, config: pytest.Config) -> None:
        known = config.known_args_namespace
        self.scheduler: str = known.scheduler or ""
        asked = known.n_workers
        self.is_wanted = asked is not None or self.scheduler in ("pool", "shell")
        self.cores = available_cores()
        self.width: int = len(self.cores) if asked in (None, "auto") else int(asked)
        self.fresh = self.scheduler == "shell"
        named = self.scheduler if self.scheduler in _POLICIES else "dynamic"
        self.policy: str = known.rankwise_policy or named
        self.warm: bool = not known.no_warm_start
        self.quiet: bool = known.capture != "no"
        bind: str = known.bind or ("core" if self.fresh else "none")
        # More workers than cores would share some while others are idle.
        self.binds = bind == "core" and self.width <= len(self.cores)
        self.every_world: bool = known.world
        self.sets_threads = "OMP_NUM_THREADS" not in os.environ
