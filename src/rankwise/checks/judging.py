"""Whether an attempt that has ended has done what it should."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rankwise.checks.callables import fault_by_function
from rankwise.checks.limits import TooLong, at_most
from rankwise.checks.material import Material, Missing
from rankwise.checks.texts import fault_in_text
from rankwise.checks.values import fault_in_values
from rankwise.checks.words import describe, harmless
from rankwise.plan import Check, Task
from rankwise.records import AttemptEnd

# Others have no exit code of their own.
_WITH_A_CODE = ("passed", "failed", "crashed")


def judge(task: Task, folder: Path, end: AttemptEnd) -> AttemptEnd:
    """Look at what an attempt has left, and say how it has ended after all.

    Only reads, so it may be asked again: what has not changed is judged in the same way.
    """
    end, faults = _judge_code(task, end)
    if end.outcome != "passed" and not faults:
        return end
    material = Material(task=task, folder=folder, started=end.started)
    for number, check in enumerate(task.checks, start=1):
        if check.kind != "exit_code" and (fault := _fault(check, material, end)):
            faults.append(_told(number, check, fault))
    if not faults:
        return end
    reason = faults[0]
    if len(faults) > 1:
        reason = f"{len(faults)} of {len(task.checks)} checks failed\n" + "\n".join(faults)
    return dataclasses.replace(end, outcome="failed", reason=reason)


def _judge_code(task: Task, end: AttemptEnd) -> tuple[AttemptEnd, list[str]]:
    """Take exit codes for success that are wanted, and zero for a failure if it is not."""
    faults = []
    for number, check in enumerate(task.checks, start=1):
        if check.kind != "exit_code" or end.outcome not in _WITH_A_CODE:
            continue
        if end.exit_code in check.codes:
            end = dataclasses.replace(end, outcome="passed", reason="", culprit=None)
        elif end.outcome == "passed":
            faults.append(_told(number, check, f"it was {end.exit_code}"))
        else:
            wanted = f"check {number} wants {describe(check)}"
            end = dataclasses.replace(end, reason=f"{end.reason}; {wanted}")
    return end, faults


def _fault(check: Check, material: Material, end: AttemptEnd) -> str:
    """Say what is wrong; empty: nothing is."""
    try:
        if check.kind == "python":
            return fault_by_function(check, material, end.exit_code)
        with at_most(check.seconds):
            match check.kind:
                case "json":
                    return fault_in_values(check, material)
                case "exists":
                    material.files(check)
                    return ""
            return fault_in_text(check, material)
    except (Missing, TooLong) as problem:
        return str(problem)
    except (OSError, ValueError, RecursionError) as problem:
        # A name that no file can have, a folder that may not be entered.
        return f"it could not be made: {problem}"


def _told(number: int, check: Check, fault: str) -> str:
    return harmless(f"check {number} ({describe(check)}): {fault}")
