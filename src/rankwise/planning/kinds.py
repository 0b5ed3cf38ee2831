"""Which kind of document is planned by whom. A new kind is one entry more."""

from __future__ import annotations

from rankwise.planning.contract import Planner
from rankwise.spec.models import DocumentModel, Job


def planner_for(model: DocumentModel) -> Planner:
    """Find who plans such a document; loads nothing for other kinds."""
    if isinstance(model, Job):
        from rankwise.planning.jobs import plan_job

        return plan_job
    raise NotImplementedError(f"nobody plans {type(model).__name__}")
