"""Hands attempts to a cluster: everything is there before anything begins.

The Job of the head is made first, suspended, and owns all the rest; then it is let go. A client
that is killed in between leaves a Job behind that never runs, and its name says whose it was.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise import records
from rankwise.compute.contract import Attempt, Job
from rankwise.compute.kubernetes.client import Cluster
from rankwise.compute.kubernetes.delivery import copy_of_code, deliver, is_apart
from rankwise.compute.kubernetes.layout import layout_of
from rankwise.compute.kubernetes.manifests import HEAD_PART, MARKER, PART, objects_for, owned
from rankwise.compute.order import make_order, write_beside
from rankwise.errors import ComputeFailure
from rankwise.site import ComputeChoice

OTHERS = "kubernetes.json"
"""The file with the Jobs that are made once the head has an address."""
_KEY_BYTES = 32
# An address that is nobody's (RFC 5737), in the place of the head's.
_NOBODY = "192.0.2.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """An attempt that is ready to be handed over."""

    attempt: Attempt
    head: Mapping[str, Any]
    rest: tuple[dict[str, Any], ...]
    """What the head needs."""
    others: tuple[dict[str, Any], ...]
    """Jobs that need to know where the head is."""

    @property
    def name(self) -> str:
        return str(self.head["metadata"]["name"])


def parcel_for(job: Job, choice: ComputeChoice) -> Parcel:
    """Make everything that an attempt needs there; ComputeFailure: it cannot be."""
    attempt, site = job.attempt, choice.kubernetes
    try:
        code = copy_of_code(job, site)
        delivery = deliver(job, site, code)
        _write_order(job)
    except OSError as error:
        raise ComputeFailure(
            f"{attempt.label} could not be made ready in {attempt.folder}: {error.strerror}"
        ) from error
    values = {f"secret.{name}": value for name, value in job.secrets.items()}
    objects = objects_for(
        job.task,
        choice,
        run=attempt.label.partition("/")[0],
        attempt=attempt.marker,
        head_address=_NOBODY,
        order=delivery.order,
        parts=delivery.parts,
        secrets={"key": secrets.token_hex(_KEY_BYTES), **values},
        has_frames=True,
    )
    jobs = [one for one in objects if one["kind"] == "Job"]
    head = next(one for one in jobs if one["metadata"]["labels"][PART] == HEAD_PART)
    return Parcel(
        attempt=attempt,
        head={**head, "spec": {**head["spec"], "suspend": True}},
        rest=tuple(one for one in objects if one["kind"] != "Job"),
        others=tuple(one for one in jobs if one is not head),
    )


def _write_order(job: Job) -> None:
    """Write down here what is done there: checks look for files by it."""
    folder, layout = job.attempt.folder, layout_of(job.task)
    nodes = [
        {
            "name": f"node{number}",
            "address": "",
            "folder": str(folder / "nodes" / f"node{number}"),
            "is_apart": is_apart(layout, number),
        }
        for number in range(job.task.nodes)
    ]
    order = make_order(job, nodes, defaults={})
    write_beside(folder / records.ORDER, json.dumps(order))


def hand_over(parcel: Parcel, cluster: Cluster) -> str:
    """Make the objects of an attempt, and let its head begin; gives the name of its Job.

    ComputeFailure: nothing has begun, and nothing is left.
    """
    head = cluster.create(parcel.head)
    try:
        others = owned(parcel.others, head)
        write_beside(parcel.attempt.folder / OTHERS, json.dumps(others))
        for one in owned(parcel.rest, head):
            cluster.create(one)
        cluster.release(parcel.name)
    except (ComputeFailure, OSError):
        cluster.delete_job(parcel.name)
        raise
    return parcel.name


def others_of(folder: Path, head_address: str) -> list[dict[str, Any]]:
    """Give the Jobs that are still to be made, now that the head has an address."""
    try:
        text = (folder / OTHERS).read_text()
    except OSError:
        return []
    found: list[dict[str, Any]] = json.loads(text.replace(_NOBODY, head_address))
    return found


def find_head(marker: str, cluster: Cluster) -> Mapping[str, Any] | None:
    """Find the Job of an attempt's head, by its label; None: there is none."""
    found = cluster.jobs({MARKER: marker, PART: HEAD_PART})
    return found[0] if found else None
