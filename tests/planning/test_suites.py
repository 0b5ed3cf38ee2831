"""Plans of suites."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankwise.errors import InputError
from rankwise.git import git
from rankwise.plan import Check, Plan, Resources, Task
from rankwise.planning import plan_from


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a_test.py").write_text("# rankwise: ranks=4 gpus=2 timeout=60\n")
    (tmp_path / "b_test.py").write_text("print()\n")
    (tmp_path / "c.sh").write_text("# rankwise: optional=true name=sea\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a_test.py").write_text("# rankwise: timeout=5\n")
    return tmp_path


def planned(folder: Path, tests: str, head: str = "") -> Plan:
    path = folder / "suite.yaml"
    path.write_text(f"type: Suite\n{head}tests:\n{tests}")
    return plan_from([path])[0]


def only(folder: Path, tests: str, head: str = "") -> Task:
    (task,) = planned(folder, tests, head).tasks
    return task


def test_a_script_becomes_a_command_and_has_its_name(folder: Path) -> None:
    task = only(folder, "- b_test.py --fast\n")
    assert (task.key, task.folder) == ("b_test", str(folder))
    assert task.processes[0].command == "python b_test.py --fast"
    assert task.place == f"{folder}/suite.yaml:3:3"


def test_a_script_of_the_shell_is_a_script_too(folder: Path) -> None:
    task = only(folder, "- c.sh\n")
    assert (task.key, task.processes[0].command) == ("sea", "sh c.sh")
    assert task.is_optional


@pytest.mark.parametrize("line", ["python a_test.py", "a_test.py", "python3 -u a_test.py x"])
def test_what_a_script_says_of_itself_counts(folder: Path, line: str) -> None:
    task = only(folder, f"- {line}\n")
    assert (task.width, task.timeout, task.resources.gpus) == (4, 60, 2)
    command = task.processes[0].command
    assert isinstance(command, str)
    assert command.startswith("mpiexec -n 4 ")


def test_the_entry_of_a_script_goes_before_its_header(folder: Path) -> None:
    task = only(
        folder,
        "- {run: a_test.py, ranks: 2, requires: {cores: 3}, timeout: 1m, launcher: pytorch}\n",
    )
    assert [process.rank for process in task.processes] == [0, 1]
    assert (task.timeout, task.resources.gpus, task.resources.cores) == (60, 2, 3)


def test_what_found_scripts_say_goes_before_the_pattern(folder: Path) -> None:
    tasks = planned(folder, "- {files: '**/*_test.py', timeout: 99, ranks: 2}\n").tasks
    assert [(task.key, task.width, task.timeout) for task in tasks] == [
        ("a_test", 4, 60),
        ("b_test", 2, 99),
        ("more-a_test", 2, 5),
    ]


def test_values_of_the_suite_count_where_a_test_says_nothing(folder: Path) -> None:
    head = "timeout: 7\nenvironment_variables: {A: 1, B: 1}\nsecrets: [TOKEN]\n"
    task = only(folder, "- {run: b_test.py, environment_variables: {B: 2}}\n", head)
    assert task.timeout == 7
    assert (task.environment["A"], task.environment["B"]) == ("1", "2")
    assert task.secrets == ("TOKEN",)


def test_names_are_unique_and_those_that_are_given_stay(folder: Path) -> None:
    tests = "- b_test.py\n- b_test.py\n- {run: b_test.py 3, name: b_test}\n- b_test.py 4\n"
    assert [task.key for task in planned(folder, tests).tasks] == [
        *("b_test-2", "b_test-3", "b_test", "b_test-4")
    ]


def test_a_command_with_a_launcher_of_its_own_is_known_as_such(folder: Path) -> None:
    task = only(folder, "- mpirun -np 3 python b_test.py\n")
    assert task.width == 3
    assert "rankwise-rank" in str(task.processes[0].command)


def test_ranks_may_be_on_several_nodes(folder: Path) -> None:
    task = only(folder, "- {run: b_test.py, ranks: 4, nodes: 2, requires: {gpus: 4}}\n")
    assert (task.nodes, task.width, task.resources.gpus) == (2, 4, 4)


def test_pytest_writes_its_results_into_the_folder_of_the_attempt(folder: Path) -> None:
    task = only(folder, "- pytest: tests/ --n-workers=3 -k 'a b'\n")
    assert (task.key, task.results, task.width) == ("pytest-tests", "results.xml", 3)
    command = str(task.processes[0].command)
    assert command.startswith("python -m pytest tests/ --n-workers=3 -k 'a b' --junitxml=")
    assert command.endswith("/results.xml")


def test_a_program_with_cases_is_run_so_that_they_have_durations(folder: Path) -> None:
    tests = "- {run: b_test.py, cases: 'Running:'}\n- {run: b_test.py, cases: x, environment_variables: "
    first, second = planned(folder, f"{tests}{{PYTHONUNBUFFERED: ''}}}}\n").tasks
    assert first.results == "cases.log"
    assert first.environment["RANKWISE_CASES"] == "Running:"
    assert first.environment["PYTHONUNBUFFERED"] == "1"
    assert second.environment["PYTHONUNBUFFERED"] == ""
    with pytest.raises(InputError, match=r"tests of pytest are shown one by one without it"):
        planned(folder, "- {pytest: tests, cases: 'Running:'}\n")


def test_tests_may_work_in_copies_of_a_folder(folder: Path) -> None:
    task = only(folder, "- a_test.py\n", "code: more\n")
    assert (task.code, task.timeout) == (str(folder / "more"), 5)
    task = only(folder, "- a_test.py\n", "folder: more\n")
    assert (task.code, task.folder) == ("", str(folder / "more"))


def test_checks_are_planned_and_streams_kept_apart_only_where_needed(folder: Path) -> None:
    tests = (
        "- {run: b_test.py, checks: [x]}\n- {run: b_test.py, checks: [{absent: x, on: stderr}]}\n"
    )
    first, second = planned(folder, tests).tasks
    assert first.checks == (Check(kind="contains", what="x"),)
    assert "RANKWISE_STREAMS" not in first.environment
    assert second.environment["RANKWISE_STREAMS"] == "apart"


def test_bare_lines_are_planned_as_others_are(folder: Path) -> None:
    tests = "- echo one\n- echo two\n- {run: echo two, optional: false}\n- echo $RANK NODE_RANK\n"
    one, two, spelt_out, with_variable = planned(folder, tests).tasks
    assert (one.key, one.processes[0].command) == ("echo-one", "echo one")
    assert two.processes == spelt_out.processes
    assert two.environment == spelt_out.environment
    assert two.place.endswith("suite.yaml:4:3")
    assert with_variable.processes[0].command == "echo $RANK 0"


@pytest.mark.parametrize(
    ("tests", "complaint"),
    [
        (
            "- d_test.py\n",
            "suite.yaml:3:3: there is no script d_test.py: did you mean `b_test.py`?",
        ),
        ("- python -u nothere.py\n", "suite.yaml:3:3: there is no script nothere.py in "),
        ("- files: '*_nothing.py'\n", "suite.yaml:3:10: no file in "),
        ("- files: '/etc/*'\n", "suite.yaml:3:10: this is not a pattern of files: "),
        (
            "- {run: 'true', checks: [{python: 'b_test.py:f'}]}\n",
            "suite.yaml:3:35: {folder}/b_test.py has no function `f`",
        ),
        (
            "- {run: 'true', checks: [{python: 'no.py:f'}]}\n",
            "suite.yaml:3:35: {folder}/no.py cannot be read: No such file",
        ),
    ],
)
def test_what_is_not_there_is_told_with_its_place(folder: Path, tests: str, complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        planned(folder, tests)
    assert complaint.replace("{folder}", str(folder)) in str(caught.value)


def test_a_folder_that_is_not_there_is_told_once(folder: Path) -> None:
    with pytest.raises(InputError) as caught:
        planned(folder, "- a_test.py\n- b_test.py\n", "code: nowhere\n")
    assert str(caught.value) == f"{folder}/suite.yaml:2:7: there is no folder {folder}/nowhere"


@pytest.mark.parametrize(
    "text", ["from x import f\n", "f = lambda: 1\n", "if True:\n  def f(): pass\n"]
)
def test_a_function_may_come_from_elsewhere(folder: Path, text: str) -> None:
    (folder / "checks.py").write_text(text)
    assert only(folder, "- {run: 'true', checks: [{python: 'checks.py:f'}]}\n").checks


def test_found_scripts_are_planned_as_others_are(folder: Path) -> None:
    (folder / "d_test.py").write_text("# rankwise: ranks=4 gpus=2 timeout=60\n")
    (folder / "odd $name_test.py").write_text("# rankwise: ranks=4 gpus=2 timeout=60\n")
    first, _, second, odd = planned(folder, "- files: '*_test.py'\n").tasks
    alone = only(folder, "- d_test.py\n")
    assert (second.key, second.processes, second.files) == ("d_test", alone.processes, alone.files)
    assert (second.width, second.timeout, second.resources) == (4, 60, alone.resources)
    assert "a_test.py" in str(first.processes[0].command)
    assert "'odd $name_test.py'" in str(odd.processes[0].command)


@pytest.mark.parametrize(
    ("there", "requires", "expected"),
    [
        (3, "", (3, 3)),
        (3, ", requires: {gpus: 4}", (3, 4)),
        (0, "", (1, 1)),
        (0, ", requires: {gpus: 2}", (1, 2)),
    ],
)
def test_there_are_as_many_ranks_as_gpus_where_that_is_asked_for(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: int,
    requires: str,
    expected: tuple[int, int],
) -> None:
    monkeypatch.setattr("rankwise.planning.jobs.machine", lambda: Resources(cores=8, gpus=there))
    task = only(folder, f"- {{run: python b_test.py, ranks: gpus{requires}}}\n")
    # With too few GPUs it is not run, and its reason has both numbers.
    assert (task.width, task.resources.gpus) == expected
    (folder / "b_test.py").write_text("# rankwise: ranks=gpus\n")
    assert only(folder, "- b_test.py\n").resources.gpus == max(1, there)


def test_ranks_are_a_number_or_gpus(folder: Path) -> None:
    with pytest.raises(InputError, match="must be a whole number or `gpus`, not 'gpu'"):
        only(folder, "- {run: b_test.py, ranks: gpu}\n")


@pytest.mark.parametrize("header", ["ranks=3 nodes=2", "nodes=2", "ranks=1 nodes=2"])
def test_ranks_that_a_script_wants_must_be_shared_evenly_by_its_nodes(
    folder: Path, header: str
) -> None:
    (folder / "b_test.py").write_text(f"# rankwise: {header}\n")
    for entry in ("b_test.py", "files: b_*.py"):
        with pytest.raises(InputError) as found:
            planned(folder, f"- {entry}\n")
        assert str(found.value) == (
            f"{folder}/suite.yaml:3:3: `ranks` must be a multiple of `nodes` (2)"
        )


def test_each_launcher_is_asked_whose_mpi_it_is(folder: Path) -> None:
    says = {"one": "mpirun (Open MPI) 5.0.0", "two": "HYDRA build details:\n Version: 4.2"}
    for name, text in says.items():
        (folder / name).mkdir()
        (folder / name / "mpirun").write_text(f"#!/bin/sh\necho '{text}'\n")
        (folder / name / "mpirun").chmod(0o755)
    lines = [f"- {folder}/{name}/mpirun --oversubscribe -np 2 hostname\n" for name in says]
    together = planned(folder, "".join(lines)).tasks
    assert [task.notes for task in together] == [only(folder, line).notes for line in lines]
    assert together[0].notes != together[1].notes


def test_a_number_of_workers_with_thousands_of_digits_is_no_fault_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(f"type: Suite\ntests:\n- pytest: x.py --n-workers={'9' * 5000}\n")
    assert [task.width for task in plan_from([path])[0].tasks] == [0]


ME = ("-c", "user.name=me", "-c", "user.email=me@example.org")


@pytest.fixture
def origin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository in the folder of the document, with a script of four ranks."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    place = folder / "origin"
    git("init", "--quiet", "--initial-branch=main", str(place))
    (place / "here_test.py").write_text("# rankwise: ranks=4 timeout=60\n")
    git("add", ".", folder=place)
    git(*ME, "commit", "--quiet", "--message", "tests", folder=place)
    return place


def test_tests_of_a_repository_are_planned_from_one_commit(folder: Path, origin: Path) -> None:
    plan = planned(folder, "- files: '*_test.py'\n", AT)
    (task,) = plan.tasks
    commit = git("rev-parse", "HEAD", folder=origin).strip()
    assert (task.key, task.width, task.timeout) == ("here_test", 4, 60)
    assert (task.repository, task.commit) == (str(origin), commit)
    assert plan.tags == {"git.repository": str(origin), "git.commit": commit}
    assert plan.notices == (f"repository origin: its default branch is {commit[:12]}",)


AT = "repository: origin\n"
MISTAKES = {
    AT + "folder: more\n": "suite.yaml:3:1: tests run in a clone of `repository` or in `folder`",
    AT + "code: more\n": "suite.yaml:3:1: tests run in a clone of `repository` or in `code`",
    "repository: {url: origin, ref: mainn}\n": (
        "suite.yaml:2:32: origin: the repository has no branch, tag or commit 'mainn'"
    ),
    "repository: {url: nowhere}\n": "suite.yaml:2:13: nowhere: git fetch: fatal: 'nowhere'",
    "repository: {url: origin, ref: $NO_SUCH}\n": (
        "suite.yaml:2:13: origin: $NO_SUCH: no value for the variable 'NO_SUCH'"
    ),
    "repository: {url: 'https://me:plain@host/x'}\n": "suite.yaml:2:19: `repository.url` must",
    "repository: {url: --upload-pack=x}\n": "suite.yaml:2:19: `repository.url` must not begin with `-`",
    "repository: 'https://host/$MINE'\nsecrets: [MINE]\n": (
        "suite.yaml:2:13: https://host/$MINE: a secret goes only where https://user:$NAME@host"
    ),
    "outputs: ssh://me:plain@host/x\n": "suite.yaml:2:10: `outputs` must not",
    "outputs: nosuch://bucket\n": "suite.yaml:2:10: nosuch://bucket cannot be written to: ",
}


@pytest.mark.usefixtures("origin")
@pytest.mark.parametrize("head", MISTAKES)
def test_a_place_that_cannot_be_is_an_error_with_its_line(
    folder: Path, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "xyzzy-plugh")
    with pytest.raises(InputError, match=re.escape(MISTAKES[head])) as refused:
        planned(folder, "- b_test.py\n", head)
    assert "xyzzy" not in str(refused.value)


@pytest.mark.parametrize("place", ["{to: results}", "./results", "'file://{folder}/results'"])
def test_outputs_are_for_all_tests_and_a_folder_is_that_of_the_document(
    folder: Path, place: str
) -> None:
    head = f"outputs: {place.replace('{folder}', str(folder))}\n"
    plan = planned(folder, "- b_test.py\n- c.sh\n", head)
    assert [task.outputs for task in plan.tasks] == [str(folder / "results")] * 2
