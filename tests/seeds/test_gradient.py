"""The page about testing Gradient's runtimes: its command lines, and what it wants to improve."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from environments import ROOT

from tests.acceptance.jobs import Shop, opened
from tests.notebooks.books import Cell, write_notebook
from tests.seeds.sentences import sentence
from tests.seeds.typed import type_in_shop

PAGE = "gradient-auto-testing"
GRADIENT = "a script with the words of Gradient's CLI, and folders for Notebooks"
MACHINES = ("P4000", "A4000")

SITE = """\
[compute.{machine}]
backend = "command"
create = ["sh", "-c", '''
    exec gradient notebooks create --name ${{{{name}}}} --machineType {machine} \
        --projectId "$PROJECT" ${{CLUSTER:+--clusterId "$CLUSTER"}} ${{REF:+--workspaceRef "$REF"}}
''']
run = ["gradient", "notebooks", "shell", "--id", "${{{{id}}}}", "${{{{command}}}}"]
delete = ["gradient", "notebooks", "delete", "--id", "${{{{id}}}}"]
list = ["gradient", "notebooks", "list"]
capture = {{ id = "id: (\\\\S+)" }}
folder = "~/rankwise"
python = "{python}"
look_seconds = 2
"""
MATRIX = """\
type: Matrix
name: runtimes
runtimes:
  PyTorch-1.12:
    runtime: current
    environment_variables: {RUNTIME: PyTorch 1.12}
    tests: [specific/run_testing_pt112.sh]
  TensorFlow-2.9:
    runtime: current
    environment_variables: {RUNTIME: TensorFlow 2.9}
machines: {P4000: P4000, A4000: A4000}
tests: [run_testing.sh, run_testing.py, run_testing.ipynb]
exclude:
  - {when: {runtime: TensorFlow-2.9, machine: A4000}, reason: no GPU that it knows}
"""
# What the page has as a loop around Gradient's CLI. Names of runtimes have no blanks here.
DO_RUN_TESTING = """\
#!/bin/bash
while getopts c:w: option; do
    case $option in
        c) export CLUSTER=$OPTARG ;;
        w) export REF=$OPTARG ;;
        *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
