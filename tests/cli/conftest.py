"""A project's folder with a store, and an engine that does what tests tell it."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rankwise.cli.main import main
from rankwise.plan import Plan, Task
from rankwise.store import State, Store
from rankwise.store.rows import Event, Observer
from tests.reports.made_runs import one_task


@dataclass(slots=True, kw_only=True)
class Said:
    """What a command has said, and its exit code."""

    code: int
    out: str
    err: str


@dataclass(slots=True)
class FakeEngine:
    """Stands for `rankwise.engine.runs`."""

    act: Callable[[Store, str], int] = lambda store, run: 0
    """Does what an engine would do with a run, and gives the exit code."""
    calls: list[str] = field(default_factory=list)

    def check_secrets(self, tasks: Sequence[Task]) -> None:
        self.calls.append(f"secrets of {', '.join(task.key for task in tasks)}")

    def drive(self, store: Store, run: str, *, observer: Observer) -> types.SimpleNamespace:
        self.calls.append(f"drive {run}")
        observer(Event(kind="run started", run=run, time=1.0))
        code = self.act(store, run)
        state = store.run(run).state
        observer(Event(kind="run over", run=run, time=2.0, state=state, exit_code=code))
        return types.SimpleNamespace(state=state, exit_code=code, counts=store.counts(run))

    def look(self, store: Store, run: str) -> None:
        del store
        self.calls.append(f"look {run}")

    def cancel(self, store: Store, run: str) -> None:
        self.calls.append(f"cancel {run}")
        self.act(store, run)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    for name in ("check_secrets", "drive", "look", "cancel"):
        monkeypatch.setattr(f"rankwise.engine.runs.{name}", getattr(fake, name))
    return fake


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Have every document lead to this plan."""
    plan = Plan(
        name="job",
        kind="PytorchJob",
        tasks=(one_task(),),
        source="job.yaml",
        notices=("gpu-cluster is not known here",),
    )

    def plan_from(paths: object, **options: object) -> tuple[Plan, str]:
        del paths, options
        return plan, "type: PytorchJob\n"

    monkeypatch.setattr("rankwise.planning.plan_from", plan_from)
    return plan


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKWISE_STORE", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    return tmp_path


@pytest.fixture
def store(project: Path) -> Iterator[Store]:
    with Store.open(project / ".rankwise") as opened:
        yield opened


@pytest.fixture
def rankwise(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def run(*arguments: str) -> Said:
        capsys.readouterr()
        code = main(list(arguments))
        said = capsys.readouterr()
        return Said(code=code, out=said.out, err=said.err)

    return run


def over(state: State = State.PASSED, exit_code: int = 0) -> Callable[[Store, str], int]:
    """Return an engine's act that ends everything in one state."""

    def act(store: Store, run: str) -> int:
        store.run_started(run, now=1.0)
        for row in store.task_rows(run):
            store.task_over(run, row.key, state, exit_code=exit_code, now=2.0)
        store.run_ended(run, state, exit_code=exit_code, now=3.0)
        return exit_code

    return act
