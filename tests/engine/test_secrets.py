"""What a driver writes down and tells of tasks that have secrets, and who runs code of a store."""

from __future__ import annotations

import base64
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import pytest

from rankwise.backends.base import Submission
from rankwise.backends.local import LocalBackend
from rankwise.engine import runs
from rankwise.engine.drive import Drive
from rankwise.engine.runs import cancel, drive, look
from rankwise.errors import InputError
from rankwise.node.files import give_up
from rankwise.plan import Check, Measuring, Metric, Plan, Process, Task
from rankwise.runtimes.base import PreparedRuntime
from rankwise.store import State, Store
from rankwise.store import store as session
from rankwise.store.rows import Event
from rankwise.store.store import BeingDriven, driver_of, driving
from tests.engine.driven import FakeCompute, end, task

VALUE = 'hunter"2\\é-of-the-test'


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / ".rankwise") as one:
        yield one


def driven(
    store: Store,
    one: Task,
    left: Mapping[str, str],
    *,
    secrets: Mapping[str, str],
) -> list[Event]:
    """Drive a task whose attempt leaves these files."""

    def leave(job: Submission) -> tuple[str, int]:
        for name, text in left.items():
            (job.attempt.folder / name).write_text(text)
        (job.attempt.folder / "order.json").write_text(
            json.dumps({"nodes": [{"folder": str(job.attempt.folder)}]})
        )
        return "passed", 0

    run = store.create_run(Plan(name="p", kind="k", tasks=(one,)), "", now=0.0)
    events: list[Event] = []
    compute = FakeCompute(leave)
    drive = Drive(
        store,
        run,
        list(store.task_rows(run, bodies=True)),
        {"local": compute},
        compute.updates,
        prepare=lambda choice: PreparedRuntime(),
        observer=events.append,
        secrets=secrets,
    )
    drive.go()
    return events


def everything(store: Store, events: list[Event]) -> str:
    """Return all that the store has and all that was told, with whatever JSON has escaped."""
    kept = "".join(store._database._connection.iterdump())
    return kept + json.dumps(kept) + "".join(repr(one) + one.reason for one in events)


def checked(*checks: Check) -> Task:
    return dataclasses.replace(task("a"), secrets=("TOKEN",), checks=checks)


SPELLINGS: list[Callable[[str], str]] = [
    str,
    json.dumps,
    repr,
    lambda value: quote(value, safe=""),
    lambda value: base64.b64encode(f"user:{value}".encode()).decode(),
]