export PROJECT=$2
exec "$PYTHON" -m rankwise.cli.main run runtimes.yaml --only "runtime=${1// /-}"
"""


def write_files(shop: Shop) -> None:
    """Write what the repository of the page has."""
    shop.write("runtimes.yaml", MATRIX)
    shop.write("do_run_testing.sh", DO_RUN_TESTING)
    for name in ("run_testing.sh", "specific/run_testing_pt112.sh"):
        shop.write(name, f'echo "{name} of $RUNTIME in ${{INSTANCE-no instance}}"\n')
    said = "import os\nprint('{} of', os.environ['RUNTIME'], 'in', os.environ.get('INSTANCE'))\n"
    shop.write("run_testing.py", said.format("run_testing.py"))
    write_notebook(shop.folder / "run_testing.ipynb", said.format("run_testing.ipynb"))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """The repository of the page on the user's own machine, with Gradient's CLI and a key."""
    (tmp_path / "cloud").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gradient").symlink_to(Path(__file__).with_name("gradient.sh"))
    with opened(tmp_path / "repository") as shop:
        write_files(shop)
        tables = [SITE.format(machine=machine, python=sys.executable) for machine in MACHINES]
        shop.write("rankwise.toml", "".join(tables))
        shop.variables |= {
            "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PROVIDER": str(ROOT / "tests" / "backends" / "provider.sh"),
            "CLOUD": str(tmp_path / "cloud"),
            "PYTHON": sys.executable,
            "GRADIENT_API_KEY": "the-key-of-the-project",
            "PROJECT": "prj7x9",
        }
        yield shop
        assert list((tmp_path / "cloud").glob("i-*")) == [], "a Notebook was not deleted"
        shop.wait_until_empty()


def created(shop: Shop) -> list[dict[str, str]]:
    """Return the options with which each Notebook was created."""
    lines = (Path(shop.variables["CLOUD"]) / "created.log").read_text().splitlines()
    return [dict(zip(line.split()[::2], line.split()[1::2], strict=True)) for line in lines]


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
        assert "of PyTorch 1.12 in i-" in log, log


@sentence(
    PAGE,
    ran='./do_run_testing.sh -c "cl5" -w "next" "TensorFlow 2.9" "prj7x9"',
    stand_in=GRADIENT,
)
def test_another_cluster_and_another_branch_can_be_named(shop: Shop) -> None:
    """./do_run_testing.sh [-c "<clusterId>" -w "<workspaceRef>"] "<runtime>" "<projectId>"."""
    line = './do_run_testing.sh -c "cl5" -w "next" "TensorFlow 2.9" "prj7x9"'
    done = type_in_shop(shop, f"chmod 764 do_run_testing.sh\n{line}")
    assert done.returncode == 0, done
    (one,) = created(shop)
    assert (one["--clusterId"], one["--workspaceRef"]) == ("cl5", "next")


@sentence(PAGE, ran="rankwise run runtimes.yaml", stand_in=GRADIENT)
def test_without_a_key_nothing_is_green_and_a_key_is_kept_nowhere(shop: Shop) -> None:
    """An API key is set to access the Project."""
    del shop.variables["GRADIENT_API_KEY"]
    said = shop.rankwise("run", "runtimes.yaml", "--only", "test=run_testing.sh")
    assert said.exit_code == 1, said
    assert "No API token found" in said.output, said
    shop.variables["GRADIENT_API_KEY"] = "the-key-of-the-project"
    said = shop.rankwise("run", "runtimes.yaml", "--only", "test=run_testing.sh")
    assert said.exit_code == 0, said
    kept = [path for path in (shop.folder / ".rankwise").rglob("*") if path.is_file()]
    assert not [path for path in kept if b"the-key-of-the" in path.read_bytes()]


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
    assert not (Path(shop.variables["CLOUD"]) / "created.log").exists()


@sentence(PAGE, ran="rankwise run runtimes.yaml", stand_in=GRADIENT)
def test_a_notebook_of_gradient_serves_all_runtimes(shop: Shop) -> None:
    """Nice to have: one Notebook that runs many combinations, to avoid creating as many.

    One for each machine runs all runtimes, one after the other.
    """
    shop.write("runtimes.yaml", MATRIX.partition("exclude:")[0])
    said = shop.rankwise("run", "runtimes.yaml", "--only", "test=run_testing.sh")
    assert said.exit_code == 0, said
    assert len(states(shop, "runtimes-1")) == 4
    assert sorted(one["--machineType"] for one in created(shop)) == sorted(MACHINES)


@sentence(PAGE, ran="rankwise validate runtimes.yaml, and a machine more in rankwise.toml")
@sentence(
    PAGE,
    ran="rankwise run runtimes.yaml --list",
    said="Better framework: YAML files may improve upon the master shell script.",
)
def test_settings_are_in_files_of_their_own(shop: Shop) -> None:
    """Runtimes and machines are hardwired in the script: use separate configuration files."""
    assert shop.rankwise("validate", "runtimes.yaml", "--strict").exit_code == 0
    with (shop.folder / "rankwise.toml").open("a") as site:
        site.write(SITE.format(machine="A100-80G", python=sys.executable))
    text = MATRIX.replace("A4000: A4000}", "A4000: A4000, A100-80G: A100-80G}")
    shop.write("runtimes.yaml", text)
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
    explained = books.rankwise("explain").output
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
    assert "mount the dataset first" in books.rankwise("status").output


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
    matrix = MATRIX.partition("exclude:")[0] + "notebooks: {pdf: true}\n"
    shop.write("runtimes.yaml", matrix)
    said = shop.rankwise(
        "run", "runtimes.yaml", "--only", "runtime=TensorFlow-2.9,machine=P4000,test=*.ipynb"
    )
    assert said.exit_code == 0, said
    assert len(created(shop)) == 1
    assert list(Path(shop.variables["CLOUD"]).glob("i-*")) == []
    folder = shop.folder / ".rankwise/runs/runtimes-1/TensorFlow-2.9@P4000@run_testing.ipynb/1"
    (pdf,) = folder.rglob("run_testing.pdf")
    assert pdf.read_bytes().startswith(b"%PDF-")
    (executed,) = folder.rglob("run_testing.ipynb")
    assert "of TensorFlow 2.9 in i-" in executed.read_text()
