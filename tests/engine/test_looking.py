"""Processes that look at a run which no process drives, beside those that drive it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankwise.backends.local import LocalBackend
from rankwise.engine import runs
from rankwise.engine.drive import Drive
from rankwise.errors import InputError
from rankwise.node.files import give_up
from rankwise.plan import Plan, Process, Task
from rankwise.store import State, Store
from rankwise.store import store as session
from rankwise.store.rows import Event
from rankwise.store.store import BeingDriven, driver_of, driving


@pytest.fixture
def left(tmp_path: Path) -> Iterator[tuple[Store, str]]:
    """A run whose driver was killed: one task was taken by a runner that is gone, one waits."""
    with Store.open(tmp_path / ".rankwise") as store:
        tasks = tuple(_task(tmp_path, name) for name in ("a", "b"))
        run = store.create_run(Plan(name="p", kind="k", tasks=tasks), "", now=0.0)
        folder = store.run_folder(run) / "a" / "1"
        store.begin_attempt(run, "a", marker="m1", folder=folder, now=1.0)
        folder.mkdir(parents=True)
        give_up(folder)
        yield store, run


def _task(folder: Path, key: str) -> Task:
    process = Process(name="worker-0", role="worker", command="true")
    return Task(key=key, processes=(process,), folder=str(folder))


def _resume(store: Store, run: str) -> None:
    def unobserved(event: Event) -> None:
        del event

    runs.drive(store, run, observer=unobserved)


@pytest.mark.parametrize("act", [runs.cancel, _resume], ids=["cancel", "resume"])
def test_a_driver_waits_for_a_process_that_only_looks(
    left: tuple[Store, str],
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Store, str], None],
) -> None:
    store, run = left
    looks, lets_go = threading.Event(), threading.Event()
    look, sleep = Drive.look, time.sleep

    def slow_look(self: Drive) -> bool:
        looks.set()
        assert lets_go.wait(60)
        return look(self)

    def waited(seconds: float) -> None:
        lets_go.set()
        sleep(seconds)

    def look_on() -> None:
        with Store.open(store.folder) as own:
            runs.look(own, run)

    monkeypatch.setattr(Drive, "look", slow_look)
    looker = threading.Thread(target=look_on, daemon=True)
    looker.start()
    assert looks.wait(60)
    # The look goes on only once the driver waits for it.
    monkeypatch.setattr(time, "sleep", waited)
    try:
        assert driver_of(store.run_folder(run)) is None, "a process that looks drives nothing"
        act(store, run)
    finally:
        lets_go.set()
        looker.join(60)
    assert store.run(run).state.is_over
    assert store.task_row(run, "a").state is State.LOST


def test_a_second_driver_is_refused(left: tuple[Store, str]) -> None:
    store, run = left
    folder = store.run_folder(run)
    with driving(folder, run), pytest.raises(BeingDriven), driving(folder, run):
        pytest.fail("two processes drive it")


def test_a_process_that_looks_for_ever_is_named(
    left: tuple[Store, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, run = left
    folder = store.run_folder(run)
    monkeypatch.setattr(session, "_LOOKERS_SECONDS", -1.0)
    with (
        session.looking(folder, run),
        pytest.raises(InputError, match=r"process \d+ has been looking at it"),
        driving(folder, run),
    ):
        pytest.fail("it is driven while a process looks at it")


def test_a_look_closes_what_it_has_opened(
    left: tuple[Store, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, run = left
    closed: list[LocalBackend] = []

    def close(self: LocalBackend) -> None:
        closed.append(self)

    monkeypatch.setattr(LocalBackend, "close", close)
    runs.look(store, run)
    assert store.task_row(run, "a").state is State.LOST
    assert not store.run(run).state.is_over, "a task still waits"
    assert len(closed) == 1
