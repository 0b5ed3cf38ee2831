"""Made machines: folders as the kernel shows its cores in /sys, and commands that see one there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path


def make_machine(
    folder: Path,
    *,
    cores: Sequence[str] = (),
    l3: Sequence[str] = (),
    numa: Sequence[str] = (),
    socket: Sequence[str] = (),
) -> Path:
    """Write the lists of cores of each domain, as in /sys/devices/system; a level may be missing."""
    files = {
        "topology/core_cpus_list": cores,
        "cache/index3/shared_cpu_list": l3,
        "topology/package_cpus_list": socket,
    }
    for name, domains in files.items():
        for domain in domains:
            for core in numbers_in(domain):
                file = folder / f"cpu/cpu{core}" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(f"{domain}\n")
    for number, domain in enumerate(numa):
        node = folder / f"node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{domain}\n")
    return folder


def numbers_in(domain: str) -> list[int]:
    """Return the cores of a list such as `0-1,4`, read in another way than the product does."""
    found: list[int] = []
    for part in domain.split(","):
        ends = [int(number) for number in part.split("-") if number]
        found += range(ends[0], ends[-1] + 1) if ends else ()
    return found


def two_domains(folder: Path) -> Path:
    """Make a machine of two cores, each with its L3 cache, NUMA domain and socket."""
    each = ("0", "1")
    made = make_machine(folder, cores=each, l3=each, numa=each, socket=each)
    # What libraries of C ask for.
    for name in ("online", "possible", "present"):
        (made / "cpu" / name).write_text("0-1\n")
    return made


# Another user than root may mount in a user namespace.
_UNSHARE = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
_MOUNT = 'mount --bind "$0" /sys/devices/system && exec "$@"'


def seeing(machine: Path) -> list[str]:
    """Return what goes before a command that is to see this machine in the place of the real."""
    return [*_UNSHARE, "sh", "-c", _MOUNT, str(machine)]


def obstacle(machine: Path) -> str:
    """Return why no command can see a made machine here; empty: it can."""
    tried = subprocess.run(
        [*seeing(machine), "cat", "/sys/devices/system/cpu/online"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    return "" if tried.stdout == "0-1\n" else f"cannot mount over /sys: {tried.stderr.strip()}"
