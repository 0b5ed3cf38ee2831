"""Which kind of document is planned by whom. A new kind is one entry more."""

from __future__ import annotations

from importlib import import_module

from rankwise.planning.contract import Planner
from rankwise.spec.models import DocumentModel

_JOBS = ("jobs", "plan_job")
PLANNERS = {
    "MpiJob": _JOBS,
    "PytorchJob": _JOBS,
    "TensorflowJob": _JOBS,
    "command": _JOBS,
    "Sweep": ("sweeps", "plan_sweep"),
    "Suite": ("suites", "plan_suite"),
    "Pipeline": ("pipelines", "plan_pipeline"),
    "Matrix": ("matrix", "plan_matrix"),
}
"""The module and the function for each type."""


def planner_for(model: DocumentModel) -> Planner:
    """Find who plans such a document; loads nothing for other kinds."""
    module, name = PLANNERS[model.type]
    planner: Planner = getattr(import_module(f"rankwise.planning.{module}"), name)
    return planner
