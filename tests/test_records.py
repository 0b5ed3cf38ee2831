"""What runners leave, and who has taken an attempt."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

from rankwise import records
from rankwise.node.files import give_up
from rankwise.node.processes import sweep_marked
from rankwise.records import ClaimState, claim_of, read_end, read_processes


def write(path: Path, data: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def test_an_attempt_is_free_until_somebody_takes_it(tmp_path: Path) -> None:
    assert claim_of(tmp_path) is ClaimState.FREE
    assert give_up(tmp_path)
    assert claim_of(tmp_path) is ClaimState.LEFT


def test_only_one_can_take_it(tmp_path: Path) -> None:
    assert give_up(tmp_path)
    assert not give_up(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["claim"]


def test_it_is_held_as_long_as_its_runner_lives(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    path.write_text('{"pid": 4711}')
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert claim_of(tmp_path) is ClaimState.HELD
        assert records.runner_of(tmp_path) == 4711
    assert claim_of(tmp_path) is ClaimState.LEFT
    assert records.runner_of(tmp_path) is None


def test_an_end_is_read_once_it_is_whole(tmp_path: Path) -> None:
    assert read_end(tmp_path) is None
    (tmp_path / "end.json").write_text('{"outcome": "pas')
    assert read_end(tmp_path) is None
    write(tmp_path / "end.json", {"outcome": "failed", "exit_code": 7, "culprit": "rank-3"})
    end = read_end(tmp_path)
    assert end is not None
    assert (end.outcome, end.exit_code, end.culprit) == ("failed", 7, "rank-3")


def test_processes_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("worker-10", "worker-2", "launcher-0", "rank-1.2", "rank-1"):
        write(tmp_path / "processes" / name / "start.json", {"name": name, "pid": 5, "role": "r"})
    write(tmp_path / "processes" / "worker-2" / "end.json", {"exit_code": 3, "unknown": 1})
    found = read_processes(tmp_path)
    assert [one.name for one in found] == [
        "launcher-0",
        "rank-1",
        "rank-1.2",
        "worker-2",
        "worker-10",
    ]
    assert (found[3].exit_code, found[3].pid, found[4].exit_code) == (3, 5, None)


def test_what_a_lost_runner_has_left_is_found_by_its_mark() -> None:
    marker = f"rw-{os.urandom(8).hex()}"
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(100)"],
        env={**os.environ, "RANKWISE_ATTEMPT": marker},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        assert sweep_marked(marker + "0") == 0
        assert sweep_marked(marker) == 1
        assert process.wait(10) == -9
