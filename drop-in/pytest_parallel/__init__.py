"""The drop-in name for suites written for pytest_parallel; everything is rankwise's."""

from pytest_parallel import mark

__all__ = ["mark"]
