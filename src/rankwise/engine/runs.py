"""Runs as people deal with them: start one, drive it, look at it, end it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING

from rankwise.backends.base import Updates, open_computes
from rankwise.documents.site import Site, site_of
from rankwise.documents.site_models import ELSEWHERE
from rankwise.engine.verdict import Functions, RunEnd
from rankwise.errors import ComputeFailure, InputError
from rankwise.files import read_left
from rankwise.launch.mpi import without_job
from rankwise.node.files import write_file
from rankwise.plan import Task
from rankwise.records import MARKER, ClaimState, claim_of
from rankwise.runtimes.preparing import prepare
from rankwise.store import RunRow, State, Store, TaskRow
from rankwise.store.rows import Event, Observer
from rankwise.store.store import BeingDriven, driver_of, driving, looking

if TYPE_CHECKING:
    from rankwise.engine.drive import Drive


def check_secrets(tasks: Iterable[Task]) -> None:
    """Raise InputError unless every secret of the tasks that run has a value."""
    names = {name for task in tasks if not task.skip for name in task.secrets}
    missing = sorted(names - os.environ.keys())
    if missing:
        raise InputError(
            f"no value for the secret{'s' * (len(missing) > 1)} {', '.join(missing)}: "
            f"set it in the environment of this command, as in  export {missing[0]}=..."
        )


def drive(store: Store, run: str, *, observer: Observer, functions: Functions = "call") -> RunEnd:
    """Drive a run until it is over; Ctrl-C and SIGTERM end it in good order.

    InputError: a secret of what is still to be done has no value.
    """
    with driving(store.run_folder(run), run):
        # Read under the lock, so that no other driver changes it meanwhile.
        row, tasks = store.run(run), list(store.task_rows(run, bodies=True))
        if row.wanted != "cancel":
            check_secrets(one.body for one in tasks if one.body and one.state is State.QUEUED)
        site = site_of(row.source)
        one = _open(store, row, tasks, site, observer=observer, functions=functions)
        # There may be very many: none is kept here while the run is driven.
        del tasks
        with _ended_by_signals(one, run, observer):
            return one.go()


def look(store: Store, run: str) -> None:
    """Store what has ended meanwhile, if no process drives the run.

    Only from records that are here. What other machines have is fetched, and removed there, by
    the driver of the run alone: a look asks them nothing, and leaves such a run as it is.
    """
    folder, row = store.run_folder(run), store.run(run)
    if row.state.is_over or driver_of(folder) is not None:
        return
    busy = store.tasks_in(run, (State.SUBMITTING, State.RUNNING))
    attempts = (store.attempts(run, one.key)[-1] for one in busy)
    if any(claim_of(attempt.folder) is not ClaimState.HELD for attempt in attempts):
        with contextlib.suppress(BeingDriven), looking(folder, run):
            tasks, site = list(store.task_rows(run, bodies=True)), site_of(row.source)
            computes = [site.compute(name) for name in _computes_of(tasks)]
            if all(compute.backend not in ELSEWHERE for compute in computes):
                _open(store, row, tasks, site, observer=_unobserved, functions="leave").look()


def cancel(store: Store, run: str) -> None:
    """End a run, whichever process drives it."""
    # First the wish: a driver that starts in this moment finds it.
    store.want_cancel(run, now=time.time())
    if driver_of(store.run_folder(run)) is None:
        with contextlib.suppress(BeingDriven):
            drive(store, run, observer=_unobserved, functions="refuse")


def _computes_of(rows: Iterable[TaskRow]) -> set[str]:
    # What does not run needs nowhere to run: its compute may not even be there.
    return {row.body.compute for row in rows if row.body and not row.body.skip}


def _open(
    store: Store,
    row: RunRow,
    tasks: Sequence[TaskRow],
    site: Site,
    *,
    observer: Observer,
    functions: Functions,
) -> Drive:
    # The driver itself starts runs that its tasks have left behind.
    from rankwise.engine.drive import Drive

    def say(text: str) -> None:
        observer(Event(kind="notice", run=row.id, time=time.time(), reason=text))

    hidden = {name for one in tasks if one.body and not one.body.skip for name in one.body.secrets}
    updates: Updates = SimpleQueue()
    computes = open_computes(
        _computes_of(tasks), site, updates, secrets=hidden, store=store.folder, run=row.id
    )
    return Drive(
        store,
        row.id,
        tasks,
        computes,
        updates,
        prepare=partial(prepare, say=say),
        observer=observer,
        secrets=os.environ,
        functions=functions,
    )


@contextlib.contextmanager
def _ended_by_signals(one: Drive, run: str, observer: Observer) -> Iterator[None]:
    """Have the first Ctrl-C or SIGTERM end the run in good order; a second one ends us."""

    def end(number: int, frame: FrameType | None) -> None:
        one.is_cancel_wanted = True
        observer(Event(kind="stopping", run=run, time=time.time()))
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        # Our caller may be a program with handlers of its own.
        for number, handler in before.items():
            signal.signal(number, handler)


def _unobserved(event: Event) -> None:
    del event


# Runs in the background: a process of its own drives each of them.

_LOG = "engine.log"
_LEFT = "submitted"
"""The folder in that of an attempt in which it leaves what it has submitted."""
# What holds for an attempt and the node that it is on, and for nothing else.
_OF_ATTEMPTS = ("RANKWISE_", "SLURM", "SRUN_", "CUDA_VISIBLE_DEVICES", "HOSTNAME", "TMPDIR")
_KEPT = ("SLURM_CONF",)


def start_children(store: Store, run: str) -> None:
    """Have those runs driven that stages of a run have left behind."""
    for child in store.children(run):
        if not child.state.is_over and driver_of(store.run_folder(child.id)) is None:
            start_in_background(store, child.id)


def start_in_background(store: Store, run: str) -> None:
    """Have a process drive the run that nothing here can end.

    In an attempt, what is started ends with it: the client that drives the attempt starts it.
    """
    folder = os.environ.get("RANKWISE_FOLDER", "")
    if os.environ.get(MARKER) and folder:
        _leave(Path(folder) / _LEFT, store, run)
    else:
        _start(store.folder, store.run_folder(run), run, os.environ)


def submitted(folder: Path) -> list[Path]:
    """Return what an attempt has submitted and has yet to be started."""
    try:
        return sorted((folder / _LEFT).iterdir())
    except OSError:
        return []


def start_submitted(folder: Path) -> list[str]:
    """Start what an attempt has submitted since the last time; tells what could not be."""
    return [said for place in submitted(folder) if (said := _start_left(place))]


def _leave(folder: Path, store: Store, run: str) -> None:
    """Write down what is to be started, with the variables that it would have had here."""
    secret = os.environ.get("RANKWISE_SECRETS", "").split(",")
    variables = {
        name: value
        for name, value in without_job(os.environ).items()
        if name in _KEPT or not (name in secret or name.startswith(_OF_ATTEMPTS))
    }
    said = {"store": str(store.folder.absolute()), "run": run, "environment": variables}
    name = secrets.token_hex(8)
    try:
        folder.mkdir(exist_ok=True)
        write_file(folder / name, json.dumps(said), 0o600)
    except OSError as error:
        raise ComputeFailure(
            f"{run} cannot be left to the client of this stage, in {folder}: {error.strerror}; "
            f"start it elsewhere:  rankwise resume {run}"
        ) from error


def _start_left(place: Path) -> str:
    if place.name.startswith("."):
        return ""  # It is being written.
    try:
        said = json.loads(read_left(place))
        store, run, variables = Path(said["store"]), str(said["run"]), dict(said["environment"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = f"{place} does not say what was submitted: {error!r}"
    else:
        why = ""
        if store.is_dir():
            _start(store, store / "runs" / run, run, {**os.environ, **variables})
        else:
            why = f"{run} was submitted to {store}, which is not on this machine: it is not driven"
    # Also what cannot be read: it would be reported every two seconds.
    with contextlib.suppress(OSError):
        place.unlink()
    return why


def _start(store: Path, folder: Path, run: str, environment: Mapping[str, str]) -> None:
    # Without -P, a file of the user's could take the place of a module of ours.
    line = [sys.executable, "-P", "-m", "rankwise.cli.main"]
    line += ["resume", run, "--quiet", "--store", str(store)]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOG).open("ab") as log:
        subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(environment),
            start_new_session=True,
        )
