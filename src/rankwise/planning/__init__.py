"""From documents to a plan."""

from rankwise.planning.documents import plan_from

__all__ = ["plan_from"]
