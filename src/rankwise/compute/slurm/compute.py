"""A Slurm cluster as a compute: a job for each attempt, or an array for those that are alike."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from rankwise import records
from rankwise.compute.capacity import shortfall
from rankwise.compute.contract import Attempt, Job, News
from rankwise.compute.slurm import pilots
from rankwise.compute.slurm.packing import Packing
from rankwise.compute.slurm.pilots import PilotSending
from rankwise.compute.slurm.sending import LOG, Parcel, Sending, Sent, find_sent, hand_over
from rankwise.compute.slurm.verdict import is_clear, judge
from rankwise.compute.slurm.watch import QueueWatch, ask_for_the_gone
from rankwise.errors import ComputeFailure
from rankwise.plan import Resources
from rankwise.records import AttemptEnd
from rankwise.site import ComputeChoice
from rankwise.slurm import answers, commands
from rankwise.slurm.answers import JobState
from rankwise.slurm.commands import SlurmAway

UNLIMITED = Resources(cores=math.inf, memory=sys.maxsize, gpus=sys.maxsize)
_LOOK_SECONDS, _LATEST_LOOK_SECONDS = 0.05, 0.5
# How long files of another machine may take to be seen here, after their writer has ended.
_FILE_SECONDS = 5.0
# How long a runner that is asked to end may take, before all of its job is killed.
_END_SECONDS = 20.0
_WORD_LINES, _WORD_BYTES = 40, 20_000


@dataclass(slots=True, kw_only=True)
class _Watched:
    attempt: Attempt
    job_id: str
    state: JobState | None = None
    parcel: Parcel | None = None
    """None: another client has sent it."""
    is_with_pilot: bool = False
    """Whether the job is one that it shares with others."""
    has_started: bool = False
    over_since: float | None = None
    """Since when Slurm has been done with it, while its end has not been seen."""
    asked_to_end: float | None = None
    end: AttemptEnd | None = None
    """What its runner says, as long as that is not enough."""
    end_since: float = 0.0
    end_path: str = ""
    claim_path: str = ""
    """As texts: they are looked at often."""

    def __post_init__(self) -> None:
        self.end_path = f"{self.attempt.folder}/end.json"
        self.claim_path = f"{self.attempt.folder}/{records.CLAIM}"


@dataclass(slots=True)
class _Heard:
    """What is to be told, each thing once."""

    news: list[News] = field(default_factory=list)
    trouble: str = ""
    told: dict[str, str] = field(default_factory=dict)

    def tell(self, news: News) -> None:
        self.news.append(news)

    def tell_of_job(self, attempt: Attempt, job_id: str, text: str) -> None:
        """Tell something of a job once, however many attempts share it."""
        if self.told.get(job_id) != text:
            self.told[job_id] = text
            self.news.append(News(attempt=attempt, text=f"Slurm job {job_id} {text}"))

    def note_trouble(self, text: str) -> None:
        if text and not self.trouble:
            self.news.append(News(text=text))
        elif self.trouble and not text:
            self.news.append(News(text="Slurm answers again"))
        self.trouble = text


class SlurmCompute:
    """Sends attempts to a cluster; they outlive the client."""

    makes_runtimes = False

    def __init__(
        self, choice: ComputeChoice, *, environment: Mapping[str, str], secrets: Sequence[str] = ()
    ) -> None:
        self._choice = choice
        self._slurm = choice.slurm
        plain = commands.plain_environment(environment)
        for name in secrets:
            plain.pop(name, None)
        sending = Sending(most=self._slurm.max_queued, environment=plain)
        self._pilots = (
            PilotSending(sending, nodes=self._slurm.pilot_nodes)
            if self._slurm.mode == "pilot"
            else None
        )
        self._packing = Packing(choice)
        # Not `or`: one that has nothing to send is false.
        self._sending = self._pilots if self._pilots is not None else sending
        self._watch = QueueWatch()
        self._watched: dict[str, _Watched] = {}
        self._over: dict[str, AttemptEnd] = {}
        self._ended: list[Attempt] = []
        self._heard = _Heard()
        self._has_asked = False
        self._look_pause = _LOOK_SECONDS

    # What there is

    @cached_property
    def _nodes(self) -> list[answers.Node]:
        return commands.nodes(self._slurm.partition)

    @cached_property
    def _has_accounting(self) -> bool:
        return answers.is_accounting_on(commands.settings())

    def capacity(self) -> Resources:
        """Tell what all nodes of the partition have together."""
        nodes = self._known_nodes()
        if not nodes:
            # Nobody answers, or there is no such partition: sbatch will say.
            return UNLIMITED
        found = Resources(
            cores=sum(node.cores for node in nodes),
            memory=sum(node.memory for node in nodes) << 20,
            gpus=sum(node.gpus for node in nodes),
        )
        return self._choice.capacity(found)

    def room(self) -> Resources:
        """Tell that Slurm's queue takes whatever comes."""
        return UNLIMITED

    def place(self, folder: Path) -> Path:
        """Give a folder that all nodes see."""
        if not self._slurm.shared:
            return folder
        *above, run, task, number = folder.parts
        store = hashlib.sha256("/".join(above).encode()).hexdigest()[:8]
        return Path(self._slurm.shared) / f"rankwise-{store}" / run / task / number

    # Sending

    def submit(self, job: Job) -> None:
        """Make an attempt ready to be sent; `wait` sends it, with others like it."""
        task, nodes = job.task, self._known_nodes()
        if reason := shortfall(task.resources, self.capacity()):
            raise ComputeFailure(reason)
        if nodes and task.nodes > len(nodes):
            raise ComputeFailure(f"needs {task.nodes} nodes, found {len(nodes)}")
        self._sending.add(self._packing.parcel_for(job, nodes))

    def _known_nodes(self) -> list[answers.Node]:
        with contextlib.suppress(ComputeFailure):
            return self._nodes
        return []

    def adopt(self, attempt: Attempt, job_id: str) -> bool:
        """Watch an attempt that another client has sent, unless it never came to that."""
        if not job_id:
            job_id = self._find(attempt) or ""
            if not job_id:
                pilots.take_back(attempt)
                if records.abandon(attempt.folder):
                    return False
            if job_id:
                self._heard.tell(News(attempt=attempt, job_id=job_id))
        self._watched[attempt.marker] = _Watched(
            attempt=attempt, job_id=job_id, is_with_pilot=pilots.pilot_of(attempt) is not None
        )
        self._has_asked = False
        return True

    def _find(self, attempt: Attempt) -> str | None:
        for _ in range(2):
            with contextlib.suppress(SlurmAway):
                return find_sent(attempt.folder, has_accounting=self._has_accounting)
        return find_sent(attempt.folder, has_accounting=self._has_accounting)

    # Waiting

    def wait(self, seconds: float) -> list[Attempt]:
        """Give those attempts that are over."""
        deadline = time.monotonic() + seconds
        while True:
            self._send()
            self._ask()
            self._look()
            ended, self._ended = self._ended, []
            left = deadline - time.monotonic()
            if ended or left <= 0:
                self._look_pause = _LOOK_SECONDS
                return ended
            time.sleep(min(left, self._look_pause))
            self._look_pause = min(self._look_pause * 1.2, _LATEST_LOOK_SECONDS)

    def _send(self) -> None:
        for sent in self._sending.send(len(self._watched)):
            attempt = sent.parcel.attempt
            if sent.refusal:
                self._finish(attempt, _refused(sent))
                continue
            self._watched[attempt.marker] = _Watched(
                attempt=attempt,
                job_id=sent.job_id,
                parcel=sent.parcel,
                is_with_pilot=self._pilots is not None,
            )
            self._heard.tell(News(attempt=attempt, job_id=sent.job_id))
            self._watch.hurry()

    def _ask(self) -> None:
        """Take in what Slurm says of all of them, if it says something new."""
        ids = [one.job_id for one in self._watched.values() if one.job_id]
        if not self._has_asked and ids:
            answer = self._watch.ask_now(ids)
            self._has_asked = True
        else:
            answer = self._watch.look(ids)
        self._heard.note_trouble(self._sending.trouble or _in_words(self._watch.trouble))
        if answer is None:
            return
        asked_at, states = answer
        for one in list(self._watched.values()):
            if one.job_id in states:
                self._take_in(one, states[one.job_id])
            elif one.job_id:
                self._ask_for_the_gone(one)
            if one.end is not None and asked_at > one.end_since and _goes_on_without(one):
                self._finish(one.attempt, one.end)

    def _ask_for_the_gone(self, one: _Watched) -> None:
        if one.state is not None and one.state.is_over:
            return
        try:
            found = ask_for_the_gone(one.job_id, has_accounting=self._has_accounting)
        except ComputeFailure:
            return  # The next time, perhaps.
        self._take_in(one, found or JobState(state=""))

    def _take_in(self, one: _Watched, state: JobState) -> None:
        """Note how a job stands, and tell what is new about it."""
        one.state = state
        if state.is_over:
            one.over_since = one.over_since or time.monotonic()
            if self._pilots is not None:
                self._pilots.note_over(one.job_id)
            return
        one.over_since = None
        if state.is_waiting:
            why = f": {state.reason}" if state.reason else ""
            if one.has_started:
                one.has_started = False
                if one.parcel is not None:
                    hand_over(one.parcel)
                self._heard.tell_of_job(
                    one.attempt, one.job_id, f"was put back into the queue{why}"
                )
            elif why:
                self._heard.tell_of_job(one.attempt, one.job_id, f"is pending{why}")
        elif not one.has_started and not one.is_with_pilot and state.state != "CONFIGURING":
            self._note_start(one)

    def _note_start(self, one: _Watched) -> None:
        one.has_started = True
        self._heard.tell(News(attempt=one.attempt, has_started=True))

    def _look(self) -> None:
        """See which attempts are over, from their files and from what Slurm has said."""
        now = time.monotonic()
        for one in list(self._watched.values()):
            has_end = os.path.exists(one.end_path)  # noqa: PTH110  a Path takes ten times as long
            end = records.read_end(one.attempt.folder) if has_end else None
            if end is not None and is_clear(end):
                self._note_start(one)
                self._finish(one.attempt, end)
            elif one.over_since is not None or not one.job_id:
                self._look_at_the_dead(one, end, now)
            elif end is not None and end != one.end:
                one.end, one.end_since = end, now
                self._watch.hurry()
            elif one.is_with_pilot:
                self._look_at_the_pilots(one)
            self._insist_on_end(one, now)

    def _look_at_the_pilots(self, one: _Watched) -> None:
        """See whether a pilot has begun with an attempt, or dropped it as it was asked to."""
        if one.has_started:
            return
        if os.path.exists(one.claim_path):  # noqa: PTH110  as above
            self._note_start(one)
        elif one.asked_to_end is not None and not pilots.is_with_pilot(one.attempt):
            self._drop(one.attempt)

    def _drop(self, attempt: Attempt) -> None:
        if records.abandon(attempt.folder):
            end = AttemptEnd(outcome="cancelled", exit_code=130, reason="cancelled")
            self._finish(attempt, end)

    def _look_at_the_dead(self, one: _Watched, end: AttemptEnd | None, now: float) -> None:
        has_begun = (one.attempt.folder / records.CLAIM).exists()
        if one.is_with_pilot and not has_begun and self._send_again(one):
            return
        since = one.over_since if one.over_since is not None else now - _FILE_SECONDS
        if end is None and has_begun and now < since + _FILE_SECONDS:
            return
        self._finish(
            one.attempt,
            judge(
                end,
                one.state if one.state is not None and one.state.state else None,
                job_id=one.job_id,
                words=_words(one.attempt.folder),
                has_begun=has_begun,
                is_wanted=one.asked_to_end is not None,
            ),
        )

    def _send_again(self, one: _Watched) -> bool:
        """Give an attempt to another pilot whose own has left before it began with it."""
        state = one.state.state if one.state is not None else ""
        is_to_blame = state in ("CANCELLED", "FAILED", "") or one.asked_to_end is not None
        if is_to_blame or one.parcel is None or not pilots.is_with_pilot(one.attempt):
            return False
        pilots.take_back(one.attempt)
        del self._watched[one.attempt.marker]
        self._sending.add(one.parcel)
        return True

    def _finish(self, attempt: Attempt, end: AttemptEnd) -> None:
        self._watched.pop(attempt.marker, None)
        self._over[attempt.marker] = end
        self._ended.append(attempt)

    def news(self) -> list[News]:
        """Give what was heard since the last time."""
        news, self._heard.news = self._heard.news, []
        return news

    def end_of(self, attempt: Attempt) -> AttemptEnd | None:
        """Say how an attempt ended that `wait` has given."""
        return self._over.pop(attempt.marker, None)

    # Ending

    def cancel(self, attempt: Attempt) -> None:
        """Have an attempt end: in good order if it runs, at once if it waits."""
        if self._sending.drop(attempt):
            self._drop(attempt)
            return
        one = self._watched.get(attempt.marker)
        if one is not None and one.asked_to_end is None:
            one.asked_to_end = time.monotonic()
            if one.is_with_pilot:
                pilots.ask_to_end(attempt)
                return
            self._scancel(one.job_id, "--state=PENDING")
            self._scancel(one.job_id, "--state=RUNNING", "--batch", "--signal=TERM")
            self._watch.hurry()

    def _insist_on_end(self, one: _Watched, now: float) -> None:
        """Kill what does not end when it is asked to."""
        if one.asked_to_end is not None and now > one.asked_to_end + _END_SECONDS:
            one.asked_to_end = now
            if one.is_with_pilot:
                pilots.ask_to_end(one.attempt)
            else:
                self._scancel(one.job_id)

    def _scancel(self, job_id: str, *options: str) -> None:
        try:
            if job_id:
                commands.cancel(job_id, *options)
        except ComputeFailure as failure:
            self._heard.tell(News(text=f"could not be cancelled, trying again: {failure}"))

    def close(self) -> None:
        """Let pilots go: the run is over."""
        if self._pilots is not None:
            self._pilots.close()
        self._watch.close()

    def clean(self, attempt: Attempt) -> None:
        """Leave it to Slurm, which ends everything that belongs to a job."""


def _goes_on_without(one: _Watched) -> bool:
    """Tell whether a pilot runs on after a task of its: then nobody but the task has ended it."""
    is_running = one.state is not None and one.state.state == "RUNNING"
    return one.is_with_pilot and is_running


def _refused(sent: Sent) -> AttemptEnd:
    return AttemptEnd(outcome="not run", exit_code=1, reason=sent.refusal)


def _in_words(trouble: str) -> str:
    return f"slurmctld does not answer; waiting: {trouble}" if trouble else ""


def _words(folder: Path) -> list[str]:
    """Give the last lines that a job has written for itself, not for its processes."""
    lines: list[str] = []
    for name in ("slurm.log", LOG):
        with contextlib.suppress(OSError):
            with (folder / name).open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - _WORD_BYTES))
                text = file.read().decode(errors="replace")
            lines += [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-_WORD_LINES:]
