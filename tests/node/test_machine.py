"""Facts about a machine, and what processes use on it over time."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from rankwise.node import machine, processes, surroundings
from rankwise.node.order import Order
from rankwise.records import read_usage
from tests.fake_nvml import Broken, FakeNvml
from tests.node.test_runner import Attempt, process, python, wait_until

FILE = Path(surroundings.__file__)
X86 = """\
processor\t: 0
model name\t: Intel(R)  Xeon(R) Gold 6230 CPU @ 2.10GHz
flags\t\t: fpu smep sse4_2 avx avx2 avx512f avx512_vnni fma amx_tile

processor\t: 1
model name\t: Another
flags\t\t: fpu
"""
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd crc32 sve sve2 bf16\n"


def test_it_prints_one_object_that_is_true_of_this_python() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "3", "CUDA_SECRET": "not to be shown"}
    said = subprocess.check_output([sys.executable, FILE], env=environment, text=True)
    found = json.loads(said)
    assert said.count("\n") == 1
    assert found["python"] == {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
    }
    assert found["packages"]["pytest"] == importlib.metadata.version("pytest")
    assert found["cpu"]["count"] == os.cpu_count()
    assert found["memory"] > 1 << 28
    assert {"OMP_NUM_THREADS", "CUDA_SECRET"} <= set(found["variables"])
    assert "business" not in said


def test_packages_have_normal_names_and_the_first_of_a_name_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, version in (("first", "1.0"), ("second", "2.0")):
        place = tmp_path / folder / f"Some_Thing.x-{version}.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Name: Some_Thing.x\nVersion: {version}\n")
    broken = tmp_path / "first" / "broken-1.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_bytes(b"\xff\xfe\x00")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    assert surroundings.packages() == {"some-thing-x": "1.0"}


def test_processors_are_told_by_their_model_and_what_they_can_do() -> None:
    found = surroundings.cpu(X86)
    assert found["model"] == "Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz"
    assert found["flags"] == ["amx_tile", "avx", "avx2", "avx512_vnni", "avx512f", "fma", "sse4_2"]
    assert surroundings.cpu(ARM)["flags"] == ["asimd", "bf16", "sve", "sve2"]
    assert surroundings.cpu("")["flags"] == []


def test_what_a_linux_calls_itself() -> None:
    assert surroundings.distribution('ID=debian\nPRETTY_NAME="Debian 12"\n') == "Debian 12"
    assert surroundings.distribution("") == ""


def test_gpus_are_told_with_their_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", FakeNvml)
    first, second = surroundings.gpus()
    assert first == {
        "name": "NVIDIA A100-SXM4-40GB",
        "driver": "570.86.15",
        "cuda": "12.8",
        "capability": "8.0",
        "memory": 40 << 30,
    }
    assert second["memory"] == 80 << 30


def test_a_driver_that_does_not_answer_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", Broken)
    assert surroundings.gpus() == []


# What processes use over time is written down, in little space, and only where it is worth it

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
