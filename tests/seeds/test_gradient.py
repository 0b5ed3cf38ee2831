"""The page about testing Gradient's runtimes: its command lines, and what it wants to improve."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from environments import ROOT

from rankwise.git import git
from tests.acceptance.jobs import Shop, opened
from tests.notebooks.books import Cell, write_notebook
from tests.seeds.sentences import sentence
from tests.seeds.typed import type_in_shop

PAGE = "gradient-auto-testing"
GRADIENT = "a script with the words of Gradient's CLI, and folders for Notebooks"
EXAMPLE = ROOT / "examples" / "gradient"
MACHINES = ("P4000", "A4000")
ME = ("-c", "user.name=me", "-c", "user.email=me@example.org")
KEY = "the-key-of-the-project"
# Answers of an instance are asked for less often than by default: each is a start of a shell.
SLOWLY = 'backend = "command"\nlook_seconds = 2'


def commit_all(folder: Path) -> str:
    """Commit everything in a folder; return the commit."""
    git("add", ".", folder=folder)
    git(*ME, "commit", "--quiet", "--message", "tests", folder=folder)
    return git("rev-parse", "HEAD", folder=folder).strip()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """The example on the user's own machine, with a key: Gradient's CLI is that of the example."""
    folder = tmp_path / "it's mine"
    shutil.copytree(EXAMPLE, folder)
    git("init", "--quiet", "--initial-branch=main", str(folder / "tests"))
    commit_all(folder / "tests")
    site = (folder / "rankwise.toml").read_text()
    (folder / "rankwise.toml").write_text(site.replace('backend = "command"', SLOWLY))
    # The Python of the tests is that of the Notebooks, and `rankwise` is ours.
    (tmp_path / "bin").mkdir()
    for name in ("python3", "rankwise"):
        line = f'exec "{sys.executable}"{" -m rankwise.cli.main" * (name == "rankwise")} "$@"\n'
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}")
        (tmp_path / "bin" / name).chmod(0o755)
    places = map(str, (tmp_path / "bin", folder / "stand-in", os.environ["PATH"]))
    with opened(folder) as shop:
        shop.variables |= {
            "PATH": os.pathsep.join(places),
            "GRADIENT_CLOUD": str(tmp_path / "cloud"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "PAPERSPACE_API_KEY": KEY,
            "PROJECT_ID": "prj7x9",
            "WORKSPACE_REF": "",
        }
        yield shop
        assert list((tmp_path / "cloud").glob("n*")) == [], "a Notebook was not deleted"
        shop.wait_until_empty()


def calls(shop: Shop, verb: str) -> list[str]:
    """Return what the provider was asked to do with this word."""
    log = Path(shop.variables["GRADIENT_CLOUD"]) / "calls.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.removeprefix(f"{verb} ") for line in lines if line.startswith(f"{verb} ")]


def created(shop: Shop) -> list[dict[str, str]]:
    """Return the options with which each Notebook was created."""
    lines = [line.split() for line in calls(shop, "create")]
    return [dict(zip(line[::2], line[1::2], strict=True)) for line in lines]


def attempt_of(shop: Shop, run: str, key: str) -> Path:
    return shop.folder / ".rankwise" / "runs" / run / key / "1"


def change(shop: Shop, how: Callable[[str], str]) -> None:
    """Change the document of the example."""
    path = shop.folder / "runtimes.yaml"
    path.write_text(how(path.read_text()))


def states(shop: Shop, run: str) -> dict[str, str]:
    status = json.loads(shop.rankwise("status", run, "--json").output)
    return {
        task["key"]: task["state"]
        for task in status["tasks"]
        if not task["key"].endswith("@environment")
    }


@sentence(PAGE, ran="rankwise run many.yaml --list, and one of its cells")
def test_a_hundred_combinations_are_one_document(shop: Shop) -> None:
    """10+ runtimes and 10+ machine types give 100+ combinations: this automates the testing."""
    runtimes = ", ".join(f"runtime-{number}: current" for number in range(11))
    machines = ", ".join(f"machine-{number}: local" for number in range(11))
    text = (
        f"type: Matrix\nruntimes: {{{runtimes}}}\nmachines: {{{machines}}}\ntests: [echo hello]\n"
    )
    shop.write("many.yaml", text)
    listed = shop.rankwise("run", "many.yaml", "--list")
    assert "121 of 121 cells can run" in listed.output, listed
    said = shop.rankwise("run", "many.yaml", "--only", "runtime=runtime-7,machine=machine-3")
    assert said.exit_code == 0, said


@sentence(PAGE, ran="rankwise run runtimes.yaml", stand_in=GRADIENT)
def test_a_notebook_of_gradient_runs_each_valid_combination(shop: Shop) -> None:
    """Use the CLI to create and run Notebooks in each valid runtime+machine combination."""
    said = shop.rankwise("run", "runtimes.yaml")
    assert said.exit_code == 0, said
    assert {one["--machineType"] for one in created(shop)} == set(MACHINES)
    found = states(shop, "runtimes-1")
    ran = {key.rsplit("@", 1)[0] for key, state in found.items() if state == "passed"}
    assert ran == {"PyTorch-1.12@P4000", "PyTorch-1.12@A4000", "TensorFlow-2.9@P4000"}
    assert "no GPU that it knows" in shop.rankwise("status").output


LINES = """\
chmod 764 do_run_testing.sh
./do_run_testing.sh "PyTorch 1.12" "prj7x9"
"""
ONE_RUNTIME = [
    "PyTorch-1.12@{}@run_testing.ipynb",
    "PyTorch-1.12@{}@run_testing.py",
    "PyTorch-1.12@{}@run_testing.sh",
    "PyTorch-1.12@{}@run_testing_pt112.sh",
]


@pytest.fixture
def one_runtime(shop: Shop) -> Shop:
    """The shop after the two lines of the page: `./do_run_testing.sh "<runtime>" "<projectId>"`."""
    done = type_in_shop(shop, LINES)
    assert done.returncode == 0, done
    return shop


@sentence(PAGE, ran=" ; ".join(LINES.splitlines()), stand_in=GRADIENT)
@sentence(
    PAGE,
    ran=LINES.splitlines()[1],
    stand_in=GRADIENT,
    said="The script is invoked with a given runtime: R=1 creates just M Notebooks.",
)
@sentence(
    PAGE,
    ran=LINES.splitlines()[1],
    stand_in=GRADIENT,
    said="do_run_testing.sh calls everything else, on the user's own machine, by Gradient's CLI.",
)
@sentence(
    PAGE,
    ran=LINES.splitlines()[1],
    stand_in=GRADIENT,
    said="Papermill & Forego might improve the setting up of commands: they are in the document.",
)
@sentence(
    PAGE,
    ran=LINES.splitlines()[1],
    stand_in=GRADIENT,
    said="It is not required to clone the repository: it is brought to the Notebook, used there.",
)
@sentence(
    PAGE,
    ran=LINES.splitlines()[1],
    stand_in=GRADIENT,
    said="run_testing.sh, .py and .ipynb are for all Notebooks, specific/… for a runtime.",
)
def test_one_command_tests_a_runtime_on_all_machines(one_runtime: Shop) -> None:
    """Copy do_run_testing.sh to your machine and run it with a runtime and a project."""
    assert sorted(one["--machineType"] for one in created(one_runtime)) == sorted(MACHINES)
    assert {one["--projectId"] for one in created(one_runtime)} == {"prj7x9"}
    found = states(one_runtime, "runtimes-1")
    wanted = [name.format(machine) for machine in sorted(MACHINES) for name in ONE_RUNTIME]
    assert sorted(key for key, state in found.items() if state == "passed") == wanted
    # Each says in which Notebook it was: not here, and both had all files that they needed.
    for name in wanted:
        log = one_runtime.rankwise("logs", "--task", name).output
        assert "of PyTorch 1.12 in n" in log, log


WITH_OPTIONS = './do_run_testing.sh -c "cl5" -w "next" "TensorFlow 2.9" "prj7x9"'


@sentence(PAGE, ran=WITH_OPTIONS, stand_in=GRADIENT)
@sentence(
    PAGE,
    ran=WITH_OPTIONS,
    stand_in=GRADIENT,
    said="<workspaceRef> points to a non-master branch of the repository, aka. workspace.",
)
def test_another_cluster_and_another_branch_can_be_named(shop: Shop) -> None:
    """./do_run_testing.sh [-c "<clusterId>" -w "<workspaceRef>"] "<runtime>" "<projectId>"."""
    tests = shop.folder / "tests"
    git("checkout", "--quiet", "-b", "next", folder=tests)
    (tests / "run_testing.sh").write_text('echo "the next tests, at $(git rev-parse HEAD)"\n')
    commit = commit_all(tests)
    git("checkout", "--quiet", "main", folder=tests)
    # What is not committed is on the user's own machine alone.
    (tests / "run_testing.py").write_text("raise SystemExit('not committed')")
    done = type_in_shop(shop, f"chmod 764 do_run_testing.sh\n{WITH_OPTIONS}")
    assert done.returncode == 0, done
    (one,) = created(shop)
    assert (one["--clusterId"], one["--workspaceRef"]) == ("cl5", "next")
    # It is a clone in the Notebook, at the commit that the run has recorded.
    log = shop.rankwise("logs", "--task", "TensorFlow-2.9@P4000@run_testing.sh").output
    assert f"the next tests, at {commit}" in log, log
    assert f"repository tests: next is {commit[:12]}" in done.stdout, done
    status = json.loads(shop.rankwise("status", "runtimes-1", "--json").output)
    assert status["tags"]["git.commit"] == commit
    assert commit[:8] in shop.rankwise("report", "runtimes-1", "--html", "-").output
    # Only what was made there came back, not the clone.
    came = attempt_of(shop, "runtimes-1", "TensorFlow-2.9@P4000@run_testing.sh") / "nodes"
    assert not [path for path in came.rglob("*") if path.is_file()]


@sentence(PAGE, ran='./do_run_testing.sh -w "nxet" …', stand_in=GRADIENT)
def test_a_branch_that_does_not_exist_is_an_error_with_its_line(shop: Shop) -> None:
    """<workspaceRef> must exist."""
    done = type_in_shop(shop, './do_run_testing.sh -w "nxet" "TensorFlow 2.9" "prj7x9"')
    assert done.returncode == 2, done
    why = "tests: the repository has no branch, tag or commit 'nxet'"
    assert re.search(rf"runtimes\.yaml:\d+:\d+: {why}", done.stderr), done
    assert not created(shop)


@sentence(PAGE, ran="rankwise run runtimes.yaml", stand_in=GRADIENT)
def test_without_a_key_nothing_is_green_and_a_key_is_kept_nowhere(shop: Shop) -> None:
    """An API key is set to access the Project."""
    del shop.variables["PAPERSPACE_API_KEY"]
    said = shop.rankwise("run", "runtimes.yaml", "--only", "test=run_testing.sh")
    assert said.exit_code == 2, said
    assert "no value for the secret PAPERSPACE_API_KEY" in said.errors, said
    shop.variables["PAPERSPACE_API_KEY"] = KEY
    (shop.folder / "tests" / "run_testing.sh").write_text('echo "key: $PAPERSPACE_API_KEY"\n')
    commit_all(shop.folder / "tests")
    said = shop.rankwise("run", "runtimes.yaml", "--only", "test=run_testing.sh")
    assert said.exit_code == 0, said
    log = shop.rankwise("logs", "--task", "PyTorch-1.12@P4000@run_testing.sh").output
    assert "key: ***" in log, log
    places = (shop.folder / ".rankwise", shop.folder.parent / "cache", shop.folder.parent / "cloud")
    kept = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert not [path for path in kept if KEY.encode() in path.read_bytes()]


@sentence(PAGE, ran="rankwise run many.yaml without a terminal")
def test_many_notebooks_are_asked_for_first(shop: Shop) -> None:
    """WARNING: this has the potential to create a lot of Notebooks, up to R*M."""
    runtimes = ", ".join(f"runtime-{number}: current" for number in range(26))
    machines = "P4000: P4000, A4000: A4000"
    text = (
        f"type: Matrix\nruntimes: {{{runtimes}}}\nmachines: {{{machines}}}\ntests: [echo hello]\n"
    )
    shop.write("many.yaml", text)
    said = shop.rankwise("run", "many.yaml")
    assert said.exit_code == 2, said
    assert "52 cells are more than 50" in said.errors, said
    assert not created(shop)


@sentence(PAGE, ran="rankwise run runtimes.yaml", stand_in=GRADIENT)
@sentence(
    PAGE,
    ran="rankwise run runtimes.yaml",
    stand_in=GRADIENT,
    said="A subscription allows a number of Notebooks: one for each machine, if not set otherwise.",
)
def test_a_notebook_of_gradient_serves_all_runtimes(shop: Shop) -> None:
    """Nice to have: one Notebook that runs many combinations, to avoid creating as many.

    One for each machine runs all runtimes, one after the other.
    """
    change(shop, lambda text: text.partition("exclude:")[0])
    said = shop.rankwise("run", "runtimes.yaml", "--only", "test=run_testing.sh")
    assert said.exit_code == 0, said
    assert len(states(shop, "runtimes-1")) == 4
    assert sorted(one["--machineType"] for one in created(shop)) == sorted(MACHINES)
    assert "instances: 2 made, 2 deleted" in said.output, said
    page = shop.rankwise("report", "runtimes-1", "--html", "-").output
    assert "2 made, 2 deleted" in page


@sentence(PAGE, ran="rankwise validate runtimes.yaml, and a machine more in rankwise.toml")
@sentence(
    PAGE,
    ran="rankwise run runtimes.yaml --list",
    said="Better framework: YAML files may improve upon the master shell script.",
)
def test_settings_are_in_files_of_their_own(shop: Shop) -> None:
    """Runtimes and machines are hardwired in the script: use separate configuration files."""
    assert shop.rankwise("validate", "runtimes.yaml", "--strict").exit_code == 0
    site = shop.folder / "rankwise.toml"
    _, _, table = site.read_text().partition("[compute.A4000]")
    site.write_text(f"{site.read_text()}\n[compute.A100-80G]{table.replace('A4000', 'A100-80G')}")
    change(shop, lambda text: text.replace("A4000: A4000}", "A4000: A4000, A100-80G: A100-80G}"))
    listed = shop.rankwise("run", "runtimes.yaml", "--list", "--strict")
    assert listed.exit_code == 0, listed
    assert "5 of 6 cells can run" in listed.output, listed


@sentence(PAGE, ran="rankwise run many.yaml --with options.yaml --list")
def test_options_are_in_a_file_of_their_own(shop: Shop) -> None:
    """It is probably possible to use the CLI's --optionsFile."""
    shop.write("options.yaml", "only: [machine=A4000]\nlist: true\nstrict: true\n")
    listed = shop.rankwise("run", "runtimes.yaml", "--with", "options.yaml")
    assert listed.exit_code == 0, listed
    assert "A4000" in listed.output, listed
    assert "P4000" not in listed.output, listed


