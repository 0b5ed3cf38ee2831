"""The store of a project: what was run, and what became of it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from rankwise.store.attempts import AttemptWrites
from rankwise.store.database import Database
from rankwise.store.opening import open_for_reading, open_for_writing
from rankwise.store.pages import Pages
from rankwise.store.queries import Queries
from rankwise.store.results import Results
from rankwise.store.samples import SampleQueries, SampleWrites
from rankwise.store.writes import RunWrites

FILE = "store.db"

# In seconds. Who writes has it for milliseconds; a disk that is busy may make a second of that.
PATIENCE = 30.0


class Store(Queries, Pages, RunWrites, AttemptWrites, SampleQueries, SampleWrites, Results):
    """A store that is open; many processes may have it open, each for itself."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False, patience: float = PATIENCE) -> Self:
        """Open the store in a folder, `.rankwise`; it is made, unless it is only to be read.

        `patience` is how long to wait for others, in seconds. Raises StoreFailure.
        """
        way = open_for_reading if read_only else open_for_writing
        return cls(way(folder.absolute() / FILE, patience=patience))

    @property
    def path(self) -> Path:
        return self._database.path

    @property
    def folder(self) -> Path:
        return self._database.path.parent

    def run_folder(self, run: str) -> Path:
        """Give the folder in which a run has its files."""
        return self.folder / "runs" / run

    def close(self) -> None:
        """Close it; more than once is fine."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
