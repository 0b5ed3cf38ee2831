"""From the names of computes to the computes."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from rankwise.compute.capacity import machine, visible_gpus
from rankwise.compute.contract import Compute
from rankwise.compute.local import LocalCompute
from rankwise.errors import ComputeFailure
from rankwise.plan import Resources
from rankwise.site import ComputeChoice, Site
from rankwise.site.choices import COMMAND, KUBERNETES, LOCAL, SLURM, SSH

_UNLIMITED = Resources(cores=math.inf, memory=sys.maxsize, gpus=sys.maxsize)


def open_computes(
    names: Iterable[str],
    site: Site,
    *,
    secrets: Iterable[str] = (),
    store: Path | None = None,
    run: str = "",
) -> dict[str, Compute]:
    """Make the computes ready that the site file has under these names.

    However many names this machine has, it is one compute, and what one task uses of it no other
    can. Where they are told to have different amounts, it has the greatest. `secrets` are the
    names of variables that must not leave this machine by themselves. What is made elsewhere for
    `run` is written down in the `store`.
    """
    choices = {name: site.compute(name) for name in names}
    computes: dict[str, Compute] = {}
    own = {name: choice for name, choice in choices.items() if choice.backend == LOCAL}
    if own:
        computes |= dict.fromkeys(own, _local(own))
    for name in choices.keys() - own.keys():
        computes[name] = _elsewhere(choices[name], tuple(secrets), store or Path.cwd(), run)
    return computes


def _elsewhere(choice: ComputeChoice, secrets: tuple[str, ...], store: Path, run: str) -> Compute:
    """Open one that is not this machine; each is loaded only by those who have it."""
    if choice.backend == SLURM:
        from rankwise.compute.slurm.compute import SlurmCompute

        return SlurmCompute(choice, environment=os.environ, secrets=secrets)
    if choice.backend == KUBERNETES:
        from rankwise.compute.kubernetes.compute import KubernetesCompute

        return KubernetesCompute(choice)
    if choice.backend in (SSH, COMMAND):
        from rankwise.compute.remote.ledger import FOLDER, Ledger

        ledger = Ledger(store / FOLDER)
        if choice.backend == SSH:
            from rankwise.compute.ssh.fleet import open_ssh

            return open_ssh(choice, ledger)
        from rankwise.compute.provider.fleet import open_provider

        return open_provider(choice, ledger, run)
    raise ComputeFailure(f'there is no backend "{choice.backend}"')


def _local(choices: Mapping[str, ComputeChoice]) -> LocalCompute:
    found = machine()
    told = [
        _UNLIMITED if choice.oversubscribe else choice.capacity(found)
        for choice in choices.values()
    ]
    capacity = Resources(
        cores=max((one.cores for one in told), default=0),
        memory=max((one.memory for one in told), default=0),
        gpus=max((one.gpus for one in told), default=0),
    )
    return LocalCompute(capacity, gpus=visible_gpus())
