"""A Kubernetes cluster as a backend: a Job for each role of an attempt, without an operator."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property

from rankwise import records
from rankwise.backends import base
from rankwise.backends.base import Attempt, Submission, Update, Updates
from rankwise.backends.kubernetes import delivery, states
from rankwise.backends.kubernetes.client import ApiClient, ApiRefused
from rankwise.backends.kubernetes.delivery import PodPackage
from rankwise.backends.kubernetes.objects import HEAD_PART, MANAGER, RUN, label, resources_of
from rankwise.backends.kubernetes.states import Pods, PodState
from rankwise.backends.kubernetes.watch import LogStream, PodWatch
from rankwise.documents.site_models import ComputeConfig
from rankwise.errors import ComputeFailure
from rankwise.machine import shortfall
from rankwise.plan import Resources
from rankwise.records import AttemptEnd
from rankwise.wording import grouped

_LOOK_SECONDS = 0.5
# How long the last of a log may take to arrive, after its pod has ended.
_LOG_SECONDS = 20.0
# The same if its node does not answer, while the cluster does.
_AWAY_SECONDS = 120.0
# How long a pod may take to end when it is deleted; longer than it is given.
_STUCK_SECONDS = 120.0
# How long the API may take to report what has ended a pod.
_STATE_SECONDS = 3.0
# For how long an image is tried to be had, and a container to be made.
_PULL_SECONDS, _REFUSAL_SECONDS = 45.0, 5.0
# How long a head that is asked to end may take; the cluster kills it before.
_END_SECONDS = 60.0
# After which time without a pod the Job is looked at.
_NO_POD_SECONDS = 5.0
_AGAIN_SECONDS = 5.0
_LISTED = 5
_FORBIDDEN = 403


@dataclass(slots=True, kw_only=True)
class _InPods:
    attempt: Attempt
    job: str
    """The name of the head's Job."""
    has_others: bool = True
    """Whether there may be Jobs that are still to be made."""
    stream: LogStream | None = None
    has_started: bool = False
    told: str = ""
    told_here: str = ""
    since: float = field(default_factory=time.monotonic)
    over_since: float | None = None
    deleted_since: float | None = None
    trouble: str = ""
    trouble_since: float = 0.0
    looked_at: float = 0.0
    asked_to_end: float | None = None


