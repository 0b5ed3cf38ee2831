"""Which module makes which kind of runtime ready."""

from __future__ import annotations

from rankwise.errors import ComputeFailure
from rankwise.plan import RuntimeChoice
from rankwise.runtime import container, current, modules, python, uv
from rankwise.runtime.contract import Prepared, Runtime, Say

_KINDS: dict[str, Runtime] = {
    "current": current.prepare,
    "python": python.prepare,
    "uv": uv.prepare,
    "container": container.prepare,
    "modules": modules.prepare,
}


def prepare(choice: RuntimeChoice, say: Say) -> Prepared:
    """Make a runtime ready, and say what takes its time.

    Idempotent. ComputeFailure: it cannot be had; the message says why and what to do.
    """
    kind = _KINDS.get(choice.kind)
    if kind is None:
        raise ComputeFailure(
            f'runtime "{choice.name}" is of a kind that is not known: "{choice.kind}"; '
            f"there are {', '.join(_KINDS)}"
        )
    return kind(choice, say)
