"""NVIDIA's management library with two GPUs, as far as it is asked for here, without any."""

from __future__ import annotations

from typing import Any

DRIVER, CUDA = b"570.86.15", 12080
NAMES = (b"NVIDIA A100-SXM4-40GB", b"NVIDIA A100-SXM4-80GB")
TOTAL, USED = (40 << 30, 80 << 30), (1 << 30, 3 << 30)
BUSY = (25, 75)


class FakeNvml:
    """Fills in what it is given, as a C function does."""

    def __init__(self, name: str = "") -> None:
        assert name == "libnvidia-ml.so.1"

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlShutdown(self) -> int:
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, length: int) -> int:
        assert length > len(DRIVER)
        text.value = DRIVER
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, number: Any) -> int:
        number._obj.value = CUDA
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(NAMES)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
        device._obj.value = index.value + 1  # What is 0 is no pointer.
        return 0

    def nvmlDeviceGetName(self, device: Any, text: Any, length: int) -> int:
        text.value = NAMES[device.value - 1][: length - 1]
        return 0

    def nvmlDeviceGetMemoryInfo(self, device: Any, found: Any) -> int:
        total, used = TOTAL[device.value - 1], USED[device.value - 1]
        if hasattr(found, "_obj"):
            found._obj.total, found._obj.free, found._obj.used = total, total - used, used
        else:
            found[:] = [total, total - used, used]
        return 0

    def nvmlDeviceGetUtilizationRates(self, device: Any, rates: Any) -> int:
        rates[:] = [BUSY[device.value - 1], 10]
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, device: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 8, 0
        return 0


class Broken(FakeNvml):
    """A library whose driver does not answer."""

    def nvmlInit_v2(self) -> int:
        return 9
