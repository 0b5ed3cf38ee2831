"""MPIJob of kubeflow.org/v2beta1 as the operator takes it, of what rankwise writes: nothing else.

No package carries the models of this version. Names, types and rules are those of its public
schema and of the checks that the operator makes beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_WHOLE = int
_RESTART = ("Never", "OnFailure")
_FIELDS: Mapping[str, Any] = {
    "apiVersion": ("kubeflow.org/v2beta1",),
    "kind": ("MPIJob",),
    "metadata": dict,
    "spec": {
        "slotsPerWorker": _WHOLE,
        "runLauncherAsWorker": bool,
        "sshAuthMountPath": str,
        "launcherCreationPolicy": ("AtStartup", "WaitForWorkersReady"),
        "mpiImplementation": ("OpenMPI", "Intel", "MPICH"),
        "runPolicy": {
            "cleanPodPolicy": ("None", "Running", "All"),
            "ttlSecondsAfterFinished": _WHOLE,
            "activeDeadlineSeconds": _WHOLE,
            "backoffLimit": _WHOLE,
            "suspend": bool,
        },
        "mpiReplicaSpecs": {
            name: {"replicas": _WHOLE, "restartPolicy": _RESTART, "template": dict}
            for name in ("Launcher", "Worker")
        },
    },
}
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def wrong_in(job: Mapping[str, Any]) -> list[str]:
    """Say what the operator would refuse; templates of pods are for others to judge."""
    found = list(_wrong(job, _FIELDS, ""))
    if found:
        return found
    specs = job["spec"]["mpiReplicaSpecs"]
    last = f"{job['metadata']['name']}-worker-{specs['Worker']['replicas'] - 1}"
    if not _LABEL.fullmatch(last):
        found.append(f"{last} cannot be the name of a host")
    if specs["Launcher"]["replicas"] != 1 or specs["Worker"]["replicas"] < 1:
        found.append("one launcher and at least one worker")
    return found


def _wrong(value: Any, expected: Any, path: str) -> Iterator[str]:
    match expected:
        case tuple():
            if value not in expected:
                yield f"{path}: {value!r} is none of {expected}"
        case type():
            is_right = type(value) is expected
            if not is_right or (isinstance(value, int) and value < 0):
                yield f"{path}: {value!r} is no {expected.__name__}"
        case _:
            if not isinstance(value, Mapping):
                yield f"{path}: {value!r} is no mapping"
                return
            for key, entry in value.items():
                if key in expected:
                    yield from _wrong(entry, expected[key], f"{path}.{key}")
                else:
                    yield f"{path}.{key} is unknown"
