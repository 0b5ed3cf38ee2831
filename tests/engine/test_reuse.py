"""Tasks that need not run again, and all that makes them run."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rankwise.backends.base import Submission
from rankwise.engine.reuse import check_taken
from rankwise.errors import InputError
from rankwise.plan import Plan, Reuse, Task
from rankwise.records import IDENTITY, OUTPUTS, write_exports
from rankwise.store import State, Store
from tests.engine.driven import FakeCompute, drive, task


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "workspace"
    place.mkdir()
    (place / "main.c").write_text("int main;")
    return place


def build(workspace: Path, *needs: str, key: str = "build", **more: object) -> Task:
    given = {"definition": "make", "inputs": ("*.c",), "outputs": ("*.o",), **more}
    reuse = Reuse(folder=str(workspace), **given)  # type: ignore[arg-type]
    return dataclasses.replace(task(key, *needs), reuse=reuse)


def makes(workspace: Path, *names: str) -> Callable[[Submission], tuple[str, int]]:
    def ends(job: Submission) -> tuple[str, int]:
        for name in names if job.task.key == "build" else ():
            (workspace / name).write_text("made")
        return "passed", 0

    return ends


def ran(
    store: Store, workspace: Path, *tasks: Task, made: tuple[str, ...] = ("main.o",)
) -> list[str]:
    """Drive a run of these tasks, and say which of them have run."""
    compute = FakeCompute(makes(workspace, *made))
    run = store.create_run(Plan(name="p", kind="k", tasks=tasks, source="p.yaml"), "", now=0.0)
    result, _ = drive(store, compute, run=run)
    assert (result.state, result.exit_code) == (State.PASSED, 0)
    return compute.submitted


def test_what_has_not_changed_is_not_run_again(store: Store, workspace: Path) -> None:
    assert ran(store, workspace, build(workspace)) == ["build"]
    assert ran(store, workspace, build(workspace)) == []
    assert store.task_row("p-2", "build").reason == "unchanged since p-1"
    assert ran(store, workspace, build(workspace)) == []


def gone(workspace: Path, store: Store) -> None:
    (workspace / "main.o").unlink()


def another(workspace: Path, store: Store) -> None:
    (workspace / "main.o").write_text("another")


def more(workspace: Path, store: Store) -> None:
    (workspace / "more.o").write_text("more")


def source_changed(workspace: Path, store: Store) -> None:
    (workspace / "main.c").write_text("int other;")


def folder_gone(workspace: Path, store: Store) -> None:
    shutil.rmtree(store.run_folder("p-1"))


@pytest.mark.parametrize("change", [gone, another, more, source_changed, folder_gone])
def test_what_has_changed_is_made_again(
    store: Store, workspace: Path, change: Callable[[Path, Store], None]
) -> None:
    ran(store, workspace, build(workspace))
    change(workspace, store)
    assert ran(store, workspace, build(workspace)) == ["build"]


def test_what_never_makes_its_outputs_is_always_run(store: Store, workspace: Path) -> None:
    one = build(workspace)
    assert ran(store, workspace, one, made=()) == ["build"]
    assert ran(store, workspace, one, made=()) == ["build"]


def test_another_definition_or_the_wish_to_run_is_enough(store: Store, workspace: Path) -> None:
    ran(store, workspace, build(workspace))
    assert ran(store, workspace, build(workspace, is_wanted=False)) == ["build"]
    assert ran(store, workspace, build(workspace, definition="make -j")) == ["build"]


def test_without_outputs_only_the_last_that_ran_counts(store: Store, workspace: Path) -> None:
    plain = build(workspace, outputs=())
    ran(store, workspace, plain)
    assert ran(store, workspace, plain) == []
    # Something else has run in its place meanwhile, and what that has left is unknown.
    assert ran(store, workspace, build(workspace, outputs=(), definition="other")) == ["build"]
    assert ran(store, workspace, plain) == ["build"]


def test_what_it_has_left_in_its_folder_must_be_there(store: Store, workspace: Path) -> None:
    plain = build(workspace, outputs=())
    ran(store, workspace, plain)
    folder_gone(workspace, store)
    assert ran(store, workspace, plain) == ["build"]


def test_what_says_nothing_of_what_it_depends_on_has_all_after_it_run_again(
    store: Store, workspace: Path
) -> None:
    tasks = (task("first"), build(workspace, "first"))
    assert ran(store, workspace, *tasks) == ["first", "build"]
    assert ran(store, workspace, *tasks) == ["first", "build"]


def test_what_has_the_same_identity_as_before_has_nothing_run_again(
    store: Store, workspace: Path
) -> None:
    compute = FakeCompute(lambda job: ("passed", 0))
    commits = iter(["abc", "abc", "def"])

    def ends(job: Submission) -> tuple[str, int]:
        if job.task.key == "first":
            (job.attempt.folder / IDENTITY).write_text(next(commits))
        return makes(workspace, "main.o")(job)

    submitted = []
    for _ in range(3):
        compute = FakeCompute(ends)
        tasks = (task("first"), build(workspace, "first"))
        plan = Plan(name="p", kind="k", tasks=tasks, source="p.yaml")
        drive(store, compute, run=store.create_run(plan, "", now=0.0))
        submitted.append(compute.submitted)
    assert submitted == [["first", "build"], ["first"], ["first", "build"]]


def test_inputs_that_no_file_fits_are_a_mistake_and_nothing_runs(
    store: Store, workspace: Path
) -> None:
    compute = FakeCompute(makes(workspace, "main.o"))
    result, _ = drive(store, compute, build(workspace, inputs=("*.c", "*.cpp")))
    assert compute.submitted == []
    assert (result.state, result.exit_code) == (State.NOT_RUN, 1)
    assert store.task_row("p-1", "build").reason == f"`inputs`: no file in {workspace} fits *.cpp"


def test_what_is_to_be_taken_must_have_passed_once(store: Store, workspace: Path) -> None:
    taken = build(workspace, is_taken=True)
    plan = Plan(name="p", kind="k", tasks=(taken,), source="p.yaml")
    with pytest.raises(InputError, match=r"p\.yaml: build has never passed"):
        check_taken(store, plan)
    ran(store, workspace, build(workspace))
    check_taken(store, plan)
    source_changed(workspace, store)
    assert ran(store, workspace, taken) == []
    assert store.task_row("p-2", "build").reason == "taken over from p-1"


def test_other_variables_from_those_before_it_are_enough_to_run_again(
    store: Store, workspace: Path
) -> None:
    values = iter(["1", "1", "2"])

    def ends(job: Submission) -> tuple[str, int]:
        if job.task.key == "first":
            (job.attempt.folder / IDENTITY).write_text("the same")
            write_exports(job.attempt.folder, {"LEVEL": next(values)})
        return makes(workspace, "main.o")(job)

    submitted = []
    for _ in range(3):
        compute = FakeCompute(ends)
        first = dataclasses.replace(task("first"), exports=True)
        second = dataclasses.replace(build(workspace, "first"), inherits=("first",))
        plan = Plan(name="p", kind="k", tasks=(first, second), source="p.yaml")
        drive(store, compute, run=store.create_run(plan, "", now=0.0))
        submitted.append(compute.submitted)
    assert submitted == [["first", "build"], ["first"], ["first", "build"]]


def test_outputs_that_cannot_be_noted_are_told_and_the_run_goes_on(
    store: Store, workspace: Path
) -> None:
    def ends(job: Submission) -> tuple[str, int]:
        if job.task.key == "build":
            (job.attempt.folder / OUTPUTS).mkdir()
        return makes(workspace, "main.o")(job)

    result, events = drive(store, FakeCompute(ends), build(workspace), task("after", "build"))
    assert result.state is State.PASSED
    (notice,) = [event for event in events if event.kind == "notice"]
    assert notice.task == "build"
    assert "Is a directory" in notice.reason
    assert OUTPUTS in notice.reason
    assert ran(store, workspace, build(workspace)) == ["build"]


def test_inputs_that_cannot_be_looked_for_are_a_mistake_and_nothing_runs(
    store: Store, workspace: Path
) -> None:
    one = build(workspace, inputs=("x" * 300,))
    result, _ = drive(store, FakeCompute(makes(workspace, "main.o")), one)
    assert result.state is State.NOT_RUN
    assert "File name too long" in store.task_row("p-1", "build").reason
