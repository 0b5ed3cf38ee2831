"""When things go wrong around it, the runner still tells the truth, or says that it cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.node import files
from tests.node.test_runner import RUNNER, Attempt, process, wait_until


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", '{"version": 1}', '{"version": 3, "processes": []}'),
        *('{"version": 1} {"version": 1}', "\x00\xff"),
    ],
)
def test_an_order_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "true"))
    (attempt.folder / "order.json").write_text(text, encoding="latin-1")
    assert attempt.start().wait() == 3
    assert f"cannot use {attempt.folder}/order.json" in attempt.trouble()
    assert "Traceback" not in attempt.trouble()
    assert not (attempt.folder / "claim").exists()


def test_a_folder_without_an_order_is_refused(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-I", "-S", RUNNER, "run", tmp_path], capture_output=True, check=False
    )
    assert told.returncode == 3
    assert b"No such file or directory" in told.stderr


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["run"], ["rank"], ["node"]])
def test_a_wrong_call_is_explained(arguments: list[str]) -> None:
    told = subprocess.run(
        [sys.executable, "-I", "-S", RUNNER, *arguments], capture_output=True, check=False
    )
    assert told.returncode == 2
    assert b"usage: run FOLDER" in told.stderr


def test_an_end_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "exit 7"))
    obstacle = attempt.folder / "end.json"
    (obstacle / "in the way").mkdir(parents=True)
    job = attempt.start()
    wait_until(lambda: f"cannot write {obstacle}" in attempt.trouble())
    shutil.rmtree(obstacle)
    assert attempt.wait(job)["exit_code"] == 7


def test_records_of_processes_are_tried_again_too(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "exit 7"))
    obstacle = attempt.folder / "processes" / "worker-0" / "end.json"
    (obstacle / "in the way").mkdir(parents=True)
    job = attempt.start()
    wait_until(lambda: f"cannot write {obstacle}" in attempt.trouble())
    assert not (attempt.folder / "end.json").exists()
    shutil.rmtree(obstacle)
    attempt.wait(job)
    assert attempt.end("worker-0")["exit_code"] == 7


def test_it_gives_up_in_the_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "end.json" / "in the way").mkdir(parents=True)
    records = files.Records()
    records.put(f"{tmp_path}/end.json", {"a": 1})
    records.insist(0)
    assert f"gave up after 0 s: {tmp_path}/end.json" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["end.json"]


def test_a_folder_that_is_removed_is_made_again(tmp_path: Path) -> None:
    line = f"touch {tmp_path}/here; while ! [ -e {tmp_path}/go ]; do sleep 0.05; done; echo after"
    attempt = Attempt(tmp_path, process("worker-0", f"{line}; exit 7"), heartbeat=3600.0)
    job = attempt.start()
    attempt.wait_for("processes/worker-0/heartbeat")
    wait_until((tmp_path / "here").exists)
    # At once: the runner may write into it at any moment.
    attempt.folder.rename(tmp_path / "removed")
    shutil.rmtree(tmp_path / "removed")
    (tmp_path / "go").touch()
    end = attempt.wait(job)
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("failed", 7, "worker-0")
    assert attempt.end("worker-0")["exit_code"] == 7
    assert attempt.log("worker-0").endswith("after\n")


def test_an_error_of_our_own_is_an_outcome_too(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "true", node=5))
    end = attempt.run()
    assert (end["outcome"], end["exit_code"]) == ("failed", 3)
    assert end["reason"].startswith("the runner could not go on: ")
    assert "Traceback" in attempt.trouble()


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -3,
        1.5,
        1e300,
        "",
        'quote " and \\',
        "é\n\t\x00",
        "\udcff",
        {},
        {"a": {"b": 1}},
    ],
)
def test_what_it_writes_can_be_read(value: object) -> None:
    assert json.loads(files.to_json({"key": value})) == {"key": value}
    assert files.parse(files.to_json({"key": value})) == {"key": value}


def test_after_an_error_of_our_own_nothing_is_left_outside_of_the_folder(tmp_path: Path) -> None:
    """A folder whose name shells would not understand has another one in /tmp meanwhile."""
    (tmp_path / "a b").mkdir()
    attempt = Attempt(tmp_path / "a b", process("worker-0", "true", node=5))
    assert attempt.run()["exit_code"] == 3
    assert [one.name for one in Path("/tmp").iterdir() if attempt.marker in one.name] == []


def test_a_folder_whose_name_is_no_text_is_as_good_as_any(tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"caf\xe9")
    place.mkdir()
    end = Attempt(place, process("worker-0", "true"), nodes=2).run()
    assert (end["outcome"], end["reason"]) == ("passed", "")
