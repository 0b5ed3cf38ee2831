"""What is to run, as data."""

from __future__ import annotations

import subprocess

import pytest

from rankwise.plan import (
    Check,
    Process,
    Resources,
    Restart,
    RuntimeChoice,
    Task,
    body_of,
    fill_in,
    fill_in_line,
    later,
    show,
    task_of,
)

TASK = Task(
    key="train",
    processes=(
        Process(name="worker-0", role="worker", command="python train.py", rank=0),
        Process(
            name="ps-0",
            role="ps",
            command=("python", "ps.py"),
            environment={"PORT": later("port:ps0@1")},
            is_awaited=False,
            resources=Resources(cores=0.5, memory=2**30),
        ),
    ),
    nodes=2,
    needs=("build",),
    files={"hostfile": f"{later('host:0')} slots=4\n"},
    secrets=("TOKEN",),
    resources=Resources(gpus=4),
    runtime=RuntimeChoice(name="x", kind="uv", requirements=("torch",)),
    restart=Restart(most=2, on_exit_codes=(7,)),
    checks=(Check(kind="exit_code", codes=(3, 4)), Check(kind="json", what="$.loss", value=0.5)),
    notes=("a note",),
)


def test_a_task_survives_json() -> None:
    assert task_of(body_of(TASK)) == TASK


def test_marks_are_filled_in_where_they_stand() -> None:
    text = f"--addr={later('address:0')}:{later('port:master@0')} in {later('folder')}"
    known = {"address:0": "127.0.0.1", "port:master@0": "20001", "folder": "/tmp/a"}
    assert fill_in(text, known.__getitem__) == "--addr=127.0.0.1:20001 in /tmp/a"


@pytest.mark.parametrize("folder", ["/plain", "/a b", "/it's", '/"$HOME" `x` \\'])
@pytest.mark.parametrize(
    "line",
    [
        "printf %s {}/x",
        'printf %s "{}"/x',
        """printf %s '{}/x'""",
        """echo 'a \\' "it's" >&2; printf %s {}/x""",
        """echo \\' \\" >&2; printf %s "{}/x\"""",
    ],
)
def test_a_value_in_a_line_for_the_shell_is_one_word_whatever_quotes_are_around(
    folder: str, line: str
) -> None:
    marked = fill_in_line(line.format(later("at")), lambda _: f"{later('artifacts:a')}/")
    filled = fill_in_line(marked, lambda _: folder)
    done = subprocess.run(["sh", "-c", filled], capture_output=True, text=True, check=True)
    assert done.stdout.replace("//", "/") == f"{folder}/x"


def test_people_read_marks_in_words() -> None:
    marks = ("address:0", "host:2", "port:master@0", "folder", "folder:3")
    assert [show(later(mark)) for mark in marks] == [
        "<address of node 0>",
        "<host of node 2>",
        "<free port master of node 0>",
        "<folder of the attempt>",
        "<folder of node 3>",
    ]


def test_what_people_write_is_never_taken_for_a_mark() -> None:
    text = "echo {folder} <folder> ${folder} {{folder}} %folder%"
    assert show(text) == fill_in(text, lambda what: "X") == text


def test_resources_add_up() -> None:
    one = Resources(cores=2, memory=10, gpus=1)
    assert one + one == one * 2
    assert one * 3 - one == one * 2
