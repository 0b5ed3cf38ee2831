"""Submits to a batch system by its own commands, and waits for the end of what it has submitted."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass
from inspect import signature
from types import FrameType
from typing import Any, Literal

from rankwise.errors import ComputeFailure, InputError
from rankwise.node.equipment import run
from rankwise.steps import attempt_folder

_JOB = "JOB"
# A batch system that is restarted does not answer for a while.
_MOST_SILENCES = 10
# One query may fail for many reasons; so many in a row mean that the job is gone.
_GONE = 5
_SLOWER, _SLOWEST = 1.5, 10.0
# What a shell leaves with if a program is not there, or cannot be run.
_NOT_THERE = (126, 127)

Fate = Literal["done", "failed", "goes on", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommands:
    """What to submit, and how to tell what becomes of it."""

    submit: str
    state: str
    job: str
    done: str
    failed: str = ""
    cancel: str = ""
    interval: float = 5.0
    gone: bool = False
    """Whether no answer any more means that it is done."""

    def fate(self, answer: str | None) -> Fate:
        """Return what an answer means; None: there was none."""
        if answer is None:
            return "unknown"
        if self.failed and re.search(self.failed, answer):
            return "failed"
        return "done" if re.search(self.done, answer) else "goes on"


def wait_step(**given: Any) -> None:
    """Submit something, and wait for its end; $JOB in `state` and `cancel` is its number."""
    submit_and_wait(BatchCommands(**given))


# The options of this step are the fields of the class.
wait_step.__signature__ = signature(BatchCommands, eval_str=True)  # type: ignore[attr-defined]


def submit_and_wait(wish: BatchCommands) -> None:
    """Submit it and return when it is done; raises ComputeFailure if it is not well."""
    _check_patterns(wish)
    job = _submit(wish)
    print(f"submitted as {job}", flush=True)

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # The runner ends a step by SIGTERM: the job must not go on without a stage that waits.
    signal.signal(signal.SIGTERM, end)
    try:
        _wait(wish, job)
    except KeyboardInterrupt:
        if wish.cancel:
            _said(wish.cancel, job)
            print(f"{job} was told to end")
        raise ComputeFailure(f"ended while {job} was not done") from None


def _check_patterns(wish: BatchCommands) -> None:
    """Raise InputError for a wrong pattern: after the submit, nothing would wait for the job."""
    for name, pattern in (("job", wish.job), ("done", wish.done), ("failed", wish.failed)):
        try:
            re.compile(pattern)
        except re.error as error:
            said = f"`{name}`: {pattern!r} is no regular expression: {error}"
            raise InputError(said) from None


def _submit(wish: BatchCommands) -> str:
    folder = attempt_folder()
    said, _ = _said(wish.submit, "")
    if said is None:
        raise ComputeFailure(f"could not submit: {wish.submit}")
    found = re.search(wish.job, said)
    if found is None:
        raise ComputeFailure(f"no number like {wish.job!r} in what `submit` said: {said.strip()!r}")
    job = found[1] if found.groups() else found[0]
    if folder is not None:
        (folder / "job").write_text(job)
    return job


def _wait(wish: BatchCommands, job: str) -> None:
    interval, silences, last = wish.interval, 0, ""
    while True:
        answer, can_ask = _said(wish.state, job)
        fate = wish.fate(answer)
        shown = (answer or "").strip()
        if shown and shown != last:
            print(shown, flush=True)
            last = shown
        silences = silences + 1 if fate == "unknown" else 0
        if fate == "done" or (wish.gone and silences >= _GONE and can_ask):
            return
        if fate == "failed":
            raise ComputeFailure(f"{job} has failed")
        if silences >= _MOST_SILENCES:
            raise ComputeFailure(f"the state of {job} cannot be read: {wish.state}")
        # Soon again: a job that is gone should not be waited for longer and longer.
        if silences and wish.gone:
            time.sleep(wish.interval)
            continue
        time.sleep(interval)
        interval = min(interval * _SLOWER, wish.interval * _SLOWEST)


def _said(line: str, job: str) -> tuple[str | None, bool]:
    """Run a line and give what it says, and whether there was anything to run.

    None in place of what it says: it has failed, and has said why itself.
    """
    # What it says of its troubles goes to the log of the step.
    done = run(["/bin/sh", "-c", line], None, stderr=None, env={**os.environ, _JOB: job})
    return None if done.returncode else done.stdout, done.returncode not in _NOT_THERE
