"""What pods get, and in which order their objects are created."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import io
import json
import secrets
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise.backends.base import Attempt, Submission
from rankwise.backends.kubernetes import objects
from rankwise.backends.kubernetes.client import ApiClient
from rankwise.backends.orders import MAIN, make_order, own_files
from rankwise.documents.site_models import ComputeConfig, KubernetesConfig
from rankwise.errors import ComputeFailure
from rankwise.files import copy_code
from rankwise.node.files import write_file
from rankwise.node.order import NodeOrder, Order

MOST_BYTES = 1_000_000
"""What a ConfigMap may hold; Kubernetes takes 1 MiB, with what it adds itself."""
# The earliest time that an entry of a zip archive can have.
_NEVER_CHANGES = (1980, 1, 1, 0, 0, 0)


def deliver(
    job: Submission, choice: KubernetesConfig, code: Mapping[str, Path]
) -> tuple[str, dict[str, bytes]]:
    """Return the order of a task, and by name what else its pods need, for a ConfigMap.

    `code` are folders with copies of people's code, see `copy_of_code`.
    ComputeFailure: it is too much for a ConfigMap.
    """
    order = json.dumps(pod_order(job, choice).data(), separators=(",", ":"))
    packed = {name: pack(folder) for name, folder in code.items()}
    parts = {"pod.pyz": own_part(), **packed}
    total = len(order.encode()) + sum(map(len, parts.values()))
    if total > MOST_BYTES:
        raise ComputeFailure(_too_much(job, sum(map(len, packed.values())), total))
    return order, parts


def _too_much(job: Submission, packed: int, total: int) -> str:
    room = MOST_BYTES - (total - packed)
    if not packed or room <= 0:
        return f"{job.attempt.label}: {total} bytes are more than a ConfigMap holds ({MOST_BYTES})"
    return (
        f"{job.task.code or job.task.folder}: {packed / 1e6:.1f} MB of code after compression, and "
        f"a ConfigMap has room for {room / 1e6:.1f} MB: name what is not code in .rankwiseignore, "
        'or have the code in the image (code = "image") or on a volume (code = "claim")'
    )


def pod_order(job: Submission, choice: KubernetesConfig) -> Order:
    """Return the order of the runner in the head, which learns later where the other pods are."""
    folder = Path(choice.mount) / "work" / "attempt"
    inner = dataclasses.replace(job, attempt=dataclasses.replace(job.attempt, folder=folder))
    if choice.code != "configmap":
        place = choice.code_path
    else:
        place = f"{folder}/nodes/node%d" if job.task.code else job.task.folder
    order = make_order(inner, _nodes(job, place))
    # What the client's machine has in its environment is not there.
    # Each role has pods of its own: a process works where its node does.
    processes = [one.replace(folder="") for one in order.processes]
    more = {"processes": processes, "brings_files": choice.code == "configmap"}
    return order.replace(unset=[], **more)


def _nodes(job: Submission, place: str) -> list[NodeOrder]:
    """Return the nodes of a task; %d in the folder stands for the node's number."""
    layout = objects.layout_of(job.task)
    return [
        NodeOrder(
            name=f"node{number}",
            address="",
            folder=place.replace("%d", str(number)),
            # A launcher's own node starts no ranks beside the launcher.
            is_apart=bool(layout.others) and number in layout.head.nodes,
        )
        for number in range(job.task.nodes)
    ]


def copy_of_code(job: Submission, choice: KubernetesConfig) -> dict[str, Path]:
    """Copy the user's code into the attempt, as it is now; none: pods have it from elsewhere.

    Returns the folders by the names of their archives: that of the task, and those of roles.
    ComputeFailure: there is no such folder, or too much in it.
    """
    if choice.code != "configmap":
        return {}
    own = {f"code-{one.role}.tgz": one.code for one in job.task.processes if one.code}
    folders = {"code.tgz": job.task.code or job.task.folder, **own}
    places = {}
    for name, folder in folders.items():
        places[name] = job.attempt.folder / "nodes" / name.replace("code", "node0")[:-4]
        copy_code(Path(folder), places[name])
    return places


def pack(folder: Path) -> bytes:
    """Make an archive of a folder: the same one for the same contents."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=_plain)
    # Without a time: equal code makes an equal ConfigMap.
    return gzip.compress(raw.getvalue(), mtime=0)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out owners and times: the same contents must make the same archive."""
    if not (entry.isfile() or entry.isdir() or entry.issym()):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    entry.mode |= 0o444 | (0o111 if entry.isdir() else 0)
    return entry


