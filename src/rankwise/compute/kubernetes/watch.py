"""The pods of a run, watched by a thread of its own: listed once, and then told what changes.

A line that the server ends is taken up where it was; when it breaks, or that is too long ago, all
are listed anew. Every now and then they are listed anyway: a line may be dead without anybody
having noticed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from rankwise.compute.kubernetes.answers import PodState, read_pod
from rankwise.compute.kubernetes.client import Cluster, Gone
from rankwise.errors import ComputeFailure

# Shorter than what is in between keeps a silent line open; and as long as the thread may live on.
_WATCH_SECONDS = 50
_RELIST_SECONDS = 60.0
_SOONEST_SECONDS, _LATEST_SECONDS = 0.2, 10.0


class PodWatch:
    """What is known of the pods with some labels."""

    def __init__(self, cluster: Cluster, labels: Mapping[str, str]) -> None:
        self.pods: dict[str, PodState] = {}
        self.trouble = ""
        self._cluster = cluster
        self._labels = labels
        self._news: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
        self._is_over = threading.Event()
        self._listed = 0.0
        self._thread = threading.Thread(target=self._go, daemon=True, name="pods")
        self._thread.start()

    def take_in(self, seconds: float) -> bool:
        """Take in what was heard, waiting for something to be; tells whether there was any."""
        self._list_anyway()
        is_new = False
        while True:
            try:
                kind, what = self._news.get(timeout=0 if is_new else seconds)
            except queue.Empty:
                return is_new
            is_new = True
            self._note(kind, what)

    def _note(self, kind: str, what: object) -> None:
        if kind == "trouble":
            self.trouble = str(what)
        elif kind == "all":
            assert isinstance(what, dict)
            for name in self.pods.keys() - what.keys():
                self._gone(name)
            self.pods |= what
        elif isinstance(what, PodState):
            self.pods[what.name] = what
            if kind == "DELETED":
                self._gone(what.name)

    def _gone(self, name: str) -> None:
        self.pods[name] = replace(self.pods[name], is_gone=True)

    def poke(self) -> None:
        """Have whoever waits look again, though no pod has changed."""
        self._news.put(("poke", None))

    def close(self) -> None:
        self._is_over.set()

    def list_now(self) -> None:
        """Ask for all of them, here and now; ClusterAway: nobody answers."""
        found, _ = self._cluster.pods(self._labels)
        self._note("all", {pod.name: pod for pod in map(read_pod, found)})
        self._listed = time.monotonic()

    def _list_anyway(self) -> None:
        if time.monotonic() < self._listed + _RELIST_SECONDS:
            return
        self._listed = time.monotonic()
        try:
            self.list_now()
        except ComputeFailure as failure:
            self.trouble = str(failure)

    # In the thread

    def _go(self) -> None:
        own = self._cluster.twin()
        try:
            self._follow(own)
        finally:
            own.forget()

    def _follow(self, own: Cluster) -> None:
        pause, version = _SOONEST_SECONDS, ""
        while not self._is_over.is_set():
            try:
                if not version:
                    version = self._list(own)
                for event, pod in own.watch(self._labels, version, seconds=_WATCH_SECONDS):
                    pause = _SOONEST_SECONDS
                    version = pod["metadata"]["resourceVersion"]
                    self._news.put((event, read_pod(pod)))
                    if self._is_over.is_set():
                        return
            except Gone:
                version = ""
            except ComputeFailure as failure:
                own.forget()
                version = ""
                self._news.put(("trouble", str(failure)))
                self._is_over.wait(pause)
                pause = min(pause * 2, _LATEST_SECONDS)

    def _list(self, own: Cluster) -> str:
        found, version = own.pods(self._labels)
        self._news.put(("all", {pod.name: pod for pod in map(read_pod, found)}))
        self._news.put(("trouble", ""))
        return version