class KubernetesBackend(base.ActiveBackend):
    """Sends attempts to a cluster; they outlive the client."""

    def __init__(self, choice: ComputeConfig, updates: Updates) -> None:
        super().__init__(choice.name, updates, who="the cluster")
        self._choice = choice
        self._site = choice.kubernetes
        self._cluster = ApiClient(choice.kubernetes)
        self._sending: deque[PodPackage] = deque()
        self._next_try = 0.0
        self._unsent = ""
        """Why nothing can be sent for now; empty: all is well."""
        self._troubles: list[str] = []
        """What else was wrong since the last report."""
        self._watch: PodWatch | None = None
        self._watched: dict[str, _InPods] = {}
        self._leftovers: list[str] = []
        """Jobs that are still to be removed."""

    # What there is

    @cached_property
    def _found(self) -> Resources:
        if self._site.autoscale:
            return base.UNLIMITED
        try:
            nodes = self._cluster.nodes()
        except ComputeFailure:
            # No answer, or no permission: the scheduler reports what does not fit.
            return base.UNLIMITED
        has = [resources_of(one, self._site.gpu_resource) for one in nodes]
        # Without any, they come when they are needed, or are not shown.
        return sum(has, Resources()) if has else base.UNLIMITED

    def facts(self) -> base.BackendFacts:
        """Return what all nodes have together, if they may be listed; the cluster has a queue."""
        capacity = self._choice.capacity(self._found)
        return base.BackendFacts(capacity=capacity, room=base.UNLIMITED, makes_runtimes=True)

    # Sending

    def submit(self, job: Submission) -> None:
        """Send an attempt, as soon as there is room."""
        if reason := shortfall(job.task.resources, self.facts().capacity):
            raise ComputeFailure(reason)
        self._order(lambda: self._make_ready(job))

    def _make_ready(self, job: Submission) -> None:
        try:
            self._sending.append(delivery.package_for(job, self._choice))
        except Exception as failure:  # Whatever it is, a run waits for its end.
            self._finish(job.attempt, base.not_run(base.words_of(failure)))

    def _send(self) -> None:
        most = self._site.max_parallel
        while self._sending and time.monotonic() >= self._next_try:
            if most is not None and len(self._watched) >= most:
                return
            package = self._sending[0]
            try:
                job = delivery.create_objects(package, self._cluster)
            except (ComputeFailure, OSError) as failure:
                if text := _why_later(failure):
                    self._unsent = text
                    self._next_try = time.monotonic() + _AGAIN_SECONDS
                    return
                self._sending.popleft()
                self._finish(package.attempt, base.not_run(str(failure)))
                continue
            self._sending.popleft()
            self._unsent = ""
            self._take_up(package.attempt, job, has_others=bool(package.others))
            self._tell(Update(attempt=package.attempt, job_id=job))

    def _take_up(self, attempt: Attempt, job: str, *, has_others: bool) -> _InPods:
        one = _InPods(attempt=attempt, job=job, has_others=has_others)
        self._watched[attempt.marker] = one
        if self._watch is None:
            run = label(attempt.label.partition("/")[0])
            self._watch = PodWatch(self._cluster, {**MANAGER, RUN: run}, poke=self._wake)
        return one

    def _watch_again(self, attempt: Attempt, job_id: str) -> bool:
        """Watch an attempt that another client has sent, unless it never came to that."""
        head = delivery.find_head(attempt.marker, self._cluster)
        if head is None:
            if not job_id and records.read_end(attempt.folder) is None:
                return False
            self._take_up(attempt, job_id, has_others=False)
            return True
        name = str(head["metadata"]["name"])
        is_cancelled = _CANCELLED in (head["metadata"].get("annotations") or {})
        # Suspended since it was created: its client was killed before it had made the rest.
        if head["spec"].get("suspend") and not is_cancelled:
            self._cluster.delete_job(name)
            return False
        one = self._take_up(attempt, name, has_others=True)
        one.asked_to_end = time.monotonic() if is_cancelled else None
        if not job_id:
            self._tell(Update(attempt=attempt, job_id=name))
        return True

    # Watching

    def _do_due(self) -> float | None:
        """Send what waits, and see what is over; soon again, as long as there is something."""
        self._send()
        if self._watch is not None:
            self._watch.apply()
            self._troubles.append(_in_words(self._watch.trouble))
        self._look()
        self._tidy_up()
        self._note_troubles()
        return _LOOK_SECONDS if self._sending or self._watched or self._leftovers else None

    def _note_troubles(self) -> None:
        """Report what was wrong since the last time, if that is new."""
        unsent = self._unsent if self._sending else ""
        self._note_trouble(next(filter(None, [unsent, *self._troubles]), ""))
        self._troubles.clear()

    def _look(self) -> None:
        if self._watch is None or not self._watch.has_listed:
            return
        # Sorted once: with thousands of pods, a search for each attempt takes too long.
        found = grouped((pod.attempt, pod) for pod in self._watch.pods.values())
        now = time.monotonic()
        for one in list(self._watched.values()):
            pods = sorted(found.get(label(one.attempt.marker), ()), key=lambda pod: pod.name)
            self._look_at(one, pods, now)

    def _look_at(self, one: _InPods, pods: Pods, now: float) -> None:
        heads = [pod for pod in pods if pod.part == HEAD_PART]
        # A Job may have replaced a pod that was deleted before it began.
        head = next((pod for pod in heads if not pod.is_gone), heads[0] if heads else None)
        if head is None:
            self._look_without_pods(one, now)
            return
        # Only then can they reach the head, also where the cluster has no DNS.
        if head.address and one.has_others and one.asked_to_end is None:
            self._make_others(one, head)
            if one.attempt.marker not in self._watched:
                return
        if one.stream is None and (head.is_running or head.exit_code is not None):
            # A log is open for as long as the task runs.
            twin = self._cluster.twin()
            one.stream = LogStream(twin, head.name, one.attempt.folder, poke=self._wake)
        self._tell_of(one, pods)
        if (end := self._end_of(one, head, pods, now)) is not None:
            self._finish(one.attempt, end)

    def _make_others(self, one: _InPods, head: PodState) -> None:
        try:
            for job in delivery.others_of(one.attempt.folder, head.address):
                self._cluster.create(job)
            one.has_others = False
        except base.Unreachable as failure:
            self._troubles.append(_in_words(str(failure)))
        except OSError as error:
            self._troubles.append(f"{one.attempt.folder} cannot be read; waiting: {error}")
        except ComputeFailure as failure:
            self._finish(one.attempt, base.not_run(str(failure)))

    def _tell_of(self, one: _InPods, pods: Pods) -> None:
        """Report what is new about an attempt, each thing once."""
        if one.stream is not None and one.stream.has_begun and not one.has_started:
            one.has_started = True
            self._tell(Update(attempt=one.attempt, has_started=True))
        here = one.stream.trouble_here if one.stream is not None else ""
        if bool(here) != bool(one.told_here):
            text = f"cannot be written here; waiting: {here}" if here else "can be written again"
            self._tell(Update(attempt=one.attempt, text=text))
            one.told_here = here
        text = states.hold_up(pods) or states.pull_trouble(pods)
        if text and text != one.told and not one.has_started:
            one.told = text
            self._tell(Update(attempt=one.attempt, text=text))

    # How attempts end

    def _end_of(self, one: _InPods, head: PodState, pods: Pods, now: float) -> AttemptEnd | None:
        """Return how an attempt has ended; None: it has not, or that is not known yet."""
        stream = one.stream
        end = records.read_end(one.attempt.folder)
        is_whole = stream is not None and stream.is_whole
        lost = stream.lost_pods if stream is not None else {}
        if is_whole and end is not None and base.is_conclusive(end) and not lost:
            return end
        if stream is not None and self._is_held_up(stream) and one.asked_to_end is None:
            # How it ended may be in what is still to come.
            one.over_since = None
            return None
        if is_whole or head.is_over or self._is_stuck(one, head, now) or _lacks_others(one, pods):
            one.over_since = one.over_since or now
            is_wanted = one.asked_to_end is not None
            if now < one.over_since + _patience_with(stream) and not (is_whole and is_wanted):
                return None
            return states.judge(
                end,
                pods,
                is_wanted=is_wanted,
                is_out_of_memory=stream is not None and stream.is_out_of_memory,
                said=[*stream.said] if stream is not None else [],
                lost=lost,
            )
        one.over_since = None
        if one.asked_to_end is not None:
            # The kubelet kills a pod after its grace: this is for a node that does not answer.
            is_late = now > one.asked_to_end + _END_SECONDS
            return states.judge(end, pods, is_wanted=True) if is_late else None
        # What has started is in the hands of its head.
        return None if one.has_started else self._refused(one, pods, now)

    def _is_held_up(self, stream: LogStream) -> bool:
        """Return whether more is to come that cannot be read or written now."""
        is_away = stream.is_away and self._watch is not None and bool(self._watch.trouble)
        return not stream.is_whole and (is_away or bool(stream.trouble_here))

    def _is_stuck(self, one: _InPods, head: PodState, now: float) -> bool:
        """Return whether a deleted head never ends: its node is gone."""
        if not head.is_deleted:
            one.deleted_since = None
            return False
        one.deleted_since = one.deleted_since or now
        return now >= one.deleted_since + _STUCK_SECONDS

    def _refused(self, one: _InPods, pods: Pods, now: float) -> AttemptEnd | None:
        """Return the end of an attempt that will never start; None: it may."""
        refused, pulled = states.refusal(pods), states.pull_trouble(pods)
        trouble, patience = refused or pulled, _REFUSAL_SECONDS if refused else _PULL_SECONDS
        if not trouble and self._site.pending_limit is not None:
            trouble, patience = states.hold_up(pods), self._site.pending_limit
        if not trouble:
            one.trouble = ""
            return None
        # Each kind of trouble has a patience of its own, which begins with it.
        kind = "refused" if refused else "pulled" if pulled else "held up"
        if one.trouble != kind:
            one.trouble, one.trouble_since = kind, now
        return base.not_run(trouble) if now >= one.trouble_since + patience else None

    def _look_without_pods(self, one: _InPods, now: float) -> None:
        """Find out about an attempt that has no pod: not yet, or not any more."""
        if one.asked_to_end is not None:
            self._finish(one.attempt, base.cancelled())
            return
        if now < one.since + _NO_POD_SECONDS or now < one.looked_at + _NO_POD_SECONDS:
            return
        one.looked_at = now
        try:
            head = delivery.find_head(one.attempt.marker, self._cluster)
        except ComputeFailure as failure:
            self._troubles.append(_in_words(str(failure)))
            return
        # The Job's TTL, or a user, has removed the pods or all of it.
        if head is None or states.is_complete(head):
            self._finish(one.attempt, states.judge(records.read_end(one.attempt.folder), ()))
        elif why := states.failure_of(head):
            events = self._cluster.events_of(one.job)
            reason = "; ".join([f"Job {one.job}: {why}", *events[-1:]])
            self._finish(one.attempt, base.not_run(reason))
        elif (events := self._cluster.events_of(one.job)) and events[-1] != one.told:
            # A quota, or an admission webhook.
            one.told = events[-1]
            self._tell(Update(attempt=one.attempt, text=f"Job {one.job}: {events[-1]}"))

    def _finish(self, attempt: Attempt, end: AttemptEnd) -> None:
        one = self._watched.pop(attempt.marker, None)
        if one is not None and one.stream is not None:
            one.stream.close()
            if text := _not_brought(one.stream):
                self._tell(Update(attempt=attempt, text=text))
                reason = "; ".join(filter(None, (end.reason, text)))
                end = dataclasses.replace(end, reason=reason)
        if one is not None and one.job:
            self._leftovers.append(one.job)
        self._tell(Update(attempt=attempt, end=end))

    def _tidy_up(self) -> None:
        """Remove the objects of attempts that are over: the head's Job owns all of them."""
        while self._leftovers:
            try:
                self._cluster.delete_job(self._leftovers[0])
            except ComputeFailure as failure:
                self._troubles.append(f"{self._leftovers[0]} could not be removed: {failure}")
                return
            self._leftovers.pop(0)

    # Ending

    def _end(self, attempt: Attempt) -> None:
        """End an attempt: with SIGTERM if it runs, at once if it waits."""
        for waiting in [one for one in self._sending if one.attempt == attempt]:
            self._sending.remove(waiting)
            self._finish(attempt, base.cancelled())
        one = self._watched.get(attempt.marker)
        if one is None or one.asked_to_end is not None:
            return
        try:
            self._cluster.suspend(one.job, {_CANCELLED: "true"})
        except base.Unreachable as away:
            # It may run on. The engine asks again until it has ended.
            self._troubles.append(_in_words(str(away)))
            return
        except ComputeFailure as failure:
            self._tell(Update(text=f"could not be ended with SIGTERM: {failure}"))
            self._finish(attempt, base.cancelled())
            return
        one.asked_to_end = time.monotonic()

    def close(self) -> None:
        """Remove what is left to remove, and watch no more."""
        super().close()
        self._tidy_up()
        self._note_troubles()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        for one in self._watched.values():
            if one.stream is not None:
                one.stream.close()
        self._cluster.forget()


