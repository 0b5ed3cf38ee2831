"""Which kind of document is planned by whom. A new kind is one entry more."""

from __future__ import annotations

from rankwise.planning.contract import Planner
from rankwise.spec.models import DocumentModel, Job
from rankwise.spec.pipeline import Pipeline
from rankwise.spec.suite import Suite
from rankwise.spec.sweep import Sweep


def planner_for(model: DocumentModel) -> Planner:
    """Find who plans such a document; loads nothing for other kinds."""
    if isinstance(model, Job):
        from rankwise.planning.jobs import plan_job

        return plan_job
    if isinstance(model, Sweep):
        from rankwise.planning.sweeps import plan_sweep

        return plan_sweep
    if isinstance(model, Suite):
        from rankwise.planning.suites import plan_suite

        return plan_suite
    if isinstance(model, Pipeline):
        from rankwise.planning.pipelines import plan_pipeline

        return plan_pipeline
    raise NotImplementedError(f"nobody plans {type(model).__name__}")
