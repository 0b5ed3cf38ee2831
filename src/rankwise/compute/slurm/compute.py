"""A Slurm cluster as a compute: a job for each attempt, or an array for those that are alike."""

from __future__ import annotations

import contextlib
import hashlib
import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from rankwise import records, runner
from rankwise.compute.capacity import shortfall
from rankwise.compute.compiled import compiled_runner
from rankwise.compute.contract import Attempt, Job, News
from rankwise.compute.order import make_folders, write_order
from rankwise.compute.slurm import inside
from rankwise.compute.slurm.script import needs_of, options_of, script_text
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
    has_started: bool = False
    told: str = ""
    over_since: float | None = None
    """Since when Slurm has been done with it, while its end has not been seen."""
    asked_to_end: float | None = None
    end: AttemptEnd | None = None


@dataclass(slots=True)
class _Heard:
    """What is to be told, each thing once."""

    news: list[News] = field(default_factory=list)
    trouble: str = ""

    def tell(self, news: News) -> None:
        self.news.append(news)

    def note_trouble(self, text: str) -> None:
        if text and not self.trouble:
            self.news.append(News(text=text))
        elif self.trouble and not text:
            self.news.append(News(text="Slurm answers again"))
        self.trouble = text


class SlurmCompute:
    """Sends attempts to a cluster; they outlive the client."""

    def __init__(
        self, choice: ComputeChoice, *, environment: Mapping[str, str], secrets: Sequence[str] = ()
    ) -> None:
        self._choice = choice
        self._slurm = choice.slurm
        plain = commands.plain_environment(environment)
        for name in secrets:
            plain.pop(name, None)
        self._sending = Sending(most=self._slurm.max_queued, environment=plain)
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
        attempt, task, nodes = job.attempt, job.task, self._known_nodes()
        if reason := shortfall(task.resources, self.capacity()):
            raise ComputeFailure(reason)
        if nodes and task.nodes > len(nodes):
            raise ComputeFailure(f"needs {task.nodes} nodes, found {len(nodes)}")
        try:
            places = make_folders(attempt.folder, task)
            # Which they are, Slurm decides.
            later = [
                {"name": f"node{number}", "address": "", "folder": str(place)}
                for number, place in enumerate(places)
            ]
            write_order(job, later)
            command = self._command(attempt.folder)
        except OSError as error:
            raise ComputeFailure(
                f"{attempt.label} could not be made ready in {attempt.folder}: {error.strerror}"
            ) from error
        most_cores = max((node.cores for node in nodes), default=0)
        needs = needs_of(task, most_cores=most_cores, counts_gpus=self._choice.gpus is not None)
        self._sending.add(
            Parcel(
                attempt=attempt,
                options=tuple(options_of(self._slurm, needs)),
                script=script_text(self._slurm, attempt.label.partition("/")[0], command),
                secrets=job.secrets,
            )
        )

    def _known_nodes(self) -> list[answers.Node]:
        with contextlib.suppress(ComputeFailure):
            return self._nodes
        return []

    def _command(self, folder: Path) -> list[str]:
        """Give the words that start our part on a node, from copies beside the attempts."""
        python = self._slurm.python or sys.executable
        source = compiled_runner() if not self._slurm.python else Path(str(runner.__file__))
        library = folder.parent.parent / ".rankwise-parts"
        first = _copied(Path(inside.__file__), library)
        return [python, "-I", "-S", str(first), str(_copied(source, library))]

    def adopt(self, attempt: Attempt, job_id: str) -> bool:
        """Watch an attempt that another client has sent, unless it never came to that."""
        if not job_id:
            job_id = self._find(attempt) or ""
            if not job_id and records.abandon(attempt.folder):
                return False
            if job_id:
                self._heard.tell(News(attempt=attempt, job_id=job_id))
        self._watched[attempt.marker] = _Watched(attempt=attempt, job_id=job_id)
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
                attempt=attempt, job_id=sent.job_id, parcel=sent.parcel
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
        del asked_at

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
            return
        one.over_since = None
        if state.is_waiting:
            if one.has_started:
                one.has_started = False
                if one.parcel is not None:
                    hand_over(one.parcel)
                why = f" ({state.reason})" if state.reason else ""
                text = f"Slurm has put job {one.job_id} back into the queue{why}"
                self._heard.tell(News(attempt=one.attempt, text=text))
            elif state.reason and state.reason != one.told:
                one.told = state.reason
                text = f"Slurm job {one.job_id} is pending: {state.reason}"
                self._heard.tell(News(attempt=one.attempt, text=text))
        elif not one.has_started and state.state != "CONFIGURING":
            self._note_start(one)

    def _note_start(self, one: _Watched) -> None:
        one.has_started = True
        self._heard.tell(News(attempt=one.attempt, has_started=True))

    def _look(self) -> None:
        """See which attempts are over, from their files and from what Slurm has said."""
        now = time.monotonic()
        for one in list(self._watched.values()):
            end = records.read_end(one.attempt.folder)
            if end is not None and is_clear(end):
                self._note_start(one)
                self._finish(one.attempt, end)
            elif end is not None and one.over_since is None:
                if one.end != end:
                    one.end = end
                    self._watch.hurry()
                if not one.job_id:
                    self._finish(one.attempt, end)
            elif one.over_since is not None or not one.job_id:
                self._look_at_the_dead(one, end, now)
            self._insist_on_end(one, now)

    def _look_at_the_dead(self, one: _Watched, end: AttemptEnd | None, now: float) -> None:
        has_begun = (one.attempt.folder / records.CLAIM).exists()
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
            records.abandon(attempt.folder)
            end = AttemptEnd(outcome="cancelled", exit_code=130, reason="cancelled")
            self._finish(attempt, end)
            return
        one = self._watched.get(attempt.marker)
        if one is not None and one.asked_to_end is None:
            one.asked_to_end = time.monotonic()
            self._scancel(one.job_id, "--state=PENDING")
            self._scancel(one.job_id, "--state=RUNNING", "--batch", "--signal=TERM")
            self._watch.hurry()

    def _insist_on_end(self, one: _Watched, now: float) -> None:
        """Kill what does not end when it is asked to."""
        if one.asked_to_end is not None and now > one.asked_to_end + _END_SECONDS:
            one.asked_to_end = now
            self._scancel(one.job_id)

    def _scancel(self, job_id: str, *options: str) -> None:
        try:
            if job_id:
                commands.cancel(job_id, *options)
        except ComputeFailure as failure:
            self._heard.tell(News(text=f"could not be cancelled, trying again: {failure}"))

    def clean(self, attempt: Attempt) -> None:
        """Leave it to Slurm, which ends everything that belongs to a job."""


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


def _copied(source: Path, library: Path) -> Path:
    """Have a copy of one of our files where the nodes can read it."""
    content = source.read_bytes()
    name = f"{hashlib.sha256(content).hexdigest()[:12]}-{source.stem[-8:]}{source.suffix}"
    place = library / name
    if not place.exists():
        library.mkdir(parents=True, exist_ok=True)
        beside = place.with_name(f".{name}.{time.monotonic_ns()}")
        shutil.copyfile(source, beside)
        beside.replace(place)
    return place
