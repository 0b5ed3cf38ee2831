"""What the command line says about workers."""

from __future__ import annotations

import os

import pytest

from rankwise.launch.cores import available_cores

# More ranks than this would take the machine's memory before the first test has begun.
_MOST_ON_ANY = 256
_MOST_ON_A_CORE = 32

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
        most = max(_MOST_ON_ANY, _MOST_ON_A_CORE * len(self.cores))
        if self.width > most:
            raise pytest.UsageError(
                f"--n-workers={self.width} is more than this machine can hold: it has "
                f"{len(self.cores)} cores, and more than {most} ranks are not started on it"
            )
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
