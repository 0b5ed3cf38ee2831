"""What processes use over time is written down, in little space, and only where it is worth it."""

from __future__ import annotations

import ctypes
import json
import os
from functools import partial
from pathlib import Path

import pytest

from rankwise.node import machine, processes
from rankwise.node.order import Order
from rankwise.records import read_usage
from tests.fake_nvml import FakeNvml
from tests.node.test_runner import Attempt, process, python, wait_until

# It and a child of it each hold 60 MB and are busy until that was seen.
BUSY = """\
import json, os
held = bytearray(os.urandom(1) * 60_000_000)
child = os.fork()
if child == 0:
    held[:] = b"x" * len(held)
while True:
    sum(range(100_000))
    try:
        with open(os.environ["RANKWISE_FOLDER"] + "/usage.json") as file:
            if json.load(file)["peak_memory"] > 120e6:
                break
    except FileNotFoundError:
        pass
if child: os.waitpid(child, 0)
"""
ORDER = Order(marker="rw-1", folder="", nodes=(), processes=())


def test_what_all_processes_use_is_written_over_time(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", python(BUSY)), heartbeat=0.3, timeout=100.0)
    assert attempt.run()["outcome"] == "passed"
    [usage] = read_usage(attempt.folder)
    assert 2 <= len(usage.time) <= machine.USAGE_POINTS
    assert list(usage.time) == sorted(usage.time)
    assert 120e6 < usage.peak_memory < 400e6
    assert usage.peak_memory == max(usage.memory)
    # However little of the machine they got: that of the child is in it, too.
    assert usage.cpu_seconds == pytest.approx(attempt.end("worker-0")["cpu_seconds"], abs=0.05)
    assert max(usage.cpu) > 0
    assert usage.gpu == ()


def test_nothing_is_written_of_what_is_short_or_measured(tmp_path: Path) -> None:
    usage = machine.usage_for(ORDER, str(tmp_path))
    assert usage is not None
    usage.look()
    usage.close()
    assert list(tmp_path.iterdir()) == []
    usage.look()
    usage.close()
    assert [path.name for path in tmp_path.iterdir()] == ["usage.json"]
    assert machine.usage_for(ORDER.replace(is_measured=True), str(tmp_path)).due == float("inf")


def test_it_can_be_read_while_something_runs(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "while ! [ -e go ]; do sleep 0.2; done"))
    attempt.order["heartbeat"] = 0.3
    attempt.write()
    job = attempt.start()
    wait_until(lambda: bool(read_usage(attempt.folder)))
    (attempt.folder / "nodes" / "node0" / "go").touch()
    assert attempt.wait(job)["outcome"] == "passed"


def test_however_long_it_takes_the_file_stays_small(tmp_path: Path) -> None:
    usage = machine.UsageMeter(str(tmp_path / "usage.json"), "")
    for _ in range(5 * machine.USAGE_POINTS):
        usage._points.append([usage._last, 0.5, 7_000_000_000, 0.0, 0])
        usage._last += 1
        if len(usage._points) >= machine.USAGE_POINTS:
            usage._thin()
    usage._points[40][2] = 9_000_000_000
    usage._thin()
    usage._is_new = True
    usage.write()
    assert (tmp_path / "usage.json").stat().st_size < 10_000
    [found] = read_usage(tmp_path)
    assert len(found.time) < machine.USAGE_POINTS
    assert (max(found.memory), set(found.cpu)) == (9_000_000_000, {0.5})


def test_gpus_that_are_visible_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", FakeNvml)
    both, first = (0.75, 4 << 30), (0.25, 1 << 30)
    for visible, expected in (("", both), ("0", first), ("GPU-1f", both)):
        gpus = machine.Gpus(visible)
        wait_until(partial(getattr, gpus, "latest"))
        assert gpus.latest == expected
        gpus.stop()


def test_what_others_have_written_there_is_not_trusted(tmp_path: Path) -> None:
    whole = {"began": 1.0, "time": [1, 2], "cpu": [1, 1], "memory": [5, 5]}
    for wrong in (
        {**whole, "cpu": [1]},
        {**whole, "cpu": ["<b>", 1]},
        {**whole, "time": [], "cpu": [], "memory": []},
        {**whole, "memory": 3},
        {"time": [1]},
    ):
        (tmp_path / "usage.json").write_text(json.dumps(wrong))
        assert read_usage(tmp_path) == []
    (tmp_path / "usage.json").write_text(json.dumps(whole))
    [usage] = read_usage(tmp_path)
    assert usage.memory == [5, 5]


def test_all_that_a_process_has_started_is_found() -> None:
    assert os.getpid() not in set(processes.descendants(os.getpid()))
    assert os.getpid() in set(processes.descendants(os.getppid()))
