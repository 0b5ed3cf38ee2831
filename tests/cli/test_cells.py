"""Before many cells are started, somebody is asked."""

from __future__ import annotations

import io

import pytest

from rankwise.cli.run import check_count
from rankwise.errors import InputError
from rankwise.plan import Plan, Process, Task


class Person(io.StringIO):
    """Somebody at a terminal, who types this."""

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
    """Have somebody answer, and give what they see; in the test itself, as pytest changes both."""
    screen = Person()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("sys.stdin", Person(answer))
    return screen


def test_few_cells_or_those_that_do_not_run_need_no_question() -> None:
    check_count(plan(2), limit=2, is_agreed=False)
    check_count(plan(9, skip="no"), limit=2, is_agreed=False)
    check_count(plan(9), limit=2, is_agreed=True)


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_who_agrees_goes_on(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    terminal = at_a_terminal(monkeypatch, answer)
    check_count(plan(3), limit=2, is_agreed=False)
    assert terminal.getvalue() == "m starts 3 cells with 6 tasks.\nGo on? [y/N] "


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "what?\n"])
def test_everything_else_starts_nothing(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    terminal = at_a_terminal(monkeypatch, answer)
    with pytest.raises(InputError, match="m: nothing was started"):
        check_count(plan(3), limit=2, is_agreed=False)
    assert "3 cells" in terminal.getvalue()


def test_where_nobody_can_be_asked_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(InputError, match=r"3 cells are more than 2.*--yes.*--limit 3.*--only"):
        check_count(plan(3), limit=2, is_agreed=False)
