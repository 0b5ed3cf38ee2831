"""What is sent to another machine: paths of the folder here become those of the folder there."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

from rankwise.backends.base import Attempt, Submission
from rankwise.backends.remote.connection import HostFacts
from rankwise.backends.remote.packing import HostPolicy, packed
from rankwise.backends.remote.tracked import Tracked
from rankwise.plan import Process, Task
from rankwise.runtimes.base import PreparedRuntime

_THERE = "/far/attempts/rw-1/nodes/node0"


def _sent(folder: Path, command: str | tuple[str, ...], **variables: str) -> tuple[object, object]:
    """Give a command and its variables as they are in the order that is sent."""
    code, place = folder / "proj", folder / "attempt"
    code.mkdir(exist_ok=True)
    place.mkdir(exist_ok=True)
    process = Process(name="worker-0", role="worker", command=command)
    task = Task(
        key="task", processes=(process,), code=str(code), folder=str(code), environment=variables
    )
    attempt = Attempt(label="run-1/task/1", marker="rw-1", folder=place)
    found = HostFacts(
        root="/far",
        python="/usr/bin/python3",
        version="3.11.2",
        host="far",
        platform="Linux-x86_64",
        cores=1.0,
        memory=0,
    )
    job = Submission(attempt=attempt, task=task, runtime=PreparedRuntime())
    policy = HostPolicy(backend="it", tracked=Tracked(folder / "elsewhere"))
    with packed(job, found, policy=policy) as chunks:
        head, *body = chunks
    assert head == b"2\n{}"
    with tarfile.open(fileobj=io.BytesIO(b"".join(body))) as archive:
        content = archive.extractfile("order.json")
        assert content is not None
        order = json.load(content)
    return order["processes"][0]["command"], order["environment"]


@pytest.mark.parametrize(
    "text",
    [
        "HERE",
        "HERE/",
        "HERE/data.txt",
        "cat HERE/a HERE/b; cd HERE && ls",
        "--data=HERE",
        "--data=HERE/x",
        "-IHERE/include",
        "-L/HERE/lib",
        "@HERE/options",
        "file://HERE/x",
        "/usr/lib:HERE:HERE/lib",
        "sh -c 'cd \"HERE\"; (ls HERE)'",
        "HERE,HERE/x",
    ],
)
def test_paths_of_the_folder_are_those_of_the_folder_there(tmp_path: Path, text: str) -> None:
    here = text.replace("HERE", str(tmp_path / "proj"))
    command, variables = _sent(tmp_path, ("prog", here), PLACE=here)
    expected = text.replace("HERE", _THERE)
    assert command == ["prog", expected]
    assert variables["PLACE"] == expected  # type: ignore[index]  # a table


@pytest.mark.parametrize(
    "text",
    [
        "HEREect2/data.txt",
        "HERE-old",
        "--x=HERE-old",
        "--x=HERE-old/y",
        "HERE.bak/x",
        "HERE2",
        "HERE_x/y",
        "/mntHERE/x",
        "$PREFIXHERE/x",
        "${PREFIX}HERE/x",
        "~HERE",
        "..HERE/x",
        f"{sys.executable}-config",
        f"{sys.executable}.bak",
        f"/chroot{sys.executable}",
    ],
)
def test_paths_of_other_folders_stay_as_they_are(tmp_path: Path, text: str) -> None:
    here = text.replace("HERE", str(tmp_path / "proj"))
    command, variables = _sent(tmp_path, ("prog", here), PLACE=here)
    assert command == ["prog", here]
    assert variables["PLACE"] == here  # type: ignore[index]  # a table


def test_our_interpreter_is_the_one_there_also_within_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "proj" / ".venv" / "bin" / "python"))
    command, _ = _sent(tmp_path, f"{sys.executable} {tmp_path}/proj/run.py")
    assert command == f"python {_THERE}/run.py"