@pytest.mark.parametrize("spell", SPELLINGS)
def test_what_tests_say_is_stored_without_the_values_of_secrets(
    store: Store, spell: Callable[[str], str]
) -> None:
    from xml.sax.saxutils import escape, quoteattr

    said = spell(VALUE)
    # The message is cut to its last 4000 characters: the cut goes through the first value.
    text = f"it is {said}{'.' * (4000 - len(said) // 2 - len(said) - 7)} and {said}"
    xml = (
        f"<testsuite><testcase name={quoteattr(f'one[{said}]')}><failure>{escape(text)}</failure>"
        f"</testcase><testcase name='two'><skipped message={quoteattr(said)}/></testcase></testsuite>"
    )
    one = dataclasses.replace(task("a"), secrets=("TOKEN",), results="results.xml")
    events = driven(store, one, {"results.xml": xml}, secrets={"TOKEN": VALUE})
    first, second = store.results("p-1")["a"]
    assert first.name.startswith("one[")
    assert "***" in first.name
    assert "***" in first.message
    assert "***" in second.message
    kept = everything(store, events)
    for half in (said[2:], said[len(said) // 2 + 2 : -4]):
        assert half not in kept


@pytest.mark.parametrize(
    "check",
    [
        Check(kind="contains", what="nothing like it", on="out.txt"),
        Check(kind="absent", what="it is", on="out.txt"),
        Check(kind="json", what="$.token", compare="equals", value=1, on="out.json"),
        Check(kind="json", what="$.other", on="out.json"),
        Check(kind="json", what="$.token", on="out.txt"),
    ],
)
def test_what_checks_quote_is_stored_without_the_values_of_secrets(
    store: Store, check: Check
) -> None:
    # Quotes are cut: after 200 characters of a line, and 80 of a value.
    line = f"{'x' * 190} it is {VALUE}\nit is {VALUE}"
    left = {
        "out.txt": line,
        "out.json": json.dumps({"token": f"{'x' * 65}{VALUE}", VALUE: 1}),
    }
    events = driven(store, checked(check), left, secrets={"TOKEN": VALUE})
    assert str(store.task_row("p-1", "a").state) == "failed"
    kept = everything(store, events)
    assert "***" in kept or "xxx" in kept
    assert "hunter" not in kept
    assert "of-the-test" not in kept


def test_what_functions_say_is_stored_without_the_values_of_secrets(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(
        f"def f(folder):\n    print('printed', {VALUE!r})\n    raise ValueError({VALUE!r})\n"
    )
    check = Check(kind="python", what=f"{tmp_path}/own.py:f", seconds=60.0)
    events = driven(store, checked(check), {}, secrets={"TOKEN": VALUE})
    assert "ValueError: ***" in store.task_row("p-1", "a").reason
    assert "hunter" not in everything(store, events)


def test_what_is_measured_is_named_without_the_values_of_secrets(store: Store) -> None:
    measuring = Measuring(metrics=(Metric(parser="json-lines", on="m.json", axes=("at",)),))
    one = dataclasses.replace(task("a"), secrets=("TOKEN",), measuring=measuring)
    line = {"metric": f"m {VALUE}", "value": 1, "unit": "s", "at": VALUE}
    driven(store, one, {"m.json": json.dumps(line)}, secrets={"TOKEN": VALUE})
    (series,) = store.series()
    assert (series.metric, series.point) == ("m ***", {"at": "***"})


def test_a_short_value_is_replaced_in_what_is_said_and_not_in_names(store: Store) -> None:
    xml = "<testsuite><testcase name='test_ab'><failure>ab</failure></testcase></testsuite>"
    one = dataclasses.replace(task("a"), secrets=("TOKEN",), results="results.xml")
    driven(store, one, {"results.xml": xml}, secrets={"TOKEN": "ab"})
    (row,) = store.results("p-1")["a"]
    assert (row.name, row.message) == ("test_ab", "***")


# Who runs code


def left_behind(store: Store, tmp_path: Path, one: Task) -> str:
    """Make a run whose attempt has ended while nothing drove it."""
    run = store.create_run(Plan(name="p", kind="k", tasks=(one,)), "", now=0.0)
    folder = store.run_folder(run) / "a" / "1"
    folder.mkdir(parents=True)
    store.run_started(run, now=1.0)
    store.begin_attempt(run, "a", marker="rw-1", folder=folder, now=1.0)
    store.attempt_heard(run, "a", 1, job_id="0", now=1.0)
    store.attempt_heard(run, "a", 1, has_started=True, now=1.0)
    give_up(folder)
    (folder / "order.json").write_text(json.dumps({"nodes": [{"folder": str(folder)}]}))
    (folder / "out.txt").write_text(f"it is {VALUE}\n")
    end(folder, "passed", 0)
    return run


def own_code(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef f(output=''):\n    return True\n"
    )
    return f"{tmp_path}/own.py:f"


@pytest.mark.parametrize("kind", ["check", "metric"])
def test_looking_at_a_run_calls_no_functions_of_its_store(
    store: Store, tmp_path: Path, kind: str
) -> None:
    code = own_code(tmp_path)
    one = task("a")
    if kind == "check":
        one = dataclasses.replace(one, checks=(Check(kind="python", what=code, seconds=60.0),))
    else:
        metric = Metric(parser="python", function=code, on="out.txt")
        one = dataclasses.replace(one, measuring=Measuring(metrics=(metric,)))
    run = left_behind(store, tmp_path, one)
    look(store, run)
    assert not (tmp_path / "ran").exists()
    # It is not judged, so it has neither passed nor failed.
    assert not store.task_row(run, "a").state.is_over
    assert not store.run(run).state.is_over


@pytest.mark.parametrize("way", [look, cancel])
def test_only_the_driver_of_a_run_starts_what_its_attempts_have_submitted(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[[Store, str], None]
) -> None:
    started: list[object] = []
    monkeypatch.setattr(runs, "_start", lambda *given: started.append(given))
    run = left_behind(store, tmp_path, task("a"))
    folder = store.run_folder(run) / "a" / "1" / "submitted"
    folder.mkdir()
    said = {"store": str(store.folder), "run": run, "environment": {"PATH": str(tmp_path)}}
    (folder / "1").write_text(json.dumps(said))
    way(store, run)
    assert not started
    if way is look:
        assert not store.task_row(run, "a").state.is_over, "it would be lost"
        drive(store, run, observer=lambda _event: None)
        assert len(started) == 1


def test_looking_at_a_run_does_not_drive_what_its_stages_have_left(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(
        "rankwise.engine.drive.start_children", lambda *given: started.append(given)
    )
    run = left_behind(store, tmp_path, dataclasses.replace(task("a"), submits=True))
    look(store, run)
    assert not started
    drive(store, run, observer=lambda _event: None)
    assert started


def test_cancelling_a_run_calls_no_functions_of_its_store(store: Store, tmp_path: Path) -> None:
    check = Check(kind="python", what=own_code(tmp_path), seconds=60.0)
    run = left_behind(store, tmp_path, dataclasses.replace(task("a"), checks=(check,)))
    cancel(store, run)
    assert not (tmp_path / "ran").exists()
    assert str(store.run(run).state) == "cancelled"


def test_nothing_is_quoted_where_a_value_is_not_known(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    check = Check(kind="absent", what="it is", on="out.txt")
    run = left_behind(store, tmp_path, checked(check))
    look(store, run)
    row = store.task_row(run, "a")
    assert str(row.state) == "failed"
    assert "the value of the secret TOKEN is not known here" in row.reason
    assert "hunter" not in everything(store, [])


# Processes that look at a run which no process drives, beside those that drive it


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