# Notebooks, wherever they run


BOOKS: Mapping[str, tuple[Cell, ...]] = {
    "good": ("rounds = 3", ("rounds = 5", {"tags": ["parameters"]}), "print('rounds:', rounds)"),
    "broken": ("data = [1, 2]", "sum(data) / len(numbers)"),
    "magic": ("%time sum(range(10))",),
}
BOOK_MATRIX = """\
type: Matrix
name: books
runtimes: {here: current}
machines: {here: local}
notebooks: {as_script: true, parameters: {rounds: 2}}
tests: [{files: books/*.ipynb}]
"""


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A run of notebooks of which one fails, and one needs a dataset that is mounted by hand."""
    with opened(tmp_path_factory.mktemp("books")) as shop:
        for name, cells in BOOKS.items():
            write_notebook(shop.folder / "books" / f"{name}.ipynb", *cells)
        write_notebook(
            shop.folder / "books" / "manual.ipynb",
            "open('/datasets/mounted')",
            metadata={"rankwise": {"needs_input": "mount the dataset first"}},
        )
        shop.write("books.yaml", BOOK_MATRIX)
        said = shop.rankwise("run", "books.yaml")
        assert said.exit_code == 1, said
        yield shop
        shop.wait_until_empty()


def attempt(shop: Shop, book: str) -> Path:
    return shop.folder / ".rankwise" / "runs" / "books-1" / f"here@here@books-{book}.ipynb" / "1"


@sentence(PAGE, ran="rankwise run books.yaml; rankwise explain")
def test_the_error_of_a_notebook_is_read_without_opening_it(books: Shop) -> None:
    """Errors of a notebook must not have to be inspected by hand in the notebook view."""
    explained = books.rankwise("explain", "books-1").output
    assert "cell 2: NameError: name 'numbers' is not defined" in explained, explained


@sentence(PAGE, ran="rankwise run books.yaml, with `as_script: true`")
def test_a_notebook_runs_as_a_script_too(books: Shop) -> None:
    """Notebooks as .py have a log, but some code, such as magics, does not work in a .py."""
    assert "rounds: 2" in (attempt(books, "good") / "good.log").read_text()
    assert not (attempt(books, "magic") / "magic.py").exists()
    found = states(books, "books-1")
    assert found["here@here@books-magic.ipynb"] == "passed", "it runs as a notebook all the same"


@sentence(PAGE, ran="rankwise run books.yaml")
def test_whether_a_notebook_failed_is_its_outcome(books: Shop) -> None:
    """nbconvert can also pick up whether or not a notebook errored."""
    outcomes = {
        name: json.loads((attempt(books, name) / "outcome.json").read_text())["outcome"]
        for name in BOOKS
    }
    assert outcomes == {"good": "passed", "broken": "error", "magic": "passed"}


@sentence(PAGE, ran="rankwise run books.yaml")
def test_a_notebook_that_needs_a_hand_is_named_and_the_others_run(books: Shop) -> None:
    """Notebooks that require a manual action first, such as mounting a dataset, do not work."""
    found = states(books, "books-1")
    assert found["here@here@books-manual.ipynb"] == "not run"
    assert found["here@here@books-good.ipynb"] == "passed"
    assert "mount the dataset first" in books.rankwise("status", "books-1").output


@sentence(PAGE, ran="rankwise run books.yaml, with `parameters: {rounds: 2}`")
def test_notebooks_have_parameters(books: Shop) -> None:
    """Papermill might improve the setting up of what runs when the Notebook is started."""
    executed = json.loads((attempt(books, "good") / "good.ipynb").read_text())
    assert "rounds: 2" in json.dumps(executed)


@sentence(PAGE, ran="rankwise run books.yaml --list after a notebook was added")
def test_a_new_notebook_is_a_new_test(books: Shop) -> None:
    """More commands and tests: additions can be ongoing."""
    assert "added.ipynb" not in books.rankwise("run", "books.yaml", "--list").output
    write_notebook(books.folder / "books" / "added.ipynb", "print('new')")
    assert "added.ipynb" in books.rankwise("run", "books.yaml", "--list").output


@sentence(PAGE, ran="rankwise run runtimes.yaml, with `pdf: true`", stand_in=GRADIENT)
def test_executed_notebooks_come_back_as_pdf_and_the_instance_goes(shop: Shop) -> None:
    """Output to another place or format such as PDF, and the created Notebook is deleted."""
    change(shop, lambda text: text + "notebooks: {pdf: true}\n")
    said = shop.rankwise(
        "run", "runtimes.yaml", "--only", "runtime=TensorFlow-2.9,machine=P4000,test=*.ipynb"
    )
    assert said.exit_code == 0, said
    assert len(created(shop)) == 1
    assert len(calls(shop, "stop")) == len(calls(shop, "delete")) == 1
    key = "TensorFlow-2.9@P4000@run_testing.ipynb"
    # In the folder that `outputs` of the example names.
    folder = shop.folder / "results" / "runtimes-1" / key / "1"
    (pdf,) = folder.rglob("run_testing.pdf")
    assert pdf.read_bytes().startswith(b"%PDF-")
    (executed,) = folder.rglob("run_testing.ipynb")
    assert "of TensorFlow 2.9 in n" in executed.read_text()
    # Nothing else, such as the program that has run it.
    assert {path.name.partition(".")[0] for path in folder.rglob("*.*")} == {"run_testing"}


@sentence(PAGE, ran="rankwise run runtimes.yaml, with `outputs: blocked`", stand_in=GRADIENT)
def test_a_notebook_that_cannot_be_copied_is_a_failure_and_is_not_lost(shop: Shop) -> None:
    """Completed notebooks could be output to an external location."""
    (shop.folder / "blocked").write_text("a file is in the way")
    change(shop, lambda text: text.replace("outputs: results", "outputs: blocked"))
    key = "TensorFlow-2.9@P4000@run_testing.ipynb"
    said = shop.rankwise("run", "runtimes.yaml", "--only", "runtime=TensorFlow-2.9,test=*.ipynb")
    assert said.exit_code == 1, said
    assert re.search(rf"files not copied to .*blocked/runtimes-1/{key}/1", said.output), said
    assert (attempt_of(shop, "runtimes-1", key) / "run_testing.ipynb").exists()


BOOK_SUITE = """\
type: Suite
name: suite
outputs: elsewhere
tests:
  - pytest: --notebooks books/magic.ipynb --notebooks-output="$RANKWISE_FOLDER/executed"
