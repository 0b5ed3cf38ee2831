"""Processes that do not outlive the one that starts them, whatever happens to it.

Standard library only.
"""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def end_with_parent() -> None:
    """Be killed with the parent: for `preexec_fn`, and parents without threads."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
