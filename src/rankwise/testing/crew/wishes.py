"""What the command line says about workers."""

from __future__ import annotations

import os

import pytest

from rankwise.launch.cores import available_cores
from rankwise.testing.crew.slurm_options import SlurmWishes, read_wishes
from rankwise.testing.slurm_flags import SLURM_SCHEDULERS

# More ranks than this would take the machine's memory before the first test has begun.
_MOST_ON_ANY = 256
_MOST_ON_A_CORE = 32

_POLICIES = ("sequential", "static", "dynamic")


class Wishes:
    """What the command line says about the workers, before it is read in full."""

    def __init__(self, config: pytest.Config, *, width: int | None = None) -> None:
        """Read it; with a width, somebody else has settled what ranks are started with."""
        known = config.known_args_namespace
        self.scheduler: str = known.scheduler or ""
        asked = known.n_workers
        self.slurm: SlurmWishes | None = None
        """What the ranks are started with; None: with the mpiexec of this machine."""
        self.cores = available_cores()
        if width is not None:
            self.width: int = width
        elif self.scheduler in SLURM_SCHEDULERS:
            self.slurm = read_wishes(known)
            self.width = self.slurm.tasks
        else:
            self.width = len(self.cores) if asked in (None, "auto") else int(asked)
            self._refuse_too_many()
        self.uses_srun: bool = known.use_srun
        self.fresh = self.scheduler in ("shell", "slurm")
        named = self.scheduler if self.scheduler in _POLICIES else "dynamic"
        self.policy: str = known.rankwise_policy or named
        self.warm: bool = not known.no_warm_start
        self.quiet: bool = known.capture != "no"
        bind: str = known.bind or ("core" if self.fresh else "none")
        # More workers than cores would share some while others are idle. Slurm binds by itself.
        fits = self.slurm is None and self.width <= len(self.cores)
        self.binds = bind == "core" and fits
        self.every_world: bool = known.world
        self.sets_threads = "OMP_NUM_THREADS" not in os.environ

    def _refuse_too_many(self) -> None:
        most = max(_MOST_ON_ANY, _MOST_ON_A_CORE * len(self.cores))
        if self.width > most:
            raise pytest.UsageError(
                f"--n-workers={self.width} is more than this machine can hold: it has "
                f"{len(self.cores)} cores, and more than {most} ranks are not started on it"
            )
