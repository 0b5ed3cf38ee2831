"""What pods need beside their image: the order, our own part, the runner and people's code."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise import runner
from rankwise.compute.code import copy_code
from rankwise.compute.contract import Job
from rankwise.compute.kubernetes import inside
from rankwise.compute.kubernetes.layout import Layout, layout_of
from rankwise.compute.order import make_order
from rankwise.errors import ComputeFailure
from rankwise.site.choices import KubernetesChoice

MOST_BYTES = 1_000_000
"""What a ConfigMap may hold; Kubernetes takes 1 MiB, with what it adds itself."""
_PACKAGE = "rankwise/compute/kubernetes/inside"
_NEVER_CHANGES = (1980, 1, 1, 0, 0, 0)
# All nodes of one are in the same network: nothing is to be assumed of it.
_DEFAULTS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The contents of a ConfigMap."""

    order: str
    parts: Mapping[str, bytes]


def deliver(job: Job, choice: KubernetesChoice, code: Path | None) -> Delivery:
    """Pack what the pods of a task need; `code` is a folder with a copy of people's code.

    ComputeFailure: it is too much for a ConfigMap.
    """
    order = json.dumps(pod_order(job, choice), separators=(",", ":"))
    parts = {"pod.pyz": own_part(), "runner.py": Path(str(runner.__file__)).read_bytes()}
    packed = pack(code) if code is not None else b""
    if packed:
        parts["code.tgz"] = packed
    total = len(order.encode()) + sum(map(len, parts.values()))
    if total > MOST_BYTES:
        raise ComputeFailure(_too_much(job, choice, len(packed), total))
    return Delivery(order=order, parts=parts)


def _too_much(job: Job, choice: KubernetesChoice, packed: int, total: int) -> str:
    del choice
    room = MOST_BYTES - (total - packed)
    if not packed or room <= 0:
        return f"{job.attempt.label}: {total} bytes are more than a ConfigMap holds ({MOST_BYTES})"
    return (
        f"{job.task.code or job.task.folder}: {packed / 1e6:.1f} MB of code after compression, and "
        f"a ConfigMap has room for {room / 1e6:.1f} MB: name what is not code in .rankwiseignore, "
        'or have the code in the image (code = "image") or on a volume (code = "claim")'
    )


def pod_order(job: Job, choice: KubernetesChoice) -> dict[str, Any]:
    """Say what the runner in the head has to do; where the pods are, the head will know."""
    folder = Path(choice.mount) / "work" / "attempt"
    layout = layout_of(job.task)
    inner = dataclasses.replace(job, attempt=dataclasses.replace(job.attempt, folder=folder))
    nodes = [
        {
            "name": f"node{number}",
            "address": "",
            "folder": work_folder(job, choice, number),
            "is_apart": is_apart(layout, number),
        }
        for number in range(job.task.nodes)
    ]
    order = make_order(inner, nodes, defaults=_DEFAULTS)
    # What the client's machine has in its environment is not there.
    order["unset"] = []
    order["brings_files"] = choice.code == "configmap"
    return order


def work_folder(job: Job, choice: KubernetesChoice, node: int) -> str:
    """Name the folder in a pod in which processes work."""
    if choice.code != "configmap":
        return choice.code_path
    if job.task.code:
        return f"{choice.mount}/work/attempt/nodes/node{node}"
    return job.task.folder


def is_apart(layout: Layout, node: int) -> bool:
    """Tell whether a node is there for a launcher alone, which starts no ranks beside itself."""
    return bool(layout.others) and node in layout.head.nodes


def copy_of_code(job: Job, choice: KubernetesChoice) -> Path | None:
    """Copy people's code into the attempt, as it is now; None: pods have it from elsewhere.

    ComputeFailure: there is no such folder, or too much in it.
    """
    if choice.code != "configmap":
        return None
    place = job.attempt.folder / "nodes" / "node0"
    copy_code(Path(job.task.code or job.task.folder), place)
    return place


def pack(folder: Path) -> bytes:
    """Make an archive of a folder: the same one for the same contents."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=_plain)
    return gzip.compress(raw.getvalue(), mtime=0)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out who owns it and when; in the pod it is another's, and as old as the pod."""
    if not (entry.isfile() or entry.isdir() or entry.issym()):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    entry.mode |= 0o444 | (0o111 if entry.isdir() else 0)
    return entry


@functools.cache
def own_part() -> bytes:
    """Give what runs in pods as one file that Python can start."""
    package = Path(str(inside.__file__)).parent
    files = {"__main__.py": _MAIN}
    for depth in range(1, len(Path(_PACKAGE).parts)):
        files["/".join((*Path(_PACKAGE).parts[:depth], "__init__.py"))] = ""
    files |= {f"{_PACKAGE}/{path.name}": path.read_text() for path in sorted(package.glob("*.py"))}
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, _NEVER_CHANGES), text, zipfile.ZIP_DEFLATED)
    return raw.getvalue()


_MAIN = """\
import sys
from rankwise.compute.kubernetes.inside.pod import main
sys.exit(main(sys.argv[1:]))
"""
