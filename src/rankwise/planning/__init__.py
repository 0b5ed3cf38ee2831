"""From documents to a plan."""

from rankwise.planning.planner import plan_from

__all__ = ["plan_from"]
