"""Places where attempts run, for the tests that every compute has to pass.

A new one joins with an entry in `PLACES`: a function that gives its table of a site file, and
whatever else it needs. It may skip, as the others do where something is not installed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

import psutil
import pytest

from rankwise.backends.base import (
    Attempt,
    Backend,
    Submission,
    Update,
    Updates,
    open_computes,
)
from rankwise.documents.site import find_site
from rankwise.plan import Process, Task
from rankwise.records import AttemptEnd
from rankwise.runtimes.base import PreparedRuntime
from tests.support.plugins import spool

LIMIT_SECONDS = 120.0
NAME = "it"
"""What the compute is called in the site file."""


@dataclass(slots=True, kw_only=True)
class Place:
    """One compute, and what the tests may do beside it."""

    folder: Path
    """Here is the site file, the code, the attempts and the store."""
    table: str
    """What `[compute.it]` has in it."""
    variables: dict[str, str] = field(default_factory=dict)
    """The environment of the client."""
    elsewhere: tuple[Path, ...] = ()
    """Folders in which its tasks or its machines keep files, beside those of the attempt."""
    sees_processes: bool = True
    """Whether what runs there are processes of this machine, which a test can find and kill."""
    sees_files: bool = True
    """Whether what runs there sees the files of this machine."""
    finds_strangers: bool = True
    """Whether what has left its parents behind is ended there too."""
    updates: Updates = field(default_factory=SimpleQueue)
    """What the compute tells that was opened last."""
    _count: int = 0

    def prepare(self) -> None:
        (self.folder / "rankwise.toml").write_text(f"[compute.{NAME}]\n{self.table}\n")
        (self.folder / "code").mkdir()
        (self.folder / "code" / "greeting.txt").write_text("good morning\n")

    def open(self) -> Backend:
        """Open it, as a client does that knows nothing of the one before."""
        self.updates = SimpleQueue()
        site, store = find_site(self.folder), self.folder / "store"
        return open_computes([NAME], site, self.updates, store=store, run="run-1")[NAME]

    def attempt(self, compute: Backend) -> Attempt:
        """Make one that is not known yet."""
        self._count += 1
        own = self.folder / "store" / "runs" / "run-1" / "task" / str(self._count)
        folder = compute.place(own)
        folder.mkdir(parents=True)
        marker = f"rw-{secrets.token_hex(8)}"
        return Attempt(label=f"run-1/task/{self._count}", marker=marker, folder=folder)

    def job(self, attempt: Attempt, command: str, **more: object) -> Submission:
        """Make what runs one line of shell, in a copy of the code."""
        values: dict[str, str] = more.pop("values", {})  # type: ignore[assignment]  # as it is given below
        more.setdefault("processes", (Process(name="worker-0", role="worker", command=command),))
        task = Task(
            key="task",
            code=str(self.folder / "code"),
            folder=str(self.folder / "code"),
            compute=NAME,
            secrets=tuple(values),
            **more,  # type: ignore[arg-type]  # what a test wants different
        )
        return Submission(attempt=attempt, task=task, runtime=PreparedRuntime(), secrets=values)

    def marked(self, marker: str) -> list[psutil.Process]:
        """Find the processes of an attempt."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("RANKWISE_ATTEMPT") == marker:
                    found.append(process)
        return found


@dataclass(slots=True)
class Watching:
    """Waits for attempts, and notes what is told of them meanwhile."""

    compute: Backend
    updates: Updates
    news: list[Update] = field(default_factory=list)
    ends: dict[str, AttemptEnd] = field(default_factory=dict)

    def hear(self, seconds: float) -> list[Attempt]:
        """Wait for something to be told, and give those that are over."""
        heard: list[Update] = []
        with contextlib.suppress(Empty):
            heard.append(self.updates.get(timeout=seconds))
            while True:
                heard.append(self.updates.get_nowait())
        self.news += heard
        over = [(one.attempt, one.end) for one in heard if one.attempt and one.end]
        assert not any(attempt.marker in self.ends for attempt, _ in over), "it has ended twice"
        self.ends |= {attempt.marker: end for attempt, end in over}
        return [attempt for attempt, _ in over]

    def look(self) -> list[Attempt]:
        """Have the compute look now, and give those that are over."""
        over, count = [], len(self.news)
        self.compute.look()
        deadline = time.monotonic() + LIMIT_SECONDS
        while not any(one.has_looked for one in self.news[count:]):
            assert time.monotonic() < deadline, f"no answer; the news: {self.news}"
            over += self.hear(0.5)
        return over

    def until_over(self, *attempts: Attempt) -> list[AttemptEnd]:
        """Return how they have ended."""
        self.compute.look()
        deadline = time.monotonic() + LIMIT_SECONDS
        while not all(attempt.marker in self.ends for attempt in attempts):
            assert time.monotonic() < deadline, f"no end; the news: {self.news}"
            self.hear(0.5)
        return [self.ends[attempt.marker] for attempt in attempts]

    def until_written(self, attempt: Attempt, text: str, who: str = "worker-0") -> None:
        """Wait until a process has written something, and it is seen here."""
        self.compute.look()
        deadline = time.monotonic() + LIMIT_SECONDS
        while text not in output_of(attempt, who):
            assert time.monotonic() < deadline, f"nothing written; the news: {self.news}"
            assert self.hear(0.1) == [], self.news

    def is_there(self, attempt: Attempt, job_id: str) -> bool:
        """Adopt an attempt, and give whether it was started at all."""
        self.compute.adopt(attempt, job_id)
        self.look()
        return not any(one.is_absent and one.attempt == attempt for one in self.news)


