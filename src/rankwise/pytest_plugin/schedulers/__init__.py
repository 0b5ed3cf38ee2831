"""Which test goes next on which ranks.

Pure functions of sizes, durations and free ranks: no pytest, no MPI, no sockets, so that a
simulator can drive a scheduler with 100,000 tests on 4,096 ranks.
"""

from rankwise.pytest_plugin.schedulers.base import Assignment, Pace, ScheduledTest, Scheduler
from rankwise.pytest_plugin.schedulers.dynamic import Dynamic
from rankwise.pytest_plugin.schedulers.sequential import Sequential
from rankwise.pytest_plugin.schedulers.static import Static

__all__ = ["Assignment", "Dynamic", "Pace", "ScheduledTest", "Scheduler", "Sequential", "Static"]
