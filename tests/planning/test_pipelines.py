"""Plans of pipelines."""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path

import pytest

from rankwise.errors import InputError
from rankwise.plan import Plan, body_of, fill_in, show, task_of
from rankwise.planning import plan_from


def plan_of(folder: Path, text: str, *, site: str = "", **choice: object) -> Plan:
    (folder / "rankwise.toml").write_text(site)
    path = folder / "p.yaml"
    path.write_text(textwrap.dedent(text))
    plan, _ = plan_from([path], choice=choice)
    return plan


def needs(plan: Plan) -> dict[str, tuple[str, ...]]:
    return {task.key: task.needs for task in plan.tasks}


def test_without_needs_each_stage_comes_after_the_one_before(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "type: Pipeline\nstages: {b: x, a: x, c: x}\n")
    assert needs(plan) == {"b": (), "a": ("b",), "c": ("a",)}


def test_with_needs_only_what_is_said_counts(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """\
        type: Pipeline
        stages:
          last: {needs: [test, docs], run: x}
          test: {needs: build, run: x, matrix: {python: [3.11, 3.12], mpi: [a b, a/b]}}
          docs: x
          build: x
        """,
    )
    cells = ("test.3.11-a-b", "test.3.11-a-b-2", "test.3.12-a-b", "test.3.12-a-b-2")
    assert needs(plan) == {
        "docs": (),
        "build": (),
        **dict.fromkeys(cells, ("build",)),
        "last": (*cells, "docs"),
    }
    # Each after what it needs, so that the later one's variables win.
    assert [task.key for task in plan.tasks][-1] == "last"


def test_a_stage_is_where_and_what_it_says(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """\
        type: Pipeline
        workspace: work
        on: cluster
        env: {A: 1, B: 1}
        secrets: [TOKEN]
        stages:
          one:
            run: echo ${{matrix.n}} in ${{artifacts.one}} of ${{run.id}}
            env: {B: "2-${{matrix.n}}"}
            matrix: {n: [7]}
            folder: sub
            retries: 2
            timeout: 1m
            cores: 2
            secrets: [KEY]
            artifacts: out/*
            inputs: []
            checks: [done]
          two: {ranks: 4, nodes: 2, run: python x.py}
          three: {deploy: {from: out, to: there, name: v1}}
        """,
        site='[compute.cluster]\nbackend = "local"\n',
    )
    one, two, three = plan.tasks
    assert (one.key, one.compute, one.folder) == ("one.7", "cluster", str(tmp_path / "work/sub"))
    assert one.environment == {"A": "1", "B": "2-7"}
    assert (one.secrets, one.timeout, one.restart.most) == (("TOKEN", "KEY"), 60.0, 2)
    assert one.resources.cores == 2
    assert show(one.files["run.sh"]) == "echo 7 in <artifacts of one> of <the run>\n"
    assert [check.what for check in one.checks] == ["done"]
    assert one.exports
    assert (two.nodes, two.width, two.exports) == (2, 4, False)
    assert two.inherits == ("one.7",)
    # What deals with folders of this machine stays here.
    assert three.compute == "local"
    options = ("--source=out", "--to=there", "--name=v1", "--keep=3")
    assert three.processes[0].command[-5:] == ("deploy", *options)
    for task in plan.tasks:
        assert task_of(body_of(task)) == task


def test_what_is_forced_is_noted_but_not_taken_over(tmp_path: Path) -> None:
    text = "type: Pipeline\nstages:\n  a: {run: x, inputs: f}\n  b: {run: y, inputs: f}\n  c: z\n"
    first = plan_of(tmp_path, text)
    a, b, c = (task.reuse for task in first.tasks)
    assert a
    assert b
    assert a.definition != b.definition
    assert a.is_wanted
    assert c is None
    again = plan_of(tmp_path, text, force=True).tasks[0].reuse
    assert again
    assert not again.is_wanted
    assert again.definition == a.definition
    parts = [task.reuse for task in plan_of(tmp_path, text, **{"from": "b"}).tasks]
    assert [reuse is not None and reuse.is_taken for reuse in parts] == [True, False, False]
    changed = plan_of(tmp_path, text.replace("run: x", "run: xx")).tasks[0].reuse
    assert changed
    assert changed.definition != a.definition


def test_what_is_detached_is_one_task_and_can_be_planned_alone(tmp_path: Path) -> None:
    text = "type: Pipeline\nstages:\n  a: x\n  b: {run: y $V, detach: true, matrix: {n: [1, 2]}}\n"
    plan = plan_of(tmp_path, text)
    assert [(task.key, task.submits) for task in plan.tasks] == [("a", False), ("b", True)]
    alone = plan_of(tmp_path, text, only="b", environment={"V": "1"})
    assert needs(alone) == {"b.1": (), "b.2": ()}
    assert alone.tasks[0].environment == {"V": "1"}


def test_a_detached_sweep_is_called_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("type: Sweep\ncommand: x ${{n}}\nparameters: {n: [1, 2]}\n")
    text = "type: Pipeline\nstages:\n  a: x\n  b: {sweep: s.yaml, detach: true}\n"
    assert plan_of(tmp_path, text).kind == "Pipeline"
    assert plan_of(tmp_path, text, only="b").kind == "Sweep"


