"""What the machine was doing is known, and noise is told from a program's own work."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rankwise.metrics.conditions import git_of, joined, noise, reading, usable_cores, versions


def at(
    clock: float, *, busy: int = 0, idle: int = 0, steal: int = 0, **more: Any
) -> dict[str, Any]:
    """Make up a reading of a machine with two cores."""
    return {
        "time": 1e9 + clock,
        "clock": clock,
        "host": "n1",
        "cores": 2,
        "all_cores": 2,
        "load": 0.5,
        "ticks": [busy, 0, 0, idle, 0, 0, 0, steal],
        **more,
    }


def test_a_reading_says_what_the_machine_is() -> None:
    before, after = reading(), reading()
    found = joined(before, after)
    assert json.loads(json.dumps(found)) == found
    assert found["host"]
    assert found["cores"] == usable_cores() >= 1
    assert found["seconds"] >= 0
    assert versions(mpi="MPICH 4")["mpi"] == "MPICH 4"


def test_own_work_is_no_noise() -> None:
    # Ten seconds on two cores, all of it our own.
    found = joined(at(0, load=8.0), at(10, busy=2000), own_cpu_seconds=19.9)
    assert found["others_percent"] == pytest.approx(0.5)
    assert noise(found) == ()


def test_the_work_of_others_is_noise() -> None:
    found = joined(at(0), at(10, busy=2000), own_cpu_seconds=10.0)
    assert noise(found) == ("other processes used 50 % of the machine",)
    assert noise(joined(at(0), at(10, busy=1000, idle=900, steal=100), own_cpu_seconds=10.0)) == (
        "5 % of the CPU time was given to other virtual machines",
    )


def test_what_ticks_cannot_tell_is_no_noise() -> None:
    # A tenth of a second on two cores: 20 ticks, of which 3 may be anybody's.
    assert noise(joined(at(0), at(0.1, busy=20), own_cpu_seconds=0.17)) == ()
    assert noise(joined(at(0), at(0.1, busy=20), own_cpu_seconds=0.05)) != ()


def test_without_the_own_work_what_was_before_counts() -> None:
    assert noise(joined(at(0), at(10, busy=2000))) == ()
    found = joined(at(0, load=6.1, psi_avg10=30.0, psi_total=0), at(10, psi_total=5_000_000))
    assert found["psi_percent"] == pytest.approx(50)
    assert noise(found) == (
        "the load was 6.1 on 2 cores before it began",
        "processes waited for a CPU 30 % of the time before it began",
    )


def test_what_a_machine_does_not_tell_is_not_there() -> None:
    bare = {"time": 1.0, "clock": 1.0, "host": "mac", "cores": 8, "all_cores": 8, "load": 1.0}
    assert noise(joined(bare, bare, own_cpu_seconds=1.0)) == ()
    assert noise({}) == ()


def test_the_commit_of_a_folder(tmp_path: Path) -> None:
    assert git_of(tmp_path / "nowhere") == {}

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        line = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-b", "topic")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "a")
    commit = git("rev-parse", "HEAD")
    assert git_of(tmp_path) == {"git.commit": commit, "git.branch": "topic"}
    (tmp_path / "a").write_text("2")
    git("checkout", "--detach")
    assert git_of(tmp_path) == {"git.commit": commit, "git.dirty": "yes"}
