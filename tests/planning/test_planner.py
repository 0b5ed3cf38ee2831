"""Plans of every type, and of several documents."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from rankwise.documents.load import AZURE_TYPES, TYPES
from rankwise.plan import DOCUMENTS, later
from rankwise.planning import plan_from
from rankwise.planning.planner import PLANNERS


def test_every_type_has_its_planner() -> None:
    assert PLANNERS.keys() == {*TYPES, *AZURE_TYPES}


def test_documents_of_one_run_keep_their_variables_to_themselves(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(
            "type: Pipeline\nstages:\n  build: {run: export A=1, artifacts: built}\n"
            "  test: {run: 'echo $A ${{artifacts.build}}', matrix: {python: [3.11]}}\n"
        )
    paths = [tmp_path / "one.yaml", tmp_path / "two.yaml"]
    plan, _ = plan_from(paths)
    assert {task.key: task.inherits for task in plan.tasks} == {
        "build": (),
        "test.3.11": ("build",),
        "build-2": (),
        "test-2.3.11": ("build-2",),
    }
    for task in plan.tasks[2:]:
        text = json.dumps(asdict(task), ensure_ascii=False)
        assert later("artifacts:build-2") in text
        assert later("artifacts:build") not in text
    assert plan.tags[DOCUMENTS].splitlines() == list(map(str, paths))


def test_stages_of_one_name_in_two_documents_keep_their_artifacts_apart(tmp_path: Path) -> None:
    for name, version in (("one", "3.11"), ("two", "3.12")):
        (tmp_path / f"{name}.yaml").write_text(
            "type: Pipeline\nstages:\n"
            f"  build: {{run: make, artifacts: built, matrix: {{python: ['{version}']}}}}\n"
            f"  use-{name}: {{run: 'ls ${{{{artifacts.build}}}}'}}\n"
        )
    plan, _ = plan_from([tmp_path / "one.yaml", tmp_path / "two.yaml"])
    assert [task.key for task in plan.tasks] == [
        "build.3.11",
        "use-one",
        "build-2.3.12",
        "use-two",
    ]
    last = json.dumps(asdict(plan.tasks[-1]), ensure_ascii=False)
    assert later("artifacts:build-2") in last
    assert later("artifacts:build") not in last


@pytest.mark.parametrize(
    "document",
    [
        "type: command\nname: own\ncommand: env\n{}",
        "type: MpiJob\nname: own\nlauncher:\n  spec:\n    command: mpirun -n 2 ./a\n{}",
        "type: Suite\nname: own\ntests:\n  - run: env\n{}",
    ],
)
def test_a_variable_that_the_runner_sets_itself_is_noted(document: str, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    variables = "environment_variables: {RANKWISE_NODE: mine, HOSTNAME: me, RANK_OF_MINE: 3}\n"
    path.write_text(document.format(variables))
    plan, _ = plan_from([path])
    assert [note for note in plan.tasks[0].notes if note.startswith("variables:")] == [
        "variables: HOSTNAME is set by the runner: 'me' of the document is not used",
        "variables: RANKWISE_NODE is set by the runner: 'mine' of the document is not used",
    ]
