"""What commands run in."""

from rankwise.runtimes.base import PreparedRuntime, Say
from rankwise.runtimes.preparing import prepare

__all__ = ["PreparedRuntime", "Say", "prepare"]