"""


@sentence(PAGE, ran="rankwise run suite.yaml, a suite of notebooks with `outputs: elsewhere`")
def test_notebooks_of_a_suite_go_to_another_place_too(books: Shop) -> None:
    """Completed notebooks could be output to an external location, not left in the Notebook."""
    books.write("suite.yaml", BOOK_SUITE)
    said = books.rankwise("run", "suite.yaml")
    assert said.exit_code == 0, said
    place = books.folder / "elsewhere" / "suite-1" / "pytest" / "1" / "executed"
    assert "execute_result" in next(place.rglob("magic.ipynb")).read_text()


@sentence(
    PAGE,
    ran="rankwise run runtimes.yaml, with `metrics` in rankwise.toml; rankwise report",
    stand_in="a script with the words of Gradient's CLI, which makes up values of a GPU,",
)
def test_gpu_metrics_of_the_provider_are_in_the_report(shop: Shop) -> None:
    """`gradient notebooks metrics get` would add information about GPU usage."""
    said = shop.rankwise(
        "run", "runtimes.yaml", "--only", "runtime=TensorFlow-2.9,test=run_testing.py"
    )
    assert said.exit_code == 0, said
    assert "gpuUtilization: 54.5 on average, at most 97" in said.output, said
    asked = calls(shop, "metrics")
    assert re.search(r"--start \d{4}-\d\d-\d\d [\d:]{8} --end \d{4}", asked[0]), asked
    page = shop.rankwise("report", "runtimes-1", "--html", "-").output
    assert "by the provider" in page
    assert "gpuUtilization 97" in page
    assert "gpuMemoryUsed 97" in page
