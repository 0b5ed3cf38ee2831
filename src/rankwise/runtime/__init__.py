"""What commands run in."""

from rankwise.runtime.contract import Prepared, Say
from rankwise.runtime.preparing import prepare

__all__ = ["Prepared", "Say", "prepare"]
