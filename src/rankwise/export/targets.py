"""Who can be written for. A new one is one entry more."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rankwise.errors import InputError
from rankwise.export.contract import Exported, Target, Wish
from rankwise.export.gathering import gather
from rankwise.site import find_site
from rankwise.spec.documents import load

TARGETS = {
    "kubernetes": "kubernetes",
    "kubeflow-v1": "kubeflow_v1",
    "mpi-operator": "mpi_operator",
    "kubeflow-trainer": "kubeflow_trainer",
    "azureml": "azureml",
}
"""The module of each, which has a function of the same name."""


def export_from(paths: Sequence[Path], target: str, wish: Wish) -> list[Exported]:
    """Write the jobs of documents; raises InputError with every mistake in all of them."""
    module = TARGETS[target]
    write: Target = getattr(import_module(f"rankwise.export.{module}"), module)
    made, complaints, taken = [], [], set[str]()
    for path in paths:
        try:
            site = find_site(path.absolute().parent)
            made.append(write(gather(load(path), site, wish, taken)))
        except InputError as error:
            complaints.append(str(error))
    if complaints:
        raise InputError("\n".join(complaints))
    return made
