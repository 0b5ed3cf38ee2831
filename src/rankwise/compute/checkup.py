"""What a compute needs to work, checked one by one, with what to change where it is not there."""

from __future__ import annotations

from pathlib import Path

from rankwise.compute.finding import Finding
from rankwise.errors import InputError
from rankwise.site import Site
from rankwise.site.choices import COMMAND, KUBERNETES, SLURM, SSH


def check_compute(name: str, site: Site, store: Path) -> list[Finding]:
    """Look at one compute of the site file."""
    try:
        choice = site.compute(name)
    except InputError as error:
        return [Finding(what=str(error), is_well=False)]
    if not choice.is_mapped:
        return [
            Finding(
                what=f"{name} is not in {site.file}",
                is_well=False,
                remedy=f'write [compute.{name}] there, with backend = "slurm" or "local"',
            )
        ]
    if choice.backend == SSH:
        from rankwise.compute.ssh.checkup import check_hosts

        return list(check_hosts(choice))
    if choice.backend == COMMAND:
        from rankwise.compute.provider.checkup import check_provider
        from rankwise.compute.remote.ledger import FOLDER, Ledger

        return list(check_provider(choice, Ledger(store / FOLDER)))
    if choice.backend == KUBERNETES:
        from rankwise.compute.kubernetes.checkup import check_kubernetes

        return list(check_kubernetes(choice))
    if choice.backend != SLURM:
        return [Finding(what="it is this machine")]
    from rankwise.compute.slurm.checkup import check_slurm

    return list(check_slurm(choice, store))
