"""What this machine is and does, and what processes use of it over time."""

from __future__ import annotations

import ctypes
import os
import time

from .files import read_text, to_json, try_to, write_file
from .processes import descendants, read_small

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from .order import Order

VERSION = 1
# Seconds between two looks at what processes use, at first; how many looks are kept at most; and
# how many times longer than a look the pause after it is at least: looking must not cost anything.
USAGE_SECONDS, USAGE_POINTS, USAGE_PAUSE = 0.5, 200, 200


def usable_cores() -> int:
    """Return how many cores this process may use; 1 where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def total_memory() -> int:
    """Return the bytes of main memory; 0: the machine does not say."""
    try:
        # In some containers only this file has the container's own memory.
        text = read_text("/proc/meminfo").partition("MemTotal:")[2]
        return int(text.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return 0


def machine_reading() -> dict[str, Any]:
    """Return what the machine is and does now, by which measurements on it are judged."""
    found: dict[str, Any] = {
        "time": time.time(),
        "clock": time.monotonic(),
        "host": os.uname().nodename,
        "cores": usable_cores(),
        "all_cores": os.cpu_count() or 1,
        "load": os.getloadavg()[0],
    }
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = (line for line in file if line.startswith("model name"))
            found["cpu"] = next(lines, "").partition(":")[2].strip()
        with open("/proc/stat", encoding="utf-8") as file:
            # user, nice, system, idle, iowait, irq, softirq, steal
            found["ticks"] = [int(field) for field in file.readline().split()[1:9]]
        with open("/proc/pressure/cpu", encoding="utf-8") as file:
            words = [word.partition("=") for word in file.readline().split()]
        told = {name: value for name, _, value in words}
        found["psi_avg10"], found["psi_total"] = float(told["avg10"]), int(told["total"])
    except (OSError, ValueError, LookupError):
        pass  # What a machine does not tell is not there.
    return found


def used_by(pids: Iterator[int]) -> tuple[float, int]:
    """Return the seconds of CPU and the bytes of memory that processes use together.

    With the seconds of those that they have waited for. What processes share is counted once.
    """
    ticks = pages = most_shared = 0
    for pid in pids:
        fields = read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        memory = read_small(f"/proc/{pid}/statm").split()
        if len(fields) < 15 or len(memory) < 3:
            continue  # It has just ended.
        ticks += sum(map(int, fields[11:15]))
        pages += int(memory[1]) - int(memory[2])
        most_shared = max(most_shared, int(memory[2]))
    seconds = ticks / os.sysconf("SC_CLK_TCK")
    return seconds, (pages + most_shared) * os.sysconf("SC_PAGE_SIZE")


def cpu_of_ended() -> float:
    """Return the seconds of CPU of all that this process has waited for."""
    times = os.times()
    return times.children_user + times.children_system


class Gpus:
    """What the GPUs do, asked of NVIDIA's library in a thread: a broken driver may not answer."""

    def __init__(self, visible: str) -> None:
        # How busy the busiest is, from 0 to 1, and the bytes in use on all; None: not known.
        self.latest: tuple[float, int] | None = None
        self._is_wanted = True
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        import _thread

        numbers = visible.split(",")
        self._wanted = [int(text) for text in numbers] if all(map(str.isdigit, numbers)) else None
        _thread.start_new_thread(self._watch, ())

    def stop(self) -> None:
        """Ask no more."""
        self._is_wanted = False

    def _watch(self) -> None:
        try:
            if self._library.nvmlInit_v2() == 0:
                devices = self._devices()
                while devices and self._is_wanted:
                    self.latest = self._ask(devices)
                    time.sleep(USAGE_SECONDS)
        except AttributeError:
            pass  # It is too old, or something else.

    def _devices(self) -> list[ctypes.c_void_p]:
        count = ctypes.c_uint()
        self._library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        found = []
        for number in range(count.value):
            if self._wanted is not None and number not in self._wanted:
                continue
            device = ctypes.c_void_p()
            ask = self._library.nvmlDeviceGetHandleByIndex_v2
            if ask(ctypes.c_uint(number), ctypes.byref(device)) == 0:
                found.append(device)
        return found

    def _ask(self, devices: Sequence[ctypes.c_void_p]) -> tuple[float, int]:
        busiest, used = 0, 0
        for device in devices:
            rates = (ctypes.c_uint * 2)()  # of the processor, of its memory
            if self._library.nvmlDeviceGetUtilizationRates(device, rates) == 0:
                busiest = max(busiest, rates[0])
            sizes = (ctypes.c_ulonglong * 3)()  # total, free, used
            if self._library.nvmlDeviceGetMemoryInfo(device, sizes) == 0:
                used += sizes[2]
        return busiest / 100, used


