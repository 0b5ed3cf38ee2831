"""What a program finds around itself, whichever Python says it."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.node import surroundings
from tests.fake_nvml import Broken, FakeNvml

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
    environment = {**os.environ, "OMP_NUM_THREADS": "3", "CUDA_SECRET": "nobody's business"}
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
