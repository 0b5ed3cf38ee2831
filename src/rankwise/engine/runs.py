"""Runs as people deal with them: start one, drive it, look at it, end it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

from rankwise.compute.opening import open_computes
from rankwise.engine.drive import Drive, RunEnd
from rankwise.engine.events import Event, Observer
from rankwise.engine.session import BeingDriven, driver_of, driving
from rankwise.errors import InputError
from rankwise.plan import Plan
from rankwise.records import Claim, claim_of
from rankwise.runtime import prepare
from rankwise.site import find_site
from rankwise.store import State, Store


def check_secrets(plan: Plan) -> None:
    """Make sure that every secret has a value, before anything is started."""
    _check_secrets(name for task in plan.tasks if not task.skip for name in task.secrets)


def _check_secrets(names: Iterable[str]) -> None:
    missing = sorted(set(names) - os.environ.keys())
    if missing:
        raise InputError(
            f"no value for the secret{'s' * (len(missing) > 1)} {', '.join(missing)}: "
            f"set it in the environment of this command, as in  export {missing[0]}=..."
        )


def drive(store: Store, run: str, *, observer: Observer) -> RunEnd:
    """Go on with a run until it is over; Ctrl-C and SIGTERM end it in good order.

    InputError: a secret of what is still to be done has no value.
    """
    if store.wanted(run) != "cancel":
        rows = store.tasks_in(run, (State.QUEUED,), bodies=True)
        waiting = [row.body for row in rows if row.body and not row.body.skip]
        _check_secrets(name for task in waiting for name in task.secrets)
    with driving(store.run_folder(run), run):
        one = _drive(store, run, observer)
        with _ended_by_signals(one):
            return one.go()


def look(store: Store, run: str) -> None:
    """Take in what has ended since, if nobody drives the run."""
    folder = store.run_folder(run)
    if store.run(run).state.is_over or driver_of(folder) is not None:
        return
    busy = store.tasks_in(run, (State.SUBMITTING, State.RUNNING))
    attempts = (store.attempts(run, row.key)[-1] for row in busy)
    if any(claim_of(attempt.folder) is not Claim.HELD for attempt in attempts):
        with contextlib.suppress(BeingDriven), driving(folder, run):
            _drive(store, run, _unobserved).look()


def cancel(store: Store, run: str) -> None:
    """End a run, whoever drives it."""
    store.want_cancel(run, now=time.time())
    if driver_of(store.run_folder(run)) is None:
        with contextlib.suppress(BeingDriven):
            drive(store, run, observer=_unobserved)


def _drive(store: Store, run: str, observer: Observer) -> Drive:
    source = store.run(run).source
    site = find_site(Path(source).parent if source else Path.cwd())
    rows = store.task_rows(run, bodies=True)
    # What does not run needs nowhere to run: its compute may not even be there.
    tasks = [row.body for row in rows if row.body and not row.body.skip]
    names = {task.compute for task in tasks}
    secrets = {name for task in tasks for name in task.secrets}

    def say(text: str) -> None:
        observer(Event(kind="notice", run=run, time=time.time(), reason=text))

    return Drive(
        store,
        run,
        open_computes(names, site, secrets=secrets, store=store.folder, run=run),
        prepare=lambda choice: prepare(choice, say),
        observer=observer,
        secrets=os.environ,
    )


@contextlib.contextmanager
def _ended_by_signals(one: Drive) -> Iterator[None]:
    """Have the first Ctrl-C or SIGTERM end the run in good order; a second one ends us."""

    def end(number: int, frame: FrameType | None) -> None:
        one.is_cancel_wanted = True
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _unobserved(event: Event) -> None:
    del event