# For another client that takes the attempt over: a suspended Job may not have begun, too.
_CANCELLED = "rankwise.dev/cancelled"


def _why_later(failure: Exception) -> str:
    """Return why something cannot be created now, but may be later; empty: it never will be."""
    if isinstance(failure, base.Unreachable):
        return _in_words(str(failure))
    is_refused = isinstance(failure, ApiRefused) and failure.code == _FORBIDDEN
    # A full quota has the code of a missing permission: only the message tells them apart.
    if is_refused and "exceeded quota" in str(failure):
        return f"waiting for room in the namespace: {failure}"
    return ""


def _lacks_others(one: _InPods, pods: Pods) -> bool:
    """Return whether a pod is gone before all were there: none ends by itself until then."""
    others = [pod for pod in pods if pod.part != HEAD_PART]
    return not one.has_started and any(
        pod.exit_code is not None or pod.is_deleted or pod.is_gone or states.is_taken_away(pod)
        for pod in others
    )


def _patience_with(stream: LogStream | None) -> float:
    """Return for how long the last of a log may be on its way."""
    if stream is None or stream.is_whole or stream.is_at_end:
        return _STATE_SECONDS
    return _AWAY_SECONDS if stream.is_away else _LOG_SECONDS


def _not_brought(stream: LogStream) -> str:
    """Return which files of an attempt could not be brought here, for people."""
    listed = [f"{path} ({why})" for path, why in stream.left_out.items()]
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    text = "not brought here, and gone with its pod: " + ", ".join(listed[:_LISTED]) + more
    lost = f"{stream.missing} records are gone with the log of its pod: they were not read in time"
    return "; ".join([*([text] if listed else []), *([lost] if stream.missing else [])])


def _in_words(trouble: str) -> str:
    return f"the cluster does not answer; waiting: {trouble}" if trouble else ""