@functools.cache
def own_part() -> bytes:
    """Return what runs in pods as one file that Python can start."""
    own = own_files()
    main = _MAIN.replace("MAIN", MAIN).replace("NAMES", repr([*own]))
    files = {MAIN: main.encode(), **{f"node/{name}": content for name, content in own.items()}}
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _NEVER_CHANGES), content, zipfile.ZIP_DEFLATED)
    return raw.getvalue()


# Not run from within the archive: Python keeps what it has compiled only of files, and every rank
# would compile it anew. Without `zipfile`: images that were made small lack what that needs.
_MAIN = """\
import os, sys
place = os.path.join(os.environ["RANKWISE_WORK"], "node")
os.makedirs(place, exist_ok=True)
for name in NAMES:
    with open(os.path.join(place, name), "wb") as file:
        file.write(__loader__.get_data("node/" + name))
words = [sys.executable, "-I", "-S", os.path.join(place, "MAIN")]
os.execv(sys.executable, [*words, *sys.argv[1:]])
"""


OTHERS = "kubernetes.json"
"""The file with the Jobs that are made once the head has an address."""
_KEY_BYTES = 32
# An address for documentation (RFC 5737), until that of the head is known.
_UNKNOWN_ADDRESS = "192.0.2.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPackage:
    """An attempt that is ready to be handed over."""

    attempt: Attempt
    head: Mapping[str, Any]
    rest: tuple[dict[str, Any], ...]
    """What the head needs."""
    others: tuple[dict[str, Any], ...]
    """Jobs that need to know where the head is."""


def package_for(job: Submission, choice: ComputeConfig) -> PodPackage:
    """Return all objects of an attempt; ComputeFailure: they cannot be made."""
    attempt, site = job.attempt, choice.kubernetes
    try:
        code = copy_of_code(job, site)
        order, parts = deliver(job, site, code)
        # Beside the records as well: checks find files by it.
        nodes = _nodes(job, f"{attempt.folder}/nodes/node%d")
        make_order(job, nodes).write(attempt.folder)
    except OSError as error:
        why = f"{attempt.label} could not be made ready in {attempt.folder}: {error.strerror}"
        raise ComputeFailure(why) from error
    values = {f"secret.{name}": value for name, value in job.secrets.items()}
    made = objects.objects_for(
        job.task,
        choice,
        run=attempt.label.partition("/")[0],
        attempt=attempt.marker,
        head_address=_UNKNOWN_ADDRESS,
        order=order,
        parts=parts,
        secrets={"key": secrets.token_hex(_KEY_BYTES), **values},
        has_frames=True,
    )
    jobs = [one for one in made if one["kind"] == "Job"]
    head = next(one for one in jobs if one["metadata"]["labels"][objects.PART] == objects.HEAD_PART)
    return PodPackage(
        attempt=attempt,
        # Suspended until everything that it needs is there: then one patch starts it.
        head={**head, "spec": {**head["spec"], "suspend": True}},
        rest=tuple(one for one in made if one["kind"] != "Job"),
        others=tuple(one for one in jobs if one is not head),
    )


def create_objects(package: PodPackage, cluster: ApiClient) -> str:
    """Make the objects of an attempt, and let its head begin; return the name of its Job.

    ComputeFailure, OSError: nothing has begun, and nothing is left.
    """
    # The head's Job first: it owns all else, and so all else is removed with it.
    head = cluster.create(package.head)
    name = str(head["metadata"]["name"])
    try:
        write_file(package.attempt.folder / OTHERS, json.dumps(objects.owned(package.others, head)))
        for one in objects.owned(package.rest, head):
            cluster.create(one)
        cluster.release(name)
    except (ComputeFailure, OSError):
        cluster.delete_job(name)
        raise
    return name


def others_of(folder: Path, head_address: str) -> list[dict[str, Any]]:
    """Return the Jobs that are still to be made, now that the head has an address.

    ComputeFailure: they are not known. OSError: they cannot be read now.
    """
    place = folder / OTHERS
    try:
        # Recorded here: also another client can make these Jobs.
        text = place.read_text()
        found: list[dict[str, Any]] = json.loads(text.replace(_UNKNOWN_ADDRESS, head_address))
    except (FileNotFoundError, ValueError) as error:
        raise ComputeFailure(f"{place} does not say which pods there are to be: {error}") from error
    return found


def find_head(marker: str, cluster: ApiClient) -> Mapping[str, Any] | None:
    """Return the Job of an attempt's head, found by its label; None: there is none."""
    found = cluster.jobs({objects.MARKER: marker, objects.PART: objects.HEAD_PART})
    return found[0] if found else None
