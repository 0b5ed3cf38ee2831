"""Which test goes next on which ranks.

Pure functions of sizes, durations and free ranks: no pytest, no MPI, no sockets, so that a
simulator can drive a policy with 100,000 tests on 4,096 ranks.
"""

from rankwise.testing.policy.contract import Assignment, Case, Policy
from rankwise.testing.policy.dynamic import Dynamic
from rankwise.testing.policy.pace import Pace
from rankwise.testing.policy.sequential import Sequential
from rankwise.testing.policy.static import Static

__all__ = ["Assignment", "Case", "Dynamic", "Pace", "Policy", "Sequential", "Static"]
