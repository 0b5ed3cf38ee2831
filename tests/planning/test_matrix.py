"""Plans of matrices: cells, features and tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankwise.errors import InputError
from rankwise.plan import Plan, Resources, Task, later
from rankwise.planning import plan_from
from rankwise.planning.matrix_cells import Features, check_here, found_here, stated
from rankwise.planning.selection import Selection, cells_to_run

TWO = "runtimes: {old: current, new: current}\nmachines: {here: local, far: {features: [odd]}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.sh").write_text("true\n")
    (tmp_path / "a.py").write_text("# rankwise: timeout=60\n")
    for name, source in {"plain": "1 + 1", "asks": "answer = input()"}.items():
        cell = {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], "id": "x"}
        notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        (tmp_path / f"{name}.ipynb").write_text(json.dumps(notebook))
    return tmp_path


def planned(folder: Path, text: str, *only: str) -> Plan:
    path = folder / "matrix.yaml"
    path.write_text(f"type: Matrix\n{text}")
    return plan_from([path], wanted=Selection(only=only))[0]


def the_tests(plan: Plan) -> dict[str, Task]:
    return {task.key: task for task in plan.tasks if task.tags["part"] == "test"}


def reasons(plan: Plan) -> dict[str, str]:
    """Say of each test why it does not run, with a `!` where something is missing."""
    return {
        key: task.skip if task.is_optional or not task.skip else f"!{task.skip}"
        for key, task in the_tests(plan).items()
    }


def test_there_is_a_task_for_each_test_in_each_cell_and_one_that_looks_around(folder: Path) -> None:
    plan = planned(folder, f"{TWO}tests: [a.sh, a.py]\n")
    assert [task.key for task in plan.tasks] == [
        f"{runtime}@{machine}@{test}"
        for runtime in ("old", "new")
        for machine in ("here", "far")
        for test in ("environment", "a.sh", "a.py")
    ]
    look, shell, python = plan.tasks[:3]
    assert look.tags == {
        "runtime": "old",
        "machine": "here",
        "test": "environment",
        "part": "environment",
    }
    assert shell.tags == {"runtime": "old", "machine": "here", "test": "a.sh", "part": "test"}
    assert look.processes[0].command == ("python", f"{later('folder')}/surroundings.py")
    assert "import json" in look.files["surroundings.py"]
    # Whatever becomes of it, no test has failed.
    assert (look.is_soft, shell.is_soft) == (True, False)
    assert shell.processes[0].command == "sh a.sh"
    assert (python.processes[0].command, python.timeout) == ("python a.py", 60)
    assert shell.place == f"{folder}/matrix.yaml:4:9"


def test_needs_decide_where_something_runs(folder: Path) -> None:
    plan = planned(
        folder,
        f"{TWO}tests: [{{run: a.sh, needs: odd}}, {{run: a.py, needs: -odd}}]\n",
    )
    assert reasons(plan) == {
        "old@here@a.sh": "needs odd, which here does not have",
        "old@here@a.py": "",
        "old@far@a.sh": "",
        "old@far@a.py": "must not have odd, which far has",
        "new@here@a.sh": "needs odd, which here does not have",
        "new@here@a.py": "",
        "new@far@a.sh": "",
        "new@far@a.py": "must not have odd, which far has",
    }


@pytest.mark.parametrize(
    ("machines", "needs", "complaint"),
    [
        ("{here: local}", "gpuu", "matrix.yaml:4:28: no machine has or excludes `gpuu`: did you mean gpu?"),
        ("{here: local}", "-gpuu", "matrix.yaml:4:28: no machine has or excludes `gpuu`: did you mean gpu?"),
        ("{here: local}", "[gpu, avx521]", "matrix.yaml:4:34: no machine has or excludes `avx521`: did you mean avx512?"),
        ("{here: {features: [infiniband]}}", "infiniban", "matrix.yaml:4:28: no machine has or excludes `infiniban`: did you mean infiniband?"),
        ("{here: local}", "quux", "matrix.yaml:4:28: no machine has or excludes `quux`: write it, or -quux, into `features` of a machine"),
    ],
)  # fmt: skip
def test_a_need_that_no_machine_says_anything_of_is_a_mistake(
    folder: Path, machines: str, needs: str, complaint: str
) -> None:
    text = (
        f"runtimes: {{a: current}}\nmachines: {machines}\ntests: [{{run: a.sh, needs: {needs}}}]\n"
    )
    with pytest.raises(InputError) as caught:
        planned(folder, text)
    assert str(caught.value) == f"{folder}/{complaint}"


def test_needs_of_runtimes_are_looked_at_too(folder: Path) -> None:
    text = "runtimes: {a: {runtime: current, needs: gpuu}}\ntests: [a.sh]\n"
    with pytest.raises(InputError, match=r"matrix.yaml:2:41: no machine has or excludes `gpuu`"):
        planned(folder, text)


@pytest.mark.parametrize(
    "need", ["gpu", "-avx512", "avx512_vnni", "sse4_2", "arm64", "sve2", "linux"]
)
def test_what_machines_are_looked_at_for_may_be_needed_anywhere(folder: Path, need: str) -> None:
    planned(folder, f"runtimes: {{a: current}}\ntests: [a.py, {{run: a.sh, needs: {need}}}]\n")


@pytest.mark.parametrize("word", ["odd", "-odd"])
def test_what_a_compute_or_a_machine_says_it_has_or_lacks_may_be_needed(
    folder: Path, word: str
) -> None:
    tests = "tests: [a.py, {run: a.sh, needs: odd}]\n"
    planned(folder, f"runtimes: {{a: current}}\nmachines: {{m: {{features: [{word}]}}}}\n{tests}")
    site = f'[compute.other]\nbackend = "ssh"\nhosts = ["x"]\nfeatures = ["{word}"]\n'
    (folder / "rankwise.toml").write_text(site)
    planned(folder, f"runtimes: {{a: current}}\n{tests}")


def test_what_is_missing_here_is_not_run_unless_the_document_leaves_it_out(folder: Path) -> None:
    plan = planned(
        folder,
        "runtimes: {old: {runtime: current, needs: -gpu}, new: current}\n"
        'machines: {big: {features: [gpu, "mem>=9999999"]}}\ntests: [a.sh]\n',
    )
    assert reasons(plan) == {
        "old@big@a.sh": "must not have gpu, which big has",
        "new@big@a.sh": "!gpu was not found on this machine",
    }
    assert all(task.tags["part"] == "test" for task in plan.tasks)
    assert "machine big: gpu was not found on this machine" in plan.notices


def test_a_cluster_that_does_not_answer_is_not_run_with_its_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "rankwise.toml").write_text('[compute.cluster]\nbackend = "slurm"\n')
    monkeypatch.setenv("PATH", str(folder))
    plan = planned(folder, "runtimes: {a: current}\nmachines: {c: cluster}\ntests: [a.sh]\n")
    assert reasons(plan) == {
        "a@c@a.sh": "!Slurm does not answer here: sinfo is not on PATH: this machine has no Slurm, or it needs a module"
    }
    sinfo = folder / "sinfo"
    sinfo.write_text("#!/bin/sh\necho first >&2\necho 'sinfo: fatal: no answer' >&2\nexit 1\n")
    sinfo.chmod(0o755)
    plan = planned(folder, "runtimes: {a: current}\nmachines: {c: cluster}\ntests: [a.sh]\n")
    said = "!Slurm does not answer here: sinfo: fatal: no answer"
    assert reasons(plan) == {"a@c@a.sh": said}


def test_what_is_left_out_stays_with_its_reason_and_add_brings_it_back(folder: Path) -> None:
    text = (
        f"{TWO}tests: [a.sh, a.py]\n"
        "exclude:\n- {when: {runtime: n*, machine: far}, reason: too new}\n"
        "- {when: {test: a.py, machine: [here, x*]}, reason: too slow}\n"
    )
    assert {key: why for key, why in reasons(planned(folder, text)).items() if why} == {
        "old@here@a.py": "too slow",
        "new@here@a.py": "too slow",
        "new@far@a.sh": "too new",
        "new@far@a.py": "too new",
    }
    added = planned(folder, f"{text}add: [{{runtime: new, machine: far, tests: a.sh}}]\n")
    assert reasons(added)["new@far@a.sh"] == ""
    assert reasons(added)["new@far@a.py"] == "too new"


def test_a_cell_that_is_there_cannot_be_added(folder: Path) -> None:
    text = f"{TWO}tests: [a.sh]\nadd: [{{runtime: old, machine: here}}]\n"
    with pytest.raises(InputError) as caught:
        planned(folder, text)
    assert str(caught.value) == (
        f"{folder}/matrix.yaml:5:7: old on here is a cell already: `set` changes what is there"
    )


def test_a_runtime_may_be_for_some_machines_only(folder: Path) -> None:
    text = (
        "runtimes: {a: {runtime: current, machines: h*}, b: current}\n"
        "machines: {here: local, far: local}\ntests: [a.sh]\n"
    )
    assert reasons(planned(folder, text))["a@far@a.sh"] == "a is for other machines: h*"
    added = planned(folder, f"{text}add: [{{runtime: a, machine: far}}]\n")
    assert reasons(added)["a@far@a.sh"] == ""


def test_tests_may_belong_to_some_runtimes(folder: Path) -> None:
    plan = planned(
        folder,
        "runtimes: {old: {runtime: current, tests: [a.py]}, new: current}\n"
        "tests: [a.sh, {run: plain.ipynb, runtimes: n*}]\n",
    )
    assert list(the_tests(plan)) == [
        "old@local@a.sh",
        "old@local@a.py",
        "new@local@a.sh",
        "new@local@plain.ipynb",
    ]
    assert plan.task("old@local@a.py").place == f"{folder}/matrix.yaml:2:44"


def test_settings_change_cells_the_later_ones_last(folder: Path) -> None:
    plan = planned(
        folder,
        f"{TWO}environment_variables: {{A: 1, B: 1}}\ntimeout: 9\ntests: [a.sh, a.py]\nset:\n"
        "- {when: {machine: far}, environment_variables: {B: 2}, timeout: 7, soft_fail: true}\n"
        "- {when: {machine: far, test: a.py}, soft_fail: false, environment_variables: {B: 3}}\n"
        "- {when: {runtime: old, test: a.py}, skip: not now}\n",
    )
    far, here = plan.task("new@far@a.sh"), plan.task("new@here@a.sh")
    assert (far.environment["A"], far.environment["B"], far.timeout) == ("1", "2", 7)
    assert (here.environment["B"], here.timeout) == ("1", 9)
    assert (far.is_soft, far.tags["soft_fail"]) == (True, "true")
    python = plan.task("new@far@a.py")
    assert (python.is_soft, python.environment["B"]) == (False, "3")
    assert "soft_fail" not in python.tags
    assert plan.task("old@far@a.py").skip == "not now"


def test_conditions_on_tests_that_are_not_there_are_complained_of(folder: Path) -> None:
    with pytest.raises(InputError) as caught:
        planned(folder, f"{TWO}tests: [a.sh]\nset: [{{when: {{test: a.hs}}, timeout: 1}}]\n")
    assert str(caught.value) == (
        f"{folder}/matrix.yaml:5:21: there is no test `a.hs`: did you mean `a.sh`?"
    )


def test_a_machine_says_what_tests_have_there_and_how_many_run_at_once(folder: Path) -> None:
    plan = planned(
        folder,
        "runtimes: {a: current}\n"
        "machines: {here: {resources: {cores: 2, memory: 1Gi}, max_parallel: 3}}\n"
        "tests: [a.sh, {run: a.py, requires: {cores: 1}}, plain.ipynb]\n",
    )
    shell, python = plan.task("a@here@a.sh"), plan.task("a@here@a.py")
    notebook = plan.task("a@here@plain.ipynb")
    assert shell.resources == notebook.resources == Resources(cores=2, memory=2**30)
    assert python.resources == Resources(cores=1, memory=2**30)
    assert {(task.lane, task.lane_width) for task in plan.tasks} == {("machine here", 3)}


def test_a_notebook_is_run_by_our_python_with_a_kernel_of_the_runtime(folder: Path) -> None:
    plan = planned(
        folder,
        "runtimes: {a: {requirements: [numpy]}, b: {requirements: [jupyterlab]}, c: current}\n"
        "notebooks: {cell_timeout: 30, pdf: true}\ntimeout: 60\n"
        "tests: [{run: plain.ipynb, notebooks: {as_script: true, parameters: {n: 3}}}]\n",
    )
    task = plan.task("a@local@plain.ipynb")
    command = task.processes[0].command
    assert isinstance(command, tuple)
    words = " ".join(command)
    for part in ("plain.ipynb", "--cell-timeout 30", "--pdf", "--as-script", '{"n": 3}'):
        assert part in words
    assert f"--out {later('folder')}" in words
    assert task.results == "results.xml"
    # Twice its own limit, since it is run twice, and some time to end.
    assert task.timeout == 240
    assert task.runtime.requirements == ("numpy", "ipykernel")
    assert plan.task("b@local@plain.ipynb").runtime.requirements == ("jupyterlab",)
    assert [one for one in plan.notices if "ipykernel" in one] == [
        "runtime a: ipykernel is added, for the notebooks in it"
    ]


def test_where_nothing_of_ours_is_the_runtimes_own_python_runs_notebooks(folder: Path) -> None:
    plan = planned(folder, "runtimes: {a: {image: some/image}}\ntests: [plain.ipynb]\n")
    task = plan.task("a@local@plain.ipynb")
    command = task.processes[0].command
    assert command[:4] == ("python", "-B", f"{later('folder')}/program", "plain.ipynb")
    assert "nbclient" in task.files["program/execution.py"]
    assert (task.runtime.kind, task.runtime.image) == ("container", "some/image")


def test_a_notebook_that_needs_a_person_is_not_run(folder: Path) -> None:
    plan = planned(folder, "runtimes: {a: current}\ntests: [asks.ipynb]\n")
    assert reasons(plan) == {"a@local@asks.ipynb": "!it needs a person first: cell 1 calls input()"}
    assert len(plan.tasks) == 1


def test_patterns_find_scripts_and_notebooks(folder: Path) -> None:
    (folder / "more").mkdir()
    (folder / "more" / "odd [1].py").write_text("# rankwise: timeout=5\n")
    plan = planned(folder, "runtimes: {a: current}\ntests: [{files: '**/*.[pi]*'}]\n")
    assert {task.tags["test"]: task.timeout for task in the_tests(plan).values()} == {
        "a.py": 60,
        "asks.ipynb": None,
        "more-odd-1-.py": 5,
        "plain.ipynb": None,
    }
    command = plan.task("a@local@more-odd-1-.py").processes[0].command
    assert command == "python 'more/odd [1].py'"


def test_pytest_and_suites_run_in_every_cell(folder: Path) -> None:
    suite = "type: Suite\nenvironment: mine\ntests: [a.sh, {run: a.py, name: two, ranks: 2}]\n"
    (folder / "suite.yaml").write_text(suite)
    plan = planned(
        folder,
        "runtimes: {a: current, b: {modules: x}}\n"
        "tests: [{pytest: -k fast}, {suite: suite.yaml, environment_variables: {A: 1}}]\n",
    )
    assert [task.tags["test"] for task in the_tests(plan).values()] == 2 * [
        "pytest",
        "suite.yaml.a",
        "suite.yaml.two",
    ]
    assert plan.task("a@local@pytest").results == "results.xml"
    two = plan.task("b@local@suite.yaml.two")
    assert (two.width, two.runtime.modules, two.environment["A"]) == (2, ("x",), "1")
    assert two.place.startswith(f"{folder}/suite.yaml:3:")


def test_what_is_in_a_lock_counts_not_its_name(folder: Path) -> None:
    (folder / "one.txt").write_text("-r base.txt\nnumpy==1\n")
    (folder / "two.txt").write_text("-r base.txt\nnumpy==1\n")
    (folder / "base.txt").write_text("packaging\n")
    text = "runtimes: {a: {lock: one.txt}, b: {lock: two.txt}}\ntests: [plain.ipynb]\n"

    def digests() -> list[str]:
        return [task.runtime.lock_digest for task in the_tests(planned(folder, text)).values()]

    first, second = digests()
    assert first == second
    (folder / "base.txt").write_text("packaging>1\n")
    assert digests()[0] != first
    task = planned(folder, text).task("a@local@plain.ipynb")
    assert (task.runtime.lock, task.runtime.requirements) == (
        str(folder / "one.txt"),
        ("ipykernel",),
    )
    (folder / "base.txt").write_text("ipykernel==6\n")
    assert planned(folder, text).task("a@local@plain.ipynb").runtime.requirements == ()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "runtimes: {a: {lock: no.txt}}\ntests: [a.sh]\n",
            "/matrix.yaml:2:22: {folder}/no.txt: No such file or directory",
        ),
        (
            "runtimes: {a: current}\ntests: [plain2.ipynb]\n",
            "/matrix.yaml:3:9: there is no file plain2.ipynb: did you mean `plain.ipynb`?",
        ),
        (
            "runtimes: {a: current}\ntests: [{suite: matrix.yaml}]\n",
            "/matrix.yaml:3:9: {folder}/matrix.yaml is no suite, its type is Matrix",
        ),
        (
            "runtimes: {a: current}\ntests: [gone.sh]\n",
            "/matrix.yaml:3:9: there is no script gone.sh in {folder}",
        ),
    ],
)
def test_what_is_not_there_is_complained_of_where_it_is_named(
    folder: Path, text: str, complaint: str
) -> None:
    with pytest.raises(InputError) as caught:
        planned(folder, text)
    assert str(caught.value) == f"{folder}{complaint.replace('{folder}', str(folder))}"


def test_unknown_computes_and_runtimes_of_a_matrix_are_errors(folder: Path) -> None:
    with pytest.raises(InputError, match=r'compute "cluster" is not in'):
        planned(folder, "runtimes: {a: current}\nmachines: {c: cluster}\ntests: [a.sh]\n")
    with pytest.raises(InputError, match=r'runtime "torch" is not in'):
        planned(folder, "runtimes: {a: torch}\ntests: [a.sh]\n")
    path = folder / "matrix.yaml"
    path.write_text("type: Matrix\nruntimes: {a: current}\ntests: [a.sh]\n")
    with pytest.raises(InputError, match=r"--only machine=local"):
        plan_from([path], on="local")


def test_cells_are_chosen_by_what_they_have(folder: Path) -> None:
    text = f"{TWO}tests: [a.sh, a.py]\n"
    assert cells_to_run(planned(folder, text, "machine=f*,runtime=old").tasks) == [("old", "far")]
    chosen = planned(folder, text, "runtime=new,test=a.sh")
    # What a cell has around it is looked at with any of its tests.
    assert [task.key for task in chosen.tasks] == [
        "new@here@environment",
        "new@here@a.sh",
        "new@far@environment",
        "new@far@a.sh",
    ]


@pytest.mark.parametrize(
    ("only", "complaint"),
    [
        ("machin=here", "no task has a machin: did you mean `machine`?"),
        ("machine=hree", "there is no machine hree: did you mean `here`?"),
        ("machine=", "must be such as runtime=NAME,machine=NAME"),
        ("part=environment,test=a.sh", "no task matches all conditions"),
    ],
)
def test_a_choice_that_means_nothing_is_complained_of(
    folder: Path, only: str, complaint: str
) -> None:
    with pytest.raises(InputError) as caught:
        planned(folder, f"{TWO}tests: [a.sh]\n", only)
    assert str(caught.value) == f"--only {only}: {complaint}"


def test_of_what_failed_the_whole_cell_is_run_again(folder: Path) -> None:
    path = folder / "matrix.yaml"
    path.write_text(f"type: Matrix\n{TWO}tests: [a.sh, a.py]\n")
    plan, _ = plan_from([path], wanted=Selection(failed={"new@far@a.py", "old@here@environment"}))
    # The look around that failed is no test that failed.
    assert cells_to_run(plan.tasks) == [("new", "far")]
    assert "new@far@a.sh" in [task.key for task in plan.tasks]
    assert any("cells did not pass in the last run" in one for one in plan.notices)


# What machines have


def test_amounts_are_compared_and_words_are_looked_up() -> None:
    has = Features(words=frozenset({"gpu"}), amounts={"mem": 64.2, "gpus": 2})
    assert [has.lacks(need) for need in ("gpu", "-avx512", "mem>=64", "gpus == 2")] == [""] * 4
    assert has.lacks("mem>=128") == "needs mem>=128, and it has 64.2"
    assert has.lacks("cores>=2", who="far") == "needs cores>=2, which is unknown for far"
    assert has.lacks("-gpu") == "must not have gpu, which it has"


def test_this_machine_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("model name: x\nflags\t: fpu avx2 avx512f\n")
    here = found_here(Resources(cores=2, memory=8 * 10**9), root=tmp_path)
    assert {"avx2", "avx512", "avx512f", "linux"} <= here.words
    assert "gpu" not in here.words
    assert here.amounts == {"mem": 8.0, "cores": 2.0, "gpus": 0.0}
    assert found_here(Resources(gpus=1), root=tmp_path / "none").lacks("gpu") == ""


def test_what_people_say_of_this_machine_is_checked_as_far_as_it_can_be(tmp_path: Path) -> None:
    here = found_here(Resources(cores=2, memory=8 * 10**9), root=tmp_path)
    has = check_here(["licence", "mem>=4", "avx512"], here)
    assert has.missing == "avx512 was not found on this machine"
    assert not has.lacks("licence")
    assert not has.lacks("avx512")
    assert check_here(["mem>=64"], here).missing == "mem>=64 was not found on this machine"
    assert check_here(["licence", "-gpu"], here).missing == ""


def test_of_other_machines_people_are_believed() -> None:
    has = stated(["mem>=64", "gpus=4"], Resources(cores=16))
    assert has.amounts == {"mem": 64.0, "gpus": 4.0, "cores": 16.0}
    assert "gpu" in has.words


def test_what_a_matrix_says_of_a_suite_counts_for_its_tests(folder: Path) -> None:
    (folder / "suite.yaml").write_text("type: Suite\nsecrets: [B]\ntests: [a.sh, a.py]\n")
    plan = planned(
        folder,
        "runtimes: {a: current}\nsecrets: [A]\ntimeout: 9\n"
        "tests: [{suite: suite.yaml, timeout: 5, optional: true}]\n",
    )
    shell, python = the_tests(plan).values()
    assert (shell.timeout, python.timeout) == (5, 60)
    assert (shell.secrets, shell.is_optional) == (("A", "B"), True)


def test_an_added_cell_names_tests_that_are_there(folder: Path) -> None:
    text = (
        "runtimes: {a: {runtime: current, machines: m}}\nmachines: {m: local, n: local}\n"
        "tests: [a.sh]\nadd: [{runtime: a, machine: n, tests: a.hs}]\n"
    )
    with pytest.raises(
        InputError, match=r"yaml:5:39: there is no test `a.hs`: did you mean `a.sh`"
    ):
        planned(folder, text)


def test_an_image_may_be_a_file_in_the_home_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    plan = planned(folder, "runtimes: {a: {image: ~/a.sif}}\ntests: [echo]\n")
    assert {task.runtime.image for task in plan.tasks} == {f"{folder}/a.sif"}


def test_settings_count_for_single_files_of_a_pattern(folder: Path) -> None:
    (folder / "b.py").write_text("print()\n")
    (folder / "c.py").write_text("print()\n")
    setting = "{when: {test: c.py}, timeout: 5, environment_variables: {X: y}}"
    text = f"runtimes: {{a: current}}\ntests: [{{files: '[bc].py'}}]\nset: [{setting}]\n"
    first, second = the_tests(planned(folder, text)).values()
    assert (first.timeout, first.environment) == (None, {})
    assert (second.timeout, second.environment) == (5, {"X": "y"})
