"""The pytest plugin: tests that run on many ranks, one verdict each."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _OwnModules:
    """Finds the modules of rankwise before pytest does, which would rewrite their assertions.

    That takes longer than to load them; and where bytecode is not written, pytest would compile
    each of them anew in every process, though Python has its bytecode.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("rankwise."):
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, path, target)


if "pytest" in sys.modules:
    sys.meta_path.insert(0, _OwnModules)
