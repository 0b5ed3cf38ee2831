"""One question for the states of all jobs, asked again and again but not too often."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from typing import IO

from rankwise.errors import ComputeFailure
from rankwise.slurm import answers, commands
from rankwise.slurm.answers import JobState

SOONEST_SECONDS, LATEST_SECONDS = 0.5, 15.0
_SLOWER = 1.5
_GIVE_UP_SECONDS = 120.0


class QueueWatch:
    """Asks squeue in the background: it takes long to say that nobody answers.

    The more often the answer is the same, the longer until it is asked again.
    """

    def __init__(self) -> None:
        self.trouble = ""
        """What Slurm said instead of an answer; empty: all is well."""
        self._pause = SOONEST_SECONDS
        self._next = 0.0
        self._asked_at = 0.0
        self._call: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._last: dict[str, JobState] = {}

    def hurry(self) -> None:
        """Ask soon: something has changed, or is about to."""
        self._pause = SOONEST_SECONDS
        self._next = min(self._next, time.monotonic() + SOONEST_SECONDS)

    def look(self, job_ids: Iterable[str]) -> tuple[float, Mapping[str, JobState]] | None:
        """Give a new answer, with the time when it was asked for; None: there is none yet."""
        now = time.monotonic()
        if self._call is not None:
            return self._take(now)
        if now < self._next:
            return None
        listed = ",".join(dict.fromkeys(job_ids))
        if listed:
            self._ask(listed, now)
        return None

    def ask_now(self, job_ids: Iterable[str]) -> tuple[float, Mapping[str, JobState]] | None:
        """Ask and wait for the answer; None: nobody gives one."""
        self.close()
        now = time.monotonic()
        try:
            found = commands.states(job_ids)
        except ComputeFailure as failure:
            self._note_trouble(str(failure), now)
            return None
        self._note(found, time.monotonic())
        return now, found

    def close(self) -> None:
        """End a question that nobody wants to know the answer to any more."""
        if self._call is not None:
            self._call.kill()
            self._call.wait()
            self._call = None
        if self._said is not None:
            self._said.close()
            self._said = None

    def _ask(self, listed: str, now: float) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  it is read when the call has ended
        self._asked_at = now
        try:
            self._call = subprocess.Popen(
                commands.queue_command([f"--jobs={listed}"]),
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the client, which has more to ask.
                start_new_session=True,
            )
        except OSError as error:
            self._note_trouble(f"squeue cannot be started: {error.strerror}", now)

    def _take(self, now: float) -> tuple[float, Mapping[str, JobState]] | None:
        assert self._call is not None
        assert self._said is not None
        code = self._call.poll()
        if code is None:
            if now > self._asked_at + _GIVE_UP_SECONDS:
                self.close()
                self._note_trouble("squeue gives no answer", now)
            return None
        self._said.seek(0)
        text = self._said.read().decode(errors="replace")
        self.close()
        if code and "Invalid job id" not in text:
            self._note_trouble(str(commands.failure_of("squeue", code, text)), now)
            return None
        found = {} if code else answers.read_queue(text)
        self._note(found, now)
        return self._asked_at, found

    def _note(self, found: dict[str, JobState], now: float) -> None:
        is_same = found == self._last
        self._pause = min(self._pause * _SLOWER, LATEST_SECONDS) if is_same else SOONEST_SECONDS
        self._last, self.trouble, self._next = found, "", now + self._pause

    def _note_trouble(self, text: str, now: float) -> None:
        self.trouble = text
        self._pause = min(max(self._pause, 1.0) * _SLOWER, LATEST_SECONDS)
        self._next = now + self._pause


def ask_for_the_gone(job_id: str, *, has_accounting: bool) -> JobState | None:
    """Ask for a job that the queue does not have any more; None: nobody remembers it.

    SlurmAway: nobody answers.
    """
    found = commands.show(job_id)
    if found is None and has_accounting:
        found = commands.account(job_id)
    return found
