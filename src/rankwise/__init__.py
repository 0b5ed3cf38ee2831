"""Test, launch and measure programs that run on many ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankwise.pytest_plugin.communicators import parallel_assert
    from rankwise.pytest_plugin.marks import mark

__all__ = ["__version__", "mark", "parallel_assert"]

__version__ = "0.1.0"
_MODULES = {"mark": "marks", "parallel_assert": "communicators"}


def __getattr__(name: str) -> Any:
    """Load the testing names when they are asked for: `import rankwise` itself stays fast."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"rankwise.pytest_plugin.{_MODULES[name]}"), name)
