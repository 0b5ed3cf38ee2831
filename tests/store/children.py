"""What other processes do to a store: `python -m tests.store.children WHAT FOLDER …`.

Each says `ready` when it is, and waits for a line before it goes on where that matters.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rankwise.errors import RankwiseError
from rankwise.store import schema
from rankwise.store.rows import State
from rankwise.store.store import FILE, Store
from tests.store.samples import live, new_run

ROOT = Path(__file__).parents[2]

NEXT_STEP = schema.Step(since="7.8.9", file=Path(__file__).with_name("next_version.sql"))

Child = subprocess.Popen[str]


# For tests


@contextmanager
def started(*commands: Sequence[object]) -> Iterator[list[Child]]:
    """Start children and wait until all are ready; none is left behind."""
    children: list[Child] = []
    try:
        for command in commands:
            arguments = [sys.executable, "-m", "tests.store.children", *map(str, command)]
            children.append(
                subprocess.Popen(
                    arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        yield children
    finally:
        for child in children:
            child.kill()
            child.communicate(timeout=60)


def go(children: Sequence[Child]) -> list[str]:
    """Let all go on at once, and give what they say when all have ended well."""
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    said = [child.communicate(timeout=120)[0] for child in children]
    assert [child.returncode for child in children] == [0] * len(children)
    return said


def run_child(*command: object) -> str:
    """Run one child, and give what it says."""
    with started(command) as children:
        return go(children)[0].strip()


# For children


def _wait() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def create_runs(folder: Path, name: str, count: str) -> None:
    """Make runs as fast as it goes, the store itself as well."""
    _wait()
    with Store.open(folder) as store:
        for _ in range(int(count)):
            print(new_run(store, "a", "b", name=name))


def end_runs(folder: Path, *runs: str) -> None:
    """Lead all tasks of runs through their lives, unless another process has done it."""
    _wait()
    with Store.open(folder) as store:
        for run in runs:
            store.run_started(run, now=time.time())
            for task in store.tasks_in(run, [State.QUEUED]):
                live(store, run, task.key)
            store.run_ended(run, State.PASSED, exit_code=0, now=time.time())


def take_in_twice(folder: Path, run: str) -> None:
    """Take in the end of every attempt that goes on, as every other process does."""
    from tests.store.samples import PASSED, PROCESSES

    _wait()
    with Store.open(folder) as store:
        news = 0
        for task in store.task_rows(run):
            news += store.attempt_ended(run, task.key, 1, PASSED, PROCESSES)
            news += store.task_over(run, task.key, State.PASSED, exit_code=0, now=13.0)
        print(news)


def follow(folder: Path, run: str) -> None:
    """Follow a run until it has ended."""
    with Store.open(folder, read_only=True) as store:
        _wait()
        last = 0
        while True:
            for event in store.events_after(run, last, limit=10):
                last = event.id
                print(event.kind, event.body.get("task", ""))
                if event.kind == "run_ended":
                    return
            assert sum(store.counts(run).values()) == len(list(store.task_rows(run)))
            time.sleep(0.001)


def write_for_ever(folder: Path) -> None:
    """Write pairs of runs, each pair at once, until this process is killed."""
    print("ready", flush=True)
    with Store.open(folder) as store:
        while True:
            with store.together():
                left = new_run(store, *"abcdef", name="left")
                right = new_run(store, *"abcdef", name="right")
            live(store, left, "a")
            with store.together():
                for run, task in ((left, "b"), (right, "b"), (right, "c")):
                    live(store, run, task)


def merge_for_ever(folder: Path, other: str) -> None:
    """Merge a store into another again and again, until this process is killed."""
    _wait()
    with Store.open(folder) as store:
        while True:
            store.merge(Path(other) / FILE)


def hold_the_lock(folder: Path) -> None:
    """Keep others from writing."""
    connection = sqlite3.connect(folder / FILE, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    _wait()
    connection.close()


def reach_the_size_limit(folder: Path, at: str) -> None:
    """Write until no file may grow any more, then go on without that limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    _wait()
    with Store.open(folder) as store:
        before = new_run(store, name="before")
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(at), hard))
        with suppress(RankwiseError):
            while True:
                kept = new_run(store, *map(str, range(20)))
        for _ in range(2):
            try:
                new_run(store, *map(str, range(1000)), name="big")
            except RankwiseError as error:
                print(type(error).__name__, error)
        assert store.run(before).state is State.QUEUED
        assert sum(store.counts(kept).values()) == 20
        assert store.runs(name="big") == []
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        print(new_run(store, *map(str, range(1000)), name="big"))


def open_without_rights(folder: Path, how: str) -> None:
    """Open a store as a user that is bound by the modes of its files, as root is not."""
    if os.getuid() == 0:
        _give_up_privileges()
    _wait()
    try:
        with Store.open(folder, read_only=how == "ro") as store:
            print([run.id for run in store.runs()])
    except RankwiseError as error:
        print(type(error).__name__, error)


def _give_up_privileges() -> None:
    """Keep the user, but none of the capabilities that put root above the modes of files."""
    libc = ctypes.CDLL(None, use_errno=True)
    third_version_of_myself = (ctypes.c_uint32 * 2)(0x20080522, 0)
    no_capabilities = (ctypes.c_uint32 * 6)()
    if libc.capset(third_version_of_myself, no_capabilities):
        raise OSError(ctypes.get_errno(), "capset")


def migrate(folder: Path) -> None:
    """Open a store with the rankwise of the future."""
    schema.STEPS += (NEXT_STEP,)
    _wait()
    with Store.open(folder) as store:
        print(new_run(store, name="new"))


_WHAT: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        create_runs,
        end_runs,
        take_in_twice,
        follow,
        write_for_ever,
        merge_for_ever,
        hold_the_lock,
        reach_the_size_limit,
        open_without_rights,
        migrate,
    )
}

if __name__ == "__main__":
    _WHAT[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