def test_documents_become_part_of_the_pipeline(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("type: command\ncommand: echo\n")
    plan = plan_of(tmp_path, "type: Pipeline\nstages: {a: x, b: {job: job.yaml}, c: x}\n")
    assert needs(plan) == {"a": (), "b": ("a",), "c": ("b",)}
    with pytest.raises(InputError, match=r"p.yaml:2:\d+: job.yaml is a command, not a suite"):
        plan_of(tmp_path, "type: Pipeline\nstages: {b: {suite: job.yaml}}\n")


def test_targets_that_only_a_stage_can_know_are_left_to_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    text = "type: Pipeline\nenv: {HERE: file}\nstages: {a: {deploy: {from: x, to: $%s/y}}}\n"
    plan_of(tmp_path, text % "NOT_KNOWN_YET")
    with pytest.raises(InputError, match="is a file, not a folder"):
        plan_of(tmp_path, text % "HERE")


def test_stages_that_check_one_stream_have_their_streams_kept_apart(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """\
        type: Pipeline
        stages:
          plain: {run: x, checks: [{absent: Traceback, on: stderr}]}
          ranks: {run: x, ranks: 2, checks: [{absent: Traceback, on: stdout}]}
          mixed: {run: x, checks: [{absent: Traceback}]}
        """,
    )
    apart = {task.key: task.environment.get("RANKWISE_STREAMS") for task in plan.tasks}
    assert apart == {"plain": "apart", "ranks": "apart", "mixed": None}
    assert all(task.checks for task in plan.tasks)


def test_a_function_that_a_check_of_a_stage_names_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def good(attempt): pass\n")
    text = "type: Pipeline\nstages: {a: {run: x, checks: [{python: 'own.py:god'}]}}\n"
    with pytest.raises(InputError, match=r"p\.yaml:2:\d+: .* did you mean `good`"):
        plan_of(tmp_path, text)


SWEEP = """\
type: Sweep
command: echo ${{size}}
parameters: {size: [1, 2]}
trials: 1
metrics: [{parser: regex, name: time, unit: s, pattern: '(?P<value>.)'}]
"""


def cases_in(paths: list[Path]) -> dict[str, str]:
    plan = plan_from(paths)[0]
    return {task.key: task.measuring.case for task in plan.tasks if task.measuring is not None}


def test_sweeps_of_several_stages_are_measured_apart(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    path = tmp_path / "pipeline.yaml"
    path.write_text("type: Pipeline\nstages:\n  one: {sweep: sweep.yaml}\n")
    assert cases_in([path]) == {"one.size-1.t1": "size=1", "one.size-2.t1": "size=2"}
    (tmp_path / "other.yaml").write_text(SWEEP.replace("1, 2", "2, 3"))
    path.write_text(
        "type: Pipeline\nstages:\n  one: {sweep: sweep.yaml}\n  two: {sweep: other.yaml}\n"
    )
    assert cases_in([path]) == {
        "one.size-1.t1": "size=1",
        "one.size-2.t1": "stage=one size=2",
        "two.size-2.t1": "stage=two size=2",
        "two.size-3.t1": "size=3",
    }


def test_sweeps_of_several_documents_are_measured_apart(tmp_path: Path) -> None:
    paths = [tmp_path / "one.yaml", tmp_path / "two.yaml"]
    for path in paths:
        path.write_text(SWEEP)
    assert cases_in(paths) == {
        "size-1.t1": "document=one size=1",
        "size-2.t1": "document=one size=2",
        "size-1.t1-2": "document=two size=1",
        "size-2.t1-2": "document=two size=2",
    }
    (tmp_path / "more").mkdir()
    again = tmp_path / "more" / "one.yaml"
    again.write_text(SWEEP)
    assert len(set(cases_in([paths[0], again]).values())) == 4


def test_checks_have_the_values_of_the_matrix(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """\
        type: Pipeline
        stages:
          a:
            run: x
            matrix: {n: [7, 8]}
            checks: [{absent: "no ${{matrix.n}}", on: "${{ matrix.n }}.txt"}, {regex: a, count: 2}]
        """,
    )
    found = [[(check.what, check.on, check.most) for check in task.checks] for task in plan.tasks]
    assert found == [
        [("no 7", "7.txt", None), ("a", "output", 2)],
        [("no 8", "8.txt", None), ("a", "output", 2)],
    ]


def test_lines_for_ranks_are_found_in_a_folder_with_blanks_in_its_name(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 'type: Pipeline\nstages: {a: {ranks: 2, run: "echo 1\\necho 2"}}\n')
    command = str(plan.tasks[0].processes[0].command)
    assert shlex.split(fill_in(command, lambda _: "/a b"))[-1] == "/a b/run.sh"


def test_a_stage_that_gets_another_name_does_not_get_that_of_one_beside_it(tmp_path: Path) -> None:
    paths = [tmp_path / "one.yaml", tmp_path / "two.yaml"]
    paths[0].write_text("type: Pipeline\nstages: {build: x}\n")
    paths[1].write_text(
        "type: Pipeline\nstages:\n  build: {run: x, artifacts: y}\n"
        "  build-2: echo ${{artifacts.build}}\n"
    )
    plan = plan_from(paths)[0]
    assert needs(plan) == {"build": (), "build-3": (), "build-2": ("build-3",)}
    assert show(plan.tasks[2].files["run.sh"]) == "echo <artifacts of build-3>\n"


def test_a_workspace_with_a_variable_that_is_not_set_is_refused(tmp_path: Path) -> None:
    text = "type: Pipeline\nworkspace: $NOT_SET/build\nstages: {a: x}\n"
    with pytest.raises(InputError, match=r"\.yaml:2:12: the variable NOT_SET is not set"):
        plan_of(tmp_path, text)
    plan = plan_of(tmp_path, text.replace("$NOT_SET/build", "5$/build"))
    assert plan.tasks[0].folder == str(tmp_path / "5$/build")
