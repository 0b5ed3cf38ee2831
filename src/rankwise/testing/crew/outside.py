"""MPI for a process that is no rank: nothing is started, and the world is this process alone.

A conftest.py that asks for `MPI.COMM_WORLD.rank` is read by the controller too, which must not
start MPI: it starts the processes that do.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_NAME = "mpi4py.MPI"


def stand_in_for_mpi() -> None:
    """Let the next import of mpi4py's MPI give what starts nothing."""
    try:
        import mpi4py
    except ImportError:
        return
    mpi4py.rc(initialize=False, finalize=False)
    if _NAME not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the real module and changes what must not be used."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _NAME:
            return None
        # Out of the way, to find what would be found without it.
        sys.meta_path.remove(self)
        try:
            found = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if found is not None and found.loader is not None:
            found.loader = _Loader(found.loader, self)
        return found


class _Loader(importlib.abc.Loader):
    def __init__(self, real: Any, finder: _Finder) -> None:
        self._real = real
        self._finder = finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        self._real.exec_module(module)
        replace_world(module)


def replace_world(mpi: Any) -> None:
    """Make the world one of a single process that is never asked."""

    class Alone(mpi.Intracomm):  # type: ignore[misc]
        """A communicator of nobody else."""

        rank = 0
        size = 1

        def Get_rank(self) -> int:
            return 0

        def Get_size(self) -> int:
            return 1

        def Barrier(self) -> None:
            pass

        barrier = Barrier

        def bcast(self, obj: object, root: int = 0) -> object:
            return obj

        def gather(self, sendobj: object, root: int = 0) -> list[object]:
            return [sendobj]

        def allgather(self, sendobj: object) -> list[object]:
            return [sendobj]

        def allreduce(self, sendobj: object, op: object = None) -> object:
            return sendobj

    mpi.COMM_WORLD = Alone()
    mpi.COMM_SELF = Alone()
