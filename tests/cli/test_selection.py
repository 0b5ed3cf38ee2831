"""From options of the command line to the tasks that are wanted."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest

from rankwise.cli.run import check_count
from rankwise.errors import InputError
from rankwise.plan import REPEATED, Plan, Process, Task
from rankwise.planning.selection import Selection, selection
from rankwise.store import Outcome, State, Store

SUITE = Path("suite.yaml")


def task(key: str) -> Task:
    return Task(key=key, processes=(Process(name="worker-0", role="worker", command="true"),))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / ".rankwise"


def keep(folder: Path, seconds: float = 2.0, **states: State) -> None:
    """Keep a run of the suite whose tasks have ended so."""
    tries = {key: task(key) for key in states}
    if "a" in tries:
        tries["a"] = dataclasses.replace(tries["a"], tags={REPEATED: "really-a"})
    plan = Plan(name="s", kind="Suite", tasks=tuple(tries.values()), source=str(SUITE.absolute()))
    with Store.open(folder) as store:
        run = store.create_run(plan, "", now=0.0)
        store.run_started(run, now=1.0)
        for key, state in states.items():
            number = store.begin_attempt(run, key, marker=f"{run}{key}", folder=folder, now=1.0)
            store.attempt_heard(run, key, number, has_started=True, now=1.0)
            ended = Outcome(state=state, ended=1.0 + seconds)
            store.attempt_ended(run, key, number, ended)
            store.task_over(run, key, state, now=1.0 + seconds)


def test_nothing_said_is_nothing_asked(folder: Path) -> None:
    assert selection([SUITE], folder) == Selection()
    assert not folder.exists()


def test_what_was_not_green_in_the_newest_run_is_wanted_again(folder: Path) -> None:
    keep(folder, old=State.FAILED)
    keep(folder, a=State.FAILED, b=State.PASSED, c=State.NOT_RUN, d=State.SKIPPED)
    wanted = selection([SUITE], folder, failed=True)
    assert wanted.failed == {"really-a", "c"}


def test_what_was_all_green_need_not_run_again(folder: Path) -> None:
    keep(folder, b=State.PASSED)
    with pytest.raises(InputError, match="everything passed in the last run"):
        selection([SUITE], folder, failed=True)


def test_what_never_ran_cannot_have_failed(folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(InputError, match=r"no earlier run of .*suite\.yaml"):
            selection([SUITE], folder, failed=True)
        # Neither without a store nor with an empty one.
        Store.open(folder).close()


def test_shares_know_how_long_tests_took_that_passed(folder: Path) -> None:
    keep(folder, 2.0, b=State.PASSED, c=State.FAILED)
    keep(folder, 4.0, b=State.PASSED)
    wanted = selection([SUITE], folder, shard="2/5")
    assert (wanted.shard, wanted.seconds) == ((2, 5), {"b": 3.0})
    other = selection([Path("other.yaml")], folder, shard="2/5")
    assert other.seconds == {}


@pytest.mark.parametrize("text", ["4/3", "0/3", "2", "2/", "a/b", "-1/2", "1/0", "2/5/7"])
def test_what_is_no_share_is_refused(folder: Path, text: str) -> None:
    with pytest.raises(InputError, match="must be such as 2/5, the second of five"):
        selection([SUITE], folder, shard=text)


# Before many cells are started, the user is asked


class Person(io.StringIO):
    """A terminal at which this is typed."""

    def isatty(self) -> bool:
        return True


def plan(count: int, *, skip: str = "") -> Plan:
    process = Process(name="worker-0", role="worker", command="true")
    tasks = [
        Task(
            key=f"a@{number}@{part}",
            processes=(process,),
            skip=skip,
            tags={"runtime": "a", "machine": str(number), "test": part, "part": part},
        )
        for number in range(count)
        for part in ("environment", "test")
    ]
    return Plan(name="m", kind="Matrix", tasks=tuple(tasks))


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, answer: str) -> Person:
    """Have an answer typed, and return the screen; in the test itself, as pytest changes both."""
    screen = Person()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("sys.stdin", Person(answer))
    return screen


def test_few_cells_or_those_that_do_not_run_need_no_question() -> None:
    check_count(plan(2), limit=2, is_agreed=False)
    check_count(plan(9, skip="no"), limit=2, is_agreed=False)
    check_count(plan(9), limit=2, is_agreed=True)


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_an_agreed_matrix_starts(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    terminal = at_a_terminal(monkeypatch, answer)
    check_count(plan(3), limit=2, is_agreed=False)
    assert terminal.getvalue() == "m starts 3 cells with 6 tasks.\nGo on? [y/N] "


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "what?\n"])
def test_everything_else_starts_nothing(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    terminal = at_a_terminal(monkeypatch, answer)
    with pytest.raises(InputError, match="m: nothing was started"):
        check_count(plan(3), limit=2, is_agreed=False)
    assert "3 cells" in terminal.getvalue()


def test_without_a_terminal_the_error_names_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(InputError, match=r"3 cells are more than 2.*--yes.*--limit 3.*--only"):
        check_count(plan(3), limit=2, is_agreed=False)