class UsageMeter:
    """What everything that this process has started uses, over time; in a file of bounded size."""

    def __init__(self, path: str, visible_gpus: str) -> None:
        # When to look next.
        self.due = time.monotonic() + USAGE_SECONDS
        self._path = path
        self._visible_gpus = visible_gpus
        self._gpus: Gpus | None = None
        self._began, self._started = time.time(), time.monotonic()
        self._last, self._last_cpu = self._started, cpu_of_ended()
        self._every = USAGE_SECONDS
        # The time since the start, cores, bytes; and with GPUs how busy they are, and bytes.
        self._points: list[list[float]] = []
        self._peak = 0
        self._is_new = False

    def look(self) -> None:
        """Look at what is used now."""
        now = time.monotonic()
        self._gpus = self._gpus or Gpus(self._visible_gpus)
        cpu, memory = used_by(descendants(os.getpid()))
        cpu += cpu_of_ended()
        rate = max(0.0, cpu - self._last_cpu) / max(now - self._last, 1e-3)
        gpu = self._gpus.latest or (0.0, 0)
        self._points.append([round(now - self._started, 2), round(rate, 3), memory, *gpu])
        self._last, self._last_cpu, self._is_new = now, max(cpu, self._last_cpu), True
        self._peak = max(self._peak, memory)
        if len(self._points) >= USAGE_POINTS:
            self._thin()
        pause = max(self._every, USAGE_PAUSE * (time.monotonic() - now))
        self.due = now + pause

    def _thin(self) -> None:
        """Make one point of two: the mean of a rate, the greater one of two amounts."""
        pairs = zip(self._points[::2], self._points[1::2], strict=False)
        self._points = [
            [b[0], round((a[1] + b[1]) / 2, 3), max(a[2], b[2]), (a[3] + b[3]) / 2, max(a[4], b[4])]
            for a, b in pairs
        ]
        self._every *= 2

    def write(self) -> None:
        """Write what is new; one look alone is no curve."""
        if not self._is_new or len(self._points) < 2:
            return
        names = ["time", "cpu", "memory"]
        if self._gpus and self._gpus.latest:
            names += ["gpu", "gpu_memory"]
        columns = zip(*self._points, strict=True)
        data = {
            "version": VERSION,
            "began": self._began,
            "cores": usable_cores(),
            "cpu_seconds": round(max(self._last_cpu, cpu_of_ended()), 2),
            "peak_memory": self._peak,
            **{name: list(column) for name, column in zip(names, columns, strict=False)},
        }
        # Without it, a report lacks a plot: no outcome depends on it.
        try_to(write_file, self._path, to_json(data) + "\n")
        self._is_new = False

    def close(self) -> None:
        """Write it for the last time, with what was used since the last look."""
        self._is_new = True
        self.write()
        if self._gpus:
            self._gpus.stop()


def usage_for(order: Order, folder: str) -> UsageMeter:
    """Return a meter of what is used; it never looks where something else is measured."""
    variables = {**os.environ, **order.environment}
    visible = ",".join(order.gpus) or variables.get("CUDA_VISIBLE_DEVICES", "")
    meter = UsageMeter(f"{folder}/usage.json", visible)
    if order.is_measured or not os.path.isdir("/proc/self/task"):
        meter.due = float("inf")
    return meter
