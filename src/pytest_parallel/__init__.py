"""The drop-in name for suites written for pytest_parallel; everything is rankwise's."""

from rankwise.testing.mark import mark

__all__ = ["mark"]
