"""Everything that rankwise raises on purpose.

    RankwiseError
    ├── MpiMissing      no mpi4py, or no MPI library that it can load
    ├── MpiMismatch     the launcher and the MPI library don't belong together
    ├── InputError      a document, a site file or an argument is wrong
    ├── StoreFailure    the store cannot be read or written
    └── ComputeFailure  a compute or a runtime cannot do what a task needs

A message names the value, the place and the remedy.
"""

from __future__ import annotations


class RankwiseError(Exception):
    """A problem that its message explains to the user."""


class MpiMissing(RankwiseError):
    """mpi4py is not installed, or finds no MPI library."""


class MpiMismatch(RankwiseError):
    """The ranks that the launcher started don't see each other."""


class InputError(RankwiseError):
    """What a person has written is wrong; the message has a line for each mistake."""


class StoreFailure(RankwiseError):
    """The store cannot be read or written."""


class ComputeFailure(RankwiseError):
    """A compute or a runtime cannot do what a task needs."""
