"""What a machine has, and how it is told what a task lacks."""

from __future__ import annotations

import ctypes
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwise.backends.doctor import Finding
from rankwise.backends.this_machine import check_machine
from rankwise.machine import machine, shortfall, visible_gpus
from rankwise.plan import Resources

GIB = 1 << 30


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def absent(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1 kB\n")
    return tmp_path


def found(root: Path) -> Resources:
    return machine(root=root, environ={}, load=absent)


# Cores and memory.


def test_this_machine_has_something() -> None:
    here = machine()
    assert here.cores >= 1
    assert 0 < here.memory < sys.maxsize
    assert here.gpus >= 0


def test_cores_are_those_of_this_process_and_memory_is_all_of_it(root: Path) -> None:
    assert found(root) == Resources(cores=8, memory=16 * GIB)


def test_a_control_group_limits_both(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/user/job\n")
    write(root, "sys/fs/cgroup/user/job/cpu.max", "max 100000\n")
    write(root, "sys/fs/cgroup/user/job/memory.max", "max\n")
    assert found(root) == Resources(cores=8, memory=16 * GIB)
    write(root, "sys/fs/cgroup/user/job/cpu.max", "250000 100000\n")
    write(root, "sys/fs/cgroup/user/job/memory.max", f"{4 * GIB}\n")
    assert found(root) == Resources(cores=2.5, memory=4 * GIB)


def test_the_groups_around_it_limit_it_as_well(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/user/job/step\n")
    write(root, "sys/fs/cgroup/user/cpu.max", "300000 100000\n")
    write(root, "sys/fs/cgroup/user/job/cpu.max", "400000 100000\n")
    write(root, "sys/fs/cgroup/user/job/memory.max", f"{GIB}\n")
    assert found(root) == Resources(cores=3, memory=GIB)


def test_in_a_container_the_group_is_the_root(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "sys/fs/cgroup/cpu.max", "200000 100000\n")
    write(root, "sys/fs/cgroup/memory.max", f"{GIB}\n")
    assert found(root) == Resources(cores=2, memory=GIB)


def test_control_groups_of_version_1_limit_both(root: Path) -> None:
    write(
        root,
        "proc/self/cgroup",
        "3:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:pids:/\n0::/\n",
    )
    # The group's name is the one outside; inside, it is the root.
    write(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n")
    write(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "50000\n")
    write(root, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", f"{2 * GIB}\n")
    assert found(root) == Resources(cores=3, memory=2 * GIB)


def test_control_groups_of_version_1_may_limit_nothing(root: Path) -> None:
    write(root, "proc/self/cgroup", "3:memory:/\n2:cpu:/\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert found(root) == Resources(cores=8, memory=16 * GIB)


def test_there_is_always_one_core(root: Path) -> None:
    """With half of one, no task could ever run."""
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "sys/fs/cgroup/cpu.max", "50000 100000\n")
    assert found(root).cores == 1


@pytest.mark.parametrize("text", ["", "nonsense", "0::", "::", "1:cpu:\n2", "\0", "0::/../..\n"])
def test_invalid_control_group_files_are_ignored(root: Path, text: str) -> None:
    write(root, "proc/self/cgroup", text)
    write(root, "sys/fs/cgroup/cpu.max", "many\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "0\n")
    write(root, "sys/fs/cgroup/memory.max", "\n")
    assert found(root) == Resources(cores=8, memory=16 * GIB)


def test_without_proc_the_system_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.delattr(os, "sched_getaffinity")
    here = found(tmp_path)
    assert here.cores == os.cpu_count()
    assert 0 < here.memory < sys.maxsize
    monkeypatch.setattr(os, "sysconf", refuse)
    assert found(tmp_path).memory == sys.maxsize


# GPUs.


class Nvml:
    """What the driver's library has of functions, with codes as it gives them."""

    def __init__(self, count: int, *, init: int = 0, ask: int = 0) -> None:
        self._count, self._init, self._ask = count, init, ask
        self.open = 0

    def __call__(self, name: str) -> Nvml:
        assert name == "libnvidia-ml.so.1"
        return self

    def nvmlInit_v2(self) -> int:
        self.open += not self._init
        return self._init

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        assert isinstance(count._obj, ctypes.c_uint)
        count._obj.value = self._count
        return self._ask

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0


def gpus(load: Callable[[str], Any], visible: str | None = None) -> tuple[str, ...]:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return visible_gpus(environ=environ, load=load)


def test_gpus_are_counted_by_the_driver() -> None:
    driver = Nvml(4)
    assert gpus(driver) == ("0", "1", "2", "3")
    assert driver.open == 0
    assert machine(environ={}, load=driver).gpus == 4


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("2", ("2",)),
        ("3,1", ("3", "1")),
        (" 0 , 1 ", ("0", "1")),
        ("0,0,1", ("0", "1")),
        ("0,4,1", ("0",)),
        ("1,-1,2", ("1",)),
        ("GPU-8932f937,1", ("GPU-8932f937", "1")),
        ("MIG-1,MIG-2", ("MIG-1", "MIG-2")),
    ],
)
def test_only_those_gpus_count_that_cuda_would_show(visible: str, seen: tuple[str, ...]) -> None:
    assert gpus(Nvml(4), visible) == seen


def test_without_a_driver_there_are_no_gpus_whatever_variables_say() -> None:
    assert gpus(absent, "0,1") == gpus(absent, "GPU-1") == gpus(absent) == ()


def test_a_driver_in_trouble_has_no_gpus() -> None:
    driver = Nvml(4, ask=999)
    assert gpus(Nvml(4, init=9)) == ()
    assert gpus(driver) == ()
    assert driver.open == 0
    assert gpus(lambda _: object()) == ()


# What is lacking.


@pytest.mark.parametrize(
    ("claim", "capacity", "text"),
    [
        (Resources(gpus=4), Resources(), "needs 4 GPUs, found 0"),
        (Resources(gpus=1), Resources(), "needs 1 GPU, found 0"),
        (Resources(cores=64), Resources(cores=2), "needs 64 cores, found 2"),
        (Resources(cores=1), Resources(cores=0.5), "needs 1 core, found 0.5"),
        (Resources(cores=1.5), Resources(cores=1), "needs 1.5 cores, found 1"),
        (
            Resources(memory=2 << 40),
            Resources(memory=23 * GIB),
            "needs 2 TiB of memory, found 23 GiB",
        ),
        (Resources(memory=700), Resources(memory=5), "needs 700 B of memory, found 5 B"),
        (
            Resources(memory=23 * GIB + 400_000_000),
            Resources(memory=23 * GIB),
            "needs 23.4 GiB of memory, found 23 GiB",
        ),
        (
            Resources(memory=(1 << 60) + 1),
            Resources(memory=1 << 60),
            "needs 1152921504606846977 bytes of memory, found 1152921504606846976 bytes",
        ),
        (
            Resources(cores=2, memory=2 * GIB, gpus=2),
            Resources(cores=1, memory=GIB, gpus=1),
            "needs 2 GPUs, found 1; needs 2 cores, found 1; needs 2 GiB of memory, found 1 GiB",
        ),
    ],
)
def test_a_shortfall_is_described_with_amounts(
    claim: Resources, capacity: Resources, text: str
) -> None:
    assert shortfall(claim, capacity) == text


def test_enough_resources_are_no_shortfall() -> None:
    capacity = Resources(cores=0.3, memory=GIB, gpus=1)
    assert shortfall(Resources(), Resources()) is None
    assert shortfall(capacity, capacity) is None
    assert shortfall(Resources(cores=0.1) * 3, capacity) is None


# What is said of this machine: by real ranks, and by stand-ins for what is broken


def findings(store: Path, words: str) -> list[Finding]:
    return [one for one in check_machine(store) if words in one.what]


def bad_mpiexec(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an mpiexec first that does something else."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    mpiexec = folder / "mpiexec"
    mpiexec.write_text(f"#!/bin/sh\n{script}\n")
    for one in (python, mpiexec):
        one.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


def test_two_ranks_find_each_other(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, "MPI: ")
    assert found.is_well
    assert "two ranks found each other, MPICH Version: 5" in found.what


def test_ranks_that_are_alone_belong_to_different_mpis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_mpiexec(tmp_path, 'shift 2; exec "$@"', monkeypatch)
    (found,) = findings(tmp_path, "MPI: ")
    assert not found.is_well
    assert not found.is_needed
    assert "are of different MPIs" in found.what


def test_an_mpiexec_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad_mpiexec(tmp_path, "echo no fabric today >&2; exit 3", monkeypatch)
    (found,) = findings(tmp_path, "MPI: ")
    assert found.what.endswith("could not start two ranks: no fabric today")
    assert found.remedy


def test_advice_around_the_answer_of_the_ranks_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shlex.quote(str(Path(sys.executable).with_name("mpiexec")))
    script = f'echo 1 node is busy; echo 3 things to know >&2; {real} "$@" && echo 0 errors'
    bad_mpiexec(tmp_path, script, monkeypatch)
    (found,) = findings(tmp_path, "MPI: ")
    assert found.is_well, found
    assert "two ranks found each other, MPICH Version: 5" in found.what
    assert "errors" not in found.what


@pytest.mark.parametrize(
    "script",
    ["echo 2 ranks", "echo rankwise-trial: 2 MPICH; exit 3", "echo rankwise-trial: 2 MPICH >&2"],
)
def test_only_a_successful_answer_of_both_ranks_counts(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_mpiexec(tmp_path, script, monkeypatch)
    (found,) = findings(tmp_path, "MPI: ")
    assert not found.is_well
    assert "could not start two ranks: " in found.what


def test_a_store_that_cannot_be_written_must_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    (found,) = findings(tmp_path / "store", "the store")
    assert (found.is_well, found.is_needed) == (False, True)


def test_what_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwise.backends.this_machine.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    remedies = " ".join(one.remedy for one in check_machine(tmp_path))
    for extra in ("notebooks", "kubernetes", "web", "report", "measure"):
        assert f"pip install 'rankwise[{extra}]'" in remedies
    assert findings(tmp_path, "not installed, each needed only for its purpose: sbatch (Slurm)")