def output_of(attempt: Attempt, who: str = "worker-0") -> str:
    try:
        return (attempt.folder / "processes" / who / "output.log").read_text()
    except OSError:
        return ""


def wait_until(what: str, is_so: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.05)


def files_with(text: str, folders: Sequence[Path]) -> list[Path]:
    """Find the files that have a text in them."""
    wanted = text.encode()
    found = []
    for folder in folders:
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file() and wanted in path.read_bytes():
                    found.append(path)
    return found


def need(why_not: str | None) -> None:
    """Skip what cannot be here; with RANKWISE_REQUIRE_ALL that is a failure."""
    if why_not and os.environ.get("RANKWISE_REQUIRE_ALL"):
        pytest.fail(why_not)
    if why_not:
        pytest.skip(why_not)


# The places


@contextlib.contextmanager
def _local(folder: Path) -> Iterator[Place]:
    yield Place(folder=folder, table='backend = "local"')


@contextlib.contextmanager
def _slurm(folder: Path) -> Iterator[Place]:
    from cluster import cluster, obstacle

    need(obstacle())
    with cluster() as made:
        # It follows processes by their parents (proctrack/linuxproc); those of centres have cgroups.
        yield Place(
            folder=folder,
            table='backend = "slurm"',
            variables=dict(made.variables),
            finds_strangers=False,
        )


@contextlib.contextmanager
def _gridengine(folder: Path) -> Iterator[Place]:
    from gridengine import gridengine, obstacle

    need(obstacle())
    with gridengine() as made:
        # It leaves alone what has made a session of its own; that of centres has cgroups.
        yield Place(
            folder=folder,
            table='backend = "gridengine"',
            variables=dict(made.variables),
            finds_strangers=False,
        )


@contextlib.contextmanager
def _pbs(folder: Path) -> Iterator[Place]:
    """Slurm by its wrappers with the words of PBS."""
    from pbs_words import obstacle, pbs_words

    need(obstacle())
    with pbs_words() as made:
        yield Place(
            folder=folder,
            table=f'backend = "pbs"\n{made.table}',
            variables=dict(made.variables),
            finds_strangers=False,
        )


@contextlib.contextmanager
def _spool(folder: Path) -> Iterator[Place]:
    """A batch system of another package, by its entry point."""
    with spool(folder / "installed") as variables:
        queue = folder / "spool"
        table = f'backend = "spool"\nfolder = "{queue}"\nslots = 4'
        yield Place(folder=folder, table=table, variables=variables)


@contextlib.contextmanager
def _ssh(folder: Path) -> Iterator[Place]:
    from sshd import obstacle, sshd

    need(obstacle())
    with sshd() as made:
        there = folder / "there"
        table = (
            f'backend = "ssh"\nhosts = ["here", "here-2"]\nconfig = "{made.config}"\n'
            f'folder = "{there}"\npython = "{sys.executable}"\noversubscribe = true\n'
        )
        yield Place(folder=folder, table=table, elsewhere=(there,))


def provider_table(cloud: Path, more: str = "") -> str:
    """Return the table of a provider that makes folders and processes: see `provider.sh`."""
    program = Path(__file__).with_name("provider.sh")
    call = f'"sh", "{program}", "{cloud}"'
    return f"""\
backend = "command"
create = [{call}, "create", "${{{{name}}}}"]
ready = [{call}, "ready", "${{{{id}}}}"]
run = [{call}, "run", "${{{{id}}}}", "${{{{command}}}}"]
delete = [{call}, "delete", "${{{{id}}}}"]
list = [{call}, "list"]
capture = {{ id = "$.id" }}
folder = "~/rankwise"
python = "{sys.executable}"
look_seconds = 2
{more}
"""


@contextlib.contextmanager
def _command(folder: Path) -> Iterator[Place]:
    cloud = folder / "cloud"
    cloud.mkdir()
    yield Place(folder=folder, table=provider_table(cloud, "instances = 2"), elsewhere=(cloud,))
    assert list(cloud.glob("i-*")) == [], "an instance was not given back"


@contextlib.contextmanager
def _pods(folder: Path) -> Iterator[Place]:
    """Kubernetes with a stand-in for its kubelet: pods are processes of this machine."""
    from tests.kubernetes.standing_in import obstacle, standing_in

    need(obstacle())
    with standing_in() as made:
        yield Place(folder=folder, table=made.table())
        assert made.left() == [], "something was not removed"


@contextlib.contextmanager
def _kubernetes(folder: Path) -> Iterator[Place]:
    """A real cluster: the one that KUBECONFIG names, with an image that it has."""
    if "KUBECONFIG" not in os.environ:
        pytest.skip("KUBECONFIG names no cluster")
    image = os.environ.get("RANKWISE_TEST_IMAGE", "python:3.12-slim")
    table = f'backend = "kubernetes"\nimage = "{image}"\n'
    yield Place(folder=folder, table=table, sees_processes=False, sees_files=False)


PLACES: dict[str, Callable[[Path], contextlib.AbstractContextManager[Place]]] = {
    "local": _local,
    "slurm": _slurm,
    "gridengine": _gridengine,
    "pbs": _pbs,
    "spool": _spool,
    "ssh": _ssh,
    "command": _command,
    "pods": _pods,
    "kubernetes": _kubernetes,
}
