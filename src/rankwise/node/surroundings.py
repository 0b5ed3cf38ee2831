"""Print what a program finds around itself: Python, packages, system, processors, memory, GPUs.

    python surroundings.py

Prints one JSON object. One file that needs the standard library only, imports nothing of rankwise
and works from Python 3.8 on: it is run by the Python of a runtime, wherever that is. What cannot
be found out is left empty; it never fails for that.

Of variables only the names are printed: their values may be secret.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

VERSION = 1
# The flags of a processor that change what a compiled program does, or whether it runs at all.
FLAGS = re.compile(
    r"sse4_[12]|ssse3|popcnt|avx\w*|fma|f16c|bmi[12]|amx_\w+|sha_ni|vaes"  # x86
    r"|asimd\w*|sve\w*|sme2?|bf16|i8mm|fphp|atomics"  # Arm
    r"|vsx|altivec"  # POWER
)
# Which variables change what numerical programs, Python and MPI do.
VARIABLES = re.compile(
    r"(?:OMP|KMP|GOMP|MKL|OPENBLAS|BLIS|VECLIB|NUMEXPR|NUMBA|CUDA|NVIDIA|NCCL|ROCR|ROCM|HIP|TORCH|"
    r"PYTORCH|TF|XLA|JAX|OMPI|MPICH|I_MPI|UCX|FI|PMIX|PYTHON|CONDA|LD|MALLOC)_?[A-Z0-9_]*"
    r"|VIRTUAL_ENV|MPLBACKEND|LANG|LC_ALL|TZ|LOADEDMODULES"
)
NAME_BYTES = 96


def surroundings() -> dict[str, Any]:
    """Gather all of it."""
    return {
        "version": VERSION,
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable or "",
        },
        "packages": packages(),
        "system": {
            "platform": f"{platform.system()} {platform.machine()}",
            "distribution": distribution(_text("/etc/os-release")),
            "kernel": platform.release(),
            "libc": " ".join(_libc()),
            "host": platform.node(),
        },
        "cpu": cpu(_text("/proc/cpuinfo")),
        "memory": memory(),
        "gpus": gpus(),
        "modules": [name for name in os.environ.get("LOADEDMODULES", "").split(":") if name],
        "variables": sorted(name for name in os.environ if VARIABLES.fullmatch(name)),
    }


def packages() -> dict[str, str]:
    """Return what is installed, by normal names; of two of a name, the one that is imported."""
    found: dict[str, str] = {}
    for one in metadata.distributions():
        try:
            name, version = one.metadata["Name"], one.version
        except Exception:  # A broken package is no reason to stop.
            continue
        if name and version:
            found.setdefault(re.sub(r"[-_.]+", "-", str(name)).lower(), str(version))
    return dict(sorted(found.items()))


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _libc() -> tuple[str, str]:
    try:
        # Faster and surer than reading the interpreter's file, as `platform` does.
        name, _, version = str(os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return name, version
    except (AttributeError, OSError, ValueError):
        return platform.libc_ver()


def distribution(os_release: str) -> str:
    """Read what a Linux calls itself."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', os_release, re.MULTILINE)
    return found.group(1) if found else ""


def cpu(cpuinfo: str) -> dict[str, Any]:
    """Read what processors there are, and what they can do."""
    lines = [line.partition(":") for line in cpuinfo.splitlines()]
    values: dict[str, str] = {}
    for key, _, value in lines:
        values.setdefault(key.strip().lower(), value.strip())
    names = ("model name", "cpu model", "hardware", "cpu", "uarch")
    model = next((values[name] for name in names if values.get(name)), platform.processor())
    flags = " ".join(values.get(key, "") for key in ("flags", "features")).split()
    return {
        "model": " ".join(model.split()),
        "count": os.cpu_count() or 0,
        "usable": _usable_cores(),
        "flags": sorted({flag for flag in flags if FLAGS.fullmatch(flag)}),
    }


def _usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 0


def memory() -> int:
    """Return the bytes of main memory that there are."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def gpus() -> list[dict[str, Any]]:
    """Ask NVIDIA's management library, if it is there, which comes with the driver."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2():
            return []
        try:
            return _devices(nvml)
        finally:
            nvml.nvmlShutdown()
    except (AttributeError, OSError):  # There is no such library, or a very old one.
        return []


def _devices(nvml: Any) -> list[dict[str, Any]]:
    text = ctypes.create_string_buffer(NAME_BYTES)
    driver = "" if nvml.nvmlSystemGetDriverVersion(text, NAME_BYTES) else text.value.decode()
    number = ctypes.c_int()
    cuda = ""
    if not nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(number)):
        cuda = f"{number.value // 1000}.{number.value % 1000 // 10}"
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    found = []
    for index in range(count.value):
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)):
            continue
        name = "" if nvml.nvmlDeviceGetName(device, text, NAME_BYTES) else text.value.decode()
        sizes = (ctypes.c_ulonglong * 3)()  # total, free, used
        nvml.nvmlDeviceGetMemoryInfo(device, sizes)
        major, minor = ctypes.c_int(), ctypes.c_int()
        is_said = not nvml.nvmlDeviceGetCudaComputeCapability(
            device, ctypes.byref(major), ctypes.byref(minor)
        )
        found.append(
            {
                "name": name,
                "driver": driver,
                "cuda": cuda,
                "capability": f"{major.value}.{minor.value}" if is_said else "",
                "memory": sizes[0],
            }
        )
    return found


if __name__ == "__main__":
    print(json.dumps(surroundings()))
