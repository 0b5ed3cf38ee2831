"""Plans of sweeps: cases, trials and what they have to themselves."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rankwise.backends.batch.slurm import Slurm
from rankwise.backends.batch.system import needs_of
from rankwise.backends.remote.backend import fits
from rankwise.documents.load import load
from rankwise.documents.site_models import SlurmConfig
from rankwise.documents.sweep import Range, Sweep
from rankwise.errors import InputError
from rankwise.plan import Resources, Task, claim_of, show
from rankwise.planning import plan_from
from rankwise.planning.selection import Selection, is_met
from rankwise.planning.sweeps import SweepCase, cases_of

_SITE = """\
[compute.cluster]
backend = "slurm"
[compute.pods]
backend = "kubernetes"
image = "bench:1"
cores = 16
[compute.hosts]
backend = "ssh"
hosts = ["a", "b"]
"""
_SWEEP = """\
type: Sweep
command: ./bench ${{size}}
parameters: {size: [1, 2]}
trials: 2
compute: %s
"""


def _tasks(folder: Path, compute: str, more: str = "") -> list[Task]:
    (folder / "rankwise.toml").write_text(_SITE)
    (folder / "sweep.yaml").write_text(_SWEEP % compute + more)
    plan, _ = plan_from([folder / "sweep.yaml"])
    return list(plan.tasks)


@pytest.mark.parametrize("compute", ["local", "cluster", "pods", "hosts"])
def test_trials_are_alone_on_every_compute_and_one_at_a_time(tmp_path: Path, compute: str) -> None:
    tasks = _tasks(tmp_path, compute)
    assert len(tasks) == 4
    assert all(task.is_alone and task.lane_width == 1 for task in tasks)
    assert len({task.lane for task in tasks}) == 1
    # How many cores this machine has does not matter elsewhere.
    assert {task.resources for task in tasks} == {Resources()}


@pytest.mark.parametrize("compute", ["local", "cluster"])
def test_trials_that_may_run_beside_each_other_are_not_alone(tmp_path: Path, compute: str) -> None:
    tasks = _tasks(tmp_path, compute, "parallel: true\n")
    assert not any(task.is_alone or task.lane for task in tasks)


def test_a_trial_has_a_host_to_itself(tmp_path: Path) -> None:
    trial = _tasks(tmp_path, "hosts")[0]
    host = Resources(cores=8, memory=1 << 30, gpus=0)
    claim = claim_of(trial, host)
    assert fits(claim, host)
    assert not fits(claim, host - Resources(cores=1))
    # Of a host that has not said what it has, no more is claimed than can be given back.
    assert claim_of(trial, Resources(cores=math.inf)).cores == 1


def test_a_trial_has_its_nodes_in_slurm_to_itself(tmp_path: Path) -> None:
    trial = _tasks(tmp_path, "cluster")[0]
    assert "--exclusive" in Slurm(SlurmConfig()).options(needs_of(trial, most_cores=4))
    shared = _tasks(tmp_path, "cluster", "parallel: true\n")[0]
    assert "--exclusive" not in Slurm(SlurmConfig()).options(needs_of(shared, most_cores=4))


# The cases of a sweep are all combinations, less those left out, and some more


def _sweep(folder: Path, text: str) -> Sweep:
    path = folder / "sweep.yaml"
    path.write_text(f"type: Sweep\ncommand: run\n{text}")
    model = load(path).model
    assert isinstance(model, Sweep)
    return model


def _names(folder: Path, text: str) -> list[str]:
    return [case.name for case in cases_of(_sweep(folder, text))[0]]


def test_there_is_a_case_for_each_combination(tmp_path: Path) -> None:
    text = "parameters:\n  a: [1, x]\n  b: {from: 1, to: 8, times: 2}\n"
    names = _names(tmp_path, text)
    assert names[:5] == ["a=1 b=1", "a=1 b=2", "a=1 b=4", "a=1 b=8", "a=x b=1"]
    assert len(names) == 8


def test_ranges_go_by_steps_and_keep_to_their_ends(tmp_path: Path) -> None:
    assert _names(tmp_path, "parameters: {a: {from: 0.5, to: 2, step: 0.5}}") == [
        *("a=0.5", "a=1", "a=1.5", "a=2")
    ]
    assert _names(tmp_path, "parameters: {a: {from: 0.1, to: 0.3, step: 0.1}}") == [
        *("a=0.1", "a=0.2", "a=0.3")
    ]
    large = "parameters: {a: {from: 1000000000001, to: 1000000000003}}"
    assert _names(tmp_path, large) == ["a=1000000000001", "a=1000000000002", "a=1000000000003"]
    assert _names(tmp_path, "parameters: {a: {from: 3, to: 5}}") == ["a=3", "a=4", "a=5"]


@pytest.mark.parametrize(
    ("given", "names"),
    [("from: 1e28, to: 1e28", [f"a=1{'0' * 28}"]), ("from: 1e28, to: 1e28, times: 2", None)],
)
def test_a_range_of_huge_numbers_has_an_end(
    tmp_path: Path, given: str, names: list[str] | None
) -> None:
    expected = names or [f"a=1{'0' * 28}"]
    assert _names(tmp_path, f"parameters: {{a: {{{given}}}}}") == expected


def test_a_range_that_is_too_long_is_a_mistake_however_long_it_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the range has more than 100,000 values"):
        _sweep(tmp_path, "parameters: {a: {from: 1, to: 1e30}}")


def test_zipped_parameters_go_together(tmp_path: Path) -> None:
    text = "zip: [{a: [1, 2], b: [x, y]}]\nparameters: {c: [0]}\n"
    assert _names(tmp_path, text) == ["c=0 a=1 b=x", "c=0 a=2 b=y"]


def test_ranks_are_nodes_times_ranks_on_each(tmp_path: Path) -> None:
    cases, _ = cases_of(_sweep(tmp_path, "nodes: [1, 2]\nranks_per_node: [1, 4]\n"))
    assert [case.ranks for case in cases] == [1, 4, 2, 8]
    assert [case.name for case in cases][2:] == ["ranks=2 nodes=2", "ranks=8 nodes=2"]


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("{a: 2}", ["a=1", "a=3"]),
        ("{a: 2.0}", ["a=1", "a=3"]),
        ('{a: ">= 2"}', ["a=1"]),
        ('{a: "!= 2"}', ["a=2"]),
        ("{a: [1, 3]}", ["a=2"]),
        ('{a: "[12]"}', ["a=3"]),
        ('{a: "> x"}', ["a=1", "a=2", "a=3"]),
        ('{a: 2, ranks: "> 1"}', ["a=1", "a=2", "a=3"]),
    ],
)
def test_cases_are_left_out_with_their_reason(
    tmp_path: Path, condition: str, left: list[str]
) -> None:
    text = f"parameters: {{a: [1, 2, 3]}}\nexclude: [{{when: {condition}, reason: why}}]\n"
    cases, left_out = cases_of(_sweep(tmp_path, text))
    assert [case.name for case in cases] == left
    assert left_out == {"why": 3 - len(left)}


def test_cases_are_added_and_changed_and_equal_ones_run_once(tmp_path: Path) -> None:
    text = (
        "parameters: {a: [1, 2]}\n"
        "add: [{a: 7}, {a: 2}]\n"
        "timeout: 10\n"
        "set: [{when: {a: '> 1'}, timeout: 20, environment_variables: {X: y}}]\n"
    )
    cases, _ = cases_of(_sweep(tmp_path, text))
    assert [(case.name, case.timeout, case.environment) for case in cases] == [
        ("a=1", 10, {}),
        ("a=2", 20, {"X": "y"}),
        ("a=7", 20, {"X": "y"}),
    ]


def _plan(folder: Path, text: str) -> list[tuple[str, str]]:
    path = folder / "sweep.yaml"
    path.write_text(f"type: Sweep\n{text}")
    plan, _ = plan_from([path])
    return [(task.key, str(task.processes[0].command)) for task in plan.tasks]


def test_trials_are_interleaved_after_the_warm_up(tmp_path: Path) -> None:
    text = "command: run ${{a}} ${{trial}}\nparameters: {a: [1, 2]}\ntrials: 2\nwarmup: 1\n"
    assert _plan(tmp_path, text) == [
        ("a-1.w1", "run 1 0"),
        ("a-2.w1", "run 2 0"),
        ("a-1.t1", "run 1 1"),
        ("a-2.t1", "run 2 1"),
        ("a-1.t2", "run 1 2"),
        ("a-2.t2", "run 2 2"),
    ]


def test_values_that_mean_something_to_the_shell_are_planned_by_themselves(tmp_path: Path) -> None:
    text = "command: echo ${{a}}\nranks_per_node: [2]\nparameters: {a: [x, 'y; date']}\ntrials: 1\n"
    plain, other = (command for _, command in _plan(tmp_path, text))
    assert plain.endswith("echo x")
    assert other.endswith("sh -c 'echo y; date'")


def test_variables_take_values_too(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "type: Sweep\ncommand: run\nparameters: {a: [1, 2]}\ntrials: 1\n"
        "environment_variables: {THREADS: '${{a}}'}\n"
    )
    plan, _ = plan_from([path])
    assert [task.environment["THREADS"] for task in plan.tasks] == ["1", "2"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("budget: {max_cases: 2}", "3 cases are more than `budget.max_cases`, which is 2"),
        (
            "timeout: 1h\nbudget: {max_core_hours: 2}",
            "up to 15 core-hours are more than `budget.max_core_hours`, which is 2",
        ),
        ("budget: {max_core_hours: 2}", "4:10: it cannot be told how long cases take"),
        ("exclude: [{when: {a: '> 0'}, reason: x}]", "no case is left"),
        ("exclude: [{when: {aa: 1}, reason: x}]", "`aa`: there is no parameter `aa`; did you mean"),
        ("environment_variables: {X: '${{b}}'}", "`${{b}}`: there is no parameter `b`"),
        ("zip: [{b: [1], c: [1, 2]}]", "`b` has 1, `c` has 2"),
        ("zip: [{b: [1], c: {from: 1, to: 3}}]", "`b` has 1, `c` has 3"),
        ("zip: [{b: {from: 1, to: 1000, times: 10}, c: [1]}]", "`b` has 4, `c` has 1"),
        ("nodes: []", "`nodes` must have a number at least"),
        ("add: [{a: 1, nodes: two}]", "4:14: `nodes` must be a whole number, not 'two'"),
        ("add: [{a: 1, ranks_per_node: 0}]", "`ranks_per_node` must be at least 1, not 0"),
        ("add: [{nodes: 2}]", "4:7: a case needs all values: `a` is missing"),
        ("add: [{a: 1, aa: 2}]", "4:14: `aa`: there is no parameter `aa`; did you mean `a`?"),
        ("add: [{a: 1, ranks: 2}]", "4:14: `ranks`: there is no parameter `ranks`"),
        ("set: [{when: {a: 1}, parameters: {nodes: 2}}]", "4:35: `nodes`: there is no parameter"),
        ("set: [{when: {a: 1}, parameters: {aa: 2}}]", "4:35: `aa`: there is no parameter `aa`"),
        ("nodes: 0", "must be at least 1"),
        ("trials: many", "must be a whole number"),
        ("parallel: 3", "must be `true` or `false`"),
        ("metrics: [{name: time}]", "needs `pattern`"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(f"type: Sweep\ncommand: run\nparameters: {{a: [1, 2, 3]}}\n{text}\n")
    with pytest.raises(InputError) as found:
        plan_from([path])
    assert complaint in str(found.value)


def test_the_plan_says_what_it_will_take(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "type: Sweep\ncommand: run\nparameters: {a: [1, 2, 3]}\ntimeout: 1h\n"
        "exclude: [{when: {a: 3}, reason: too large}]\n"
    )
    plan, _ = plan_from([path])
    assert plan.notices == (
        "2 cases, 5 trials each: 10 tasks, up to 10 core-hours",
        "left out, 1: too large",
    )


def test_a_case_names_everything_that_commands_may_refer_to() -> None:
    case = SweepCase(values={"size": "8"}, nodes=2, ranks_per_node=3)
    assert case.all_values == {"size": "8", "nodes": "2", "ranks_per_node": "3", "ranks": "6"}


def test_values_may_have_names(tmp_path: Path) -> None:
    text = (
        "command: ${{program}} ${{a}}\nparameters:\n  program: {fast: ./run -O3, slow: ./run}\n"
        "  a: [1]\ntrials: 1\nexclude: [{when: {program: slow}, reason: x}]\n"
    )
    assert _plan(tmp_path, text) == [("program-fast.a-1.t1", "./run -O3 1")]


def test_what_comes_before_all_cases_is_a_task_that_they_need(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("type: Sweep\ncommand: run\nprepare: make\ntrials: 2\n")
    plan, _ = plan_from([path])
    assert [(task.key, task.needs) for task in plan.tasks] == [
        ("prepare", ()),
        ("document.t1", ("prepare",)),
        ("document.t2", ("prepare",)),
    ]


def test_cases_may_be_read_in_different_ways(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    wishes = "metrics: [{parser: osu, when: {a: 1}}, {parser: imb, when: {a: [1, 2]}}]\n"
    head = "type: Sweep\ncommand: run\ntrials: 1\n"
    path.write_text(f"{head}parameters: {{a: [1, 2]}}\n{wishes}")
    plan, _ = plan_from([path])
    parsers = [
        [metric.parser for metric in task.measuring.metrics]
        for task in plan.tasks
        if task.measuring is not None
    ]
    assert parsers == [["osu", "imb"], ["imb"]]
    path.write_text(f"{head}parameters: {{a: [1, 2, 3]}}\n{wishes}")
    with pytest.raises(InputError, match="no entry of `metrics` fits the case a=3"):
        plan_from([path])


@pytest.mark.parametrize("wish", ["oso", "{parser: oso}"])
def test_an_unknown_parser_comes_with_the_nearest(tmp_path: Path, wish: str) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(f"type: Sweep\ncommand: run\nmetrics: [{wish}]\n")
    with pytest.raises(InputError, match="there is no parser `oso`; did you mean `osu`"):
        plan_from([path])


@pytest.mark.parametrize(
    ("wanted", "value", "expected"),
    [
        ("2.1", "2.10", False),
        ("2.10", "2.1", False),
        ("2.10", "2.10", True),
        ("2.1", "2.1", True),
        ("3.120", "3.12", False),
        ("!=2.1", "2.10", True),
        ("1", "1.0", True),
        ("1e3", "1000", True),
        ("10", "10.0", True),
    ],
)
def test_versions_are_no_numbers(wanted: str, value: str, expected: bool) -> None:
    assert is_met(wanted, value) is expected


def test_a_range_that_is_too_long_is_a_mistake_and_not_cut(tmp_path: Path) -> None:
    longest = _sweep(tmp_path, "parameters: {a: {from: 1, to: 100000}}").parameters["a"]
    assert isinstance(longest, Range)
    assert len(longest.numbers()) == 100_000
    for text in (
        "{from: 1, to: 100001}",
        "{from: 0, to: 1e12, step: 0.5}",
        "{from: 1, to: 1e300, times: 1.0001}",
    ):
        with pytest.raises(InputError, match=r"sweep\.yaml:3:\d+: .* more than 100,000 values"):
            _sweep(tmp_path, f"parameters: {{a: {text}}}")


@pytest.mark.parametrize("on", ["stdout", "stderr", "output"])
def test_what_is_measured_in_one_stream_has_it_kept_apart(tmp_path: Path, on: str) -> None:
    path = tmp_path / "sweep.yaml"
    wish = f"{{parser: regex, name: t, unit: s, pattern: '(?P<value>.)', on: {on}}}"
    path.write_text(f"type: Sweep\ncommand: run\nparameters: {{a: [1]}}\nmetrics: [{wish}]\n")
    task = plan_from([path])[0].tasks[0]
    assert (task.environment.get("RANKWISE_STREAMS") == "apart") is (on != "output")


def test_a_parameter_that_is_called_like_a_value_of_the_runner_takes_its_place_nowhere(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "type: Sweep\ncommand: echo ${{folder}}\nparameters: {folder: [here]}\n"
        "ranks_per_node: [2]\ntrials: 1\n"
    )
    (task,) = plan_from([path])[0].tasks
    (launcher,) = task.processes
    words = show(str(launcher.command))
    assert "<folder of the attempt>/hostfile" in words
    assert words.endswith("echo here")


def test_nodes_of_an_added_case_may_be_written_in_any_way_that_numbers_are(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("type: Sweep\ncommand: run\ntrials: 1\nadd: [{nodes: 0x2}, {nodes: +3}]\n")
    assert [task.nodes for task in plan_from([path])[0].tasks] == [1, 2, 3]


ANALYSED = "type: Sweep\ncommand: run ${{a}}\nprepare: make\nparameters: {a: [1, 2]}\ntrials: 1\n"


def test_an_analysis_follows_all_trials_however_they_end_on_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    (tmp_path / "rankwise.toml").write_text(
        '[compute.queue]\nbackend = "slurm"\n[runtime.plots]\nrequirements = ["matplotlib"]\n'
    )
    path.write_text(
        f"{ANALYSED}compute: queue\n"
        "analysis: {run: python plot.py, environment: plots, timeout: 1m}\n"
    )
    plan, _ = plan_from([path])
    analysis = plan.task("analysis")
    assert analysis.needs == ("a-1.t1", "a-2.t1")
    assert (analysis.when, analysis.compute, analysis.timeout) == ("always", "local", 60)
    assert analysis.runtime.name == "plots"
    assert analysis.files["run.sh"] == "python plot.py\n"
    assert plan.task("a-1.t1").compute == "queue"


def test_what_is_left_out_of_a_run_is_named_to_its_analysis(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(f"{ANALYSED}analysis: python plot.py\n")
    plan, _ = plan_from([path], wanted=Selection(only=("a-2.*",)))
    assert [task.key for task in plan.tasks] == ["prepare", "a-2.t1", "analysis"]
    analysis = plan.task("analysis")
    assert (analysis.needs, analysis.files[".earlier"]) == (("a-2.t1",), "a-1.t1")
    plan, _ = plan_from([path], wanted=Selection(failed=("a-1.t1",)))
    assert [task.key for task in plan.tasks] == ["prepare", "a-1.t1", "analysis"]
    assert plan.notices[-1] == "1 of 4 tasks did not pass in the last run"
    plan, _ = plan_from([path], wanted=Selection(only=("analysis",)))
    assert [(task.key, task.needs) for task in plan.tasks] == [("analysis", ())]
    shares = [plan_from([path], wanted=Selection(shard=(number, 2)))[0] for number in (1, 2)]
    assert {task.key for plan in shares for task in plan.tasks} == {"prepare", "a-1.t1", "a-2.t1"}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            "{run: python plot.py, environment: box}",
            "6:17: an analysis does not run in a container",
        ),
        ("none.ipynb", "6:11: there is no notebook none.ipynb in "),
        ("{run: python plot.py, environment: plotz}", "plotz"),
        ("{runs: python plot.py}", "did you mean `run`?"),
        ("{timeout: 1m}", "`run` is missing"),
    ],
)
def test_an_analysis_that_cannot_run_is_a_mistake(
    tmp_path: Path, line: str, complaint: str
) -> None:
    path = tmp_path / "sweep.yaml"
    (tmp_path / "rankwise.toml").write_text('[runtime.box]\nimage = "debian"\n')
    path.write_text(f"{ANALYSED}analysis: {line}\n")
    with pytest.raises(InputError) as caught:
        plan_from([path], strict=True)
    assert complaint in str(caught.value)
