"""The API objects of a task, as plain data. Pure: nothing is asked, read or sent.

A ConfigMap and a Secret with what the pods need, a Service without an address by which they have
names, and an Indexed Job for each role. The head is told nothing of the others: they are told where
it is, and come to it. So a cluster needs no names for its pods: whoever makes the Jobs of the
others after the head has its address can give that.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rankwise.compute.kubernetes.layout import (
    HEAD,
    HEAD_LIMIT,
    Group,
    dns_name,
    job_name,
    label,
    layout_of,
    service_name,
)
from rankwise.compute.kubernetes.quantities import quantities
from rankwise.compute.kubernetes.start import START
from rankwise.errors import ComputeFailure
from rankwise.plan import Task
from rankwise.site.choices import ComputeChoice, KubernetesChoice

MARKER = "rankwise.dev/attempt"
"""The label by which everything that an attempt has made is found."""
RUN, TASK, PART, ROLE = (f"rankwise.dev/{name}" for name in ("run", "task", "part", "role"))
MANAGER = {"app.kubernetes.io/managed-by": "rankwise"}
HEAD_PART, OTHER_PART = "head", "other"
CONTAINER = "main"
# Our own part ends what it has started when it is asked to, which takes two graces of the runner.
_END_SECONDS = 30
# With a user of our own, files are the group's, too.
_MODE, _MODE_FOR_ANY = 0o440, 0o444


def image_of(task: Task, choice: ComputeChoice) -> str:
    """Name the image that a task runs in; ComputeFailure: nobody says which."""
    if task.runtime.kind == "container":
        return task.runtime.image
    if choice.kubernetes.image:
        return choice.kubernetes.image
    raise ComputeFailure(
        f'there is no image for environment "{task.runtime.name}" on compute "{choice.name}": '
        f'write image = "…" in [compute.{choice.name}], or [runtime."{task.runtime.name}"] with '
        f'image = "…"'
    )


def objects_for(
    task: Task,
    choice: ComputeChoice,
    *,
    run: str,
    attempt: str,
    head_address: str = "",
    order: str = "",
    parts: Mapping[str, bytes] | None = None,
    secrets: Mapping[str, str] | None = None,
    has_frames: bool = False,
) -> list[dict[str, Any]]:
    """Give all API objects of a task, those first that others need.

    `attempt` is what makes their names unique. `head_address` is where the other pods find the
    head: empty, by the name that it has where the cluster has names. `order` and `parts` are the
    contents of the ConfigMap (see `delivery`), `secrets` those of the Secret. With `has_frames` the
    head writes what a client reads, otherwise what people do. ComputeFailure: there is no image.
    """
    made = _Making(task, choice, run=run, attempt=attempt, has_frames=has_frames)
    address = head_address or f"{made.head_job}-0.{made.name}"
    return [
        made.config_map(order, parts or {}),
        *([made.secret(secrets)] if secrets is not None else []),
        made.service(),
        made.job(made.layout.head, HEAD_PART),
        *(made.job(group, OTHER_PART, address) for group in made.layout.others),
    ]


def owned(objects: Sequence[dict[str, Any]], owner: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Have the cluster remove objects together with another one: the Job of the head."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": False,
        "controller": False,
    }
    return [
        {**one, "metadata": {**one["metadata"], "ownerReferences": [reference]}} for one in objects
    ]


class _Making:
    """The objects of one attempt."""

    def __init__(
        self, task: Task, choice: ComputeChoice, *, run: str, attempt: str, has_frames: bool
    ) -> None:
        self.layout = layout_of(task)
        self.name = service_name(attempt)
        self.head_job = job_name(attempt, self.layout.head.role)
        self._task, self._choice = task, choice
        self._site: KubernetesChoice = choice.kubernetes
        self._attempt = attempt
        self._image = image_of(task, choice)
        self._has_frames = has_frames
        self._labels = {
            **self._site.labels,
            **MANAGER,
            RUN: label(run),
            TASK: label(task.key),
            MARKER: label(attempt),
        }

    def _metadata(self, name: str, **labels: str) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": name, "labels": {**self._labels, **labels}}
        if self._site.namespace:
            metadata["namespace"] = self._site.namespace
        if self._site.annotations:
            metadata["annotations"] = dict(self._site.annotations)
        return metadata

    def config_map(self, order: str, parts: Mapping[str, bytes]) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": self._metadata(self.name),
            "data": {"order.json": order, **self._accounts()},
            "binaryData": {
                name: base64.b64encode(content).decode() for name, content in parts.items()
            },
        }

    def _accounts(self) -> dict[str, str]:
        """Give the user a name: Open MPI starts nothing for somebody who has none."""
        if not (user := self._site.user):
            return {}
        home = f"{self._site.mount}/work/home"
        return {
            "passwd": f"root:x:0:0:root:/root:/bin/sh\nrankwise:x:{user}:{user}::{home}:/bin/sh\n",
            "group": f"root:x:0:\nrankwise:x:{user}:\n",
        }

    def secret(self, values: Mapping[str, str]) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": self._metadata(self.name),
            "data": {
                name: base64.b64encode(value.encode(errors="surrogateescape")).decode()
                for name, value in values.items()
            },
        }

    def service(self) -> dict[str, Any]:
        """Give pods names where the cluster has names, also before they are ready."""
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self._metadata(self.name),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {MARKER: label(self._attempt)},
                "ports": [{"name": "head", "port": self._site.port}],
            },
        }

    def job(self, group: Group, part: str, head_address: str = "") -> dict[str, Any]:
        metadata = self._metadata(
            job_name(self._attempt, group.role), **{PART: part, ROLE: label(group.role)}
        )
        pod = {key: metadata[key] for key in ("labels", "annotations") if key in metadata}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {
                "completionMode": "Indexed",
                "completions": group.count,
                "parallelism": group.count,
                # To start again is the engine's part: all pods of a task together, or none.
                "backoffLimit": 0,
                "ttlSecondsAfterFinished": self._site.keep_seconds,
                "template": {"metadata": pod, "spec": self._pod(group, part, head_address)},
            },
        }

    def _pod(self, group: Group, part: str, head_address: str) -> dict[str, Any]:
        site = self._site
        pod: dict[str, Any] = {
            "restartPolicy": "Never",
            "subdomain": self.name,
            "terminationGracePeriodSeconds": _END_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": self._pod_security(),
            "containers": [self._container(group, part, head_address)],
            "volumes": [volume for volume, _ in self._volumes()],
        }
        optional: dict[str, Any] = {
            "serviceAccountName": site.service_account,
            "imagePullSecrets": [{"name": name} for name in site.pull_secrets],
            "nodeSelector": dict(site.node_selector),
            "tolerations": [dict(one) for one in site.tolerations],
            "priorityClassName": site.priority_class,
            "runtimeClassName": site.runtime_class,
            "hostNetwork": site.host_network,
            "hostAliases": self._aliases(head_address),
        }
        return pod | {key: value for key, value in optional.items() if value}

    def _aliases(self, head_address: str) -> list[dict[str, Any]]:
        """Have other pods know the head by its name: some launchers tell it to their daemons."""
        if not head_address or not head_address.replace(".", "").replace(":", "").isalnum():
            return []
        is_number = ":" in head_address or head_address.replace(".", "").isdecimal()
        name = f"{self.head_job}-0"
        return [{"ip": head_address, "hostnames": [name]}] if is_number else []

    def _pod_security(self) -> dict[str, Any]:
        security: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
        if (user := self._site.user) is not None:
            security |= {"runAsUser": user, "runAsGroup": user, "fsGroup": user}
            security |= {"runAsNonRoot": True} if user else {}
        return security

    def _container(self, group: Group, part: str, head_address: str) -> dict[str, Any]:
        container = {
            "name": CONTAINER,
            "image": self._image,
            "imagePullPolicy": self._site.pull_policy,
            "command": ["/bin/sh", "-c", START, "rankwise", self._site.mount, part],
            "env": self._variables(group, head_address),
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                *(mount for _, mount in self._volumes()),
                *(
                    {"name": "parts", "mountPath": f"/etc/{name}", "subPath": name, **_READ}
                    for name in self._accounts()
                ),
            ],
        }
        if resources := self._resources(group):
            container["resources"] = resources
        return container

    def _variables(self, group: Group, head_address: str) -> list[dict[str, Any]]:
        site = self._site
        values = {
            "RANKWISE_PARTS": f"{site.mount}/parts",
            "RANKWISE_KEYS": f"{site.mount}/keys",
            "RANKWISE_WORK": f"{site.mount}/work",
            "RANKWISE_NODES": ",".join(map(str, group.nodes)),
            "RANKWISE_HEAD": head_address,
            "RANKWISE_PORT": str(site.port),
            "RANKWISE_OUTPUT": "frames" if self._has_frames else "lines",
            "RANKWISE_PYTHON": site.python,
            # Users without a name and a home of their own are not known to the image.
            "HOME": f"{site.mount}/work/home",
            "USER": "rankwise",
            "LOGNAME": "rankwise",
        }
        if site.user is None:
            values = {k: v for k, v in values.items() if k not in ("HOME", "USER", "LOGNAME")}
        fields = {"RANKWISE_POD": "metadata.name", "RANKWISE_ADDRESS": "status.podIP"}
        return [
            *({"name": name, "value": value} for name, value in values.items()),
            *(
                {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for name, path in fields.items()
            ),
        ]

    def _resources(self, group: Group) -> dict[str, Any]:
        claim = group.claim
        if self._choice.gpus is not None:
            # Told by the site file: they are only counted, since the cluster does not know of them.
            claim = dataclasses.replace(claim, gpus=0)
        requests = quantities(claim, self._site.gpu_resource)
        is_head = group.role == HEAD and not group.nodes
        limits = quantities(HEAD_LIMIT, "") if is_head else requests
        return {"requests": requests, "limits": dict(limits)} if requests else {}

    def _volumes(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Give each volume with how it is seen in the container."""
        site = self._site
        mode = _MODE if site.user is not None else _MODE_FOR_ANY
        found: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
            ({"name": "parts", "configMap": {"name": self.name}}, f"{site.mount}/parts", _READ),
            (
                {"name": "keys", "secret": {"secretName": self.name, "defaultMode": mode}},
                f"{site.mount}/keys",
                _READ,
            ),
            ({"name": "work", "emptyDir": {}}, f"{site.mount}/work", {}),
            # Ranks and loaders of data share more than the 64 MiB that a container has of it.
            ({"name": "memory", "emptyDir": {"medium": "Memory"}}, "/dev/shm", {}),
        ]
        if not self._task.code and site.code == "configmap":
            found.append(({"name": "folder", "emptyDir": {}}, self._task.folder, {}))
        for claim, path in site.claims.items():
            source = {"persistentVolumeClaim": {"claimName": claim}}
            found.append(({"name": dns_name(f"claim-{claim}"), **source}, path, {}))
        for folder, path in site.host_paths.items():
            source = {"hostPath": {"path": folder}}
            found.append(({"name": dns_name(f"host-{folder}"), **source}, path, {}))
        return [
            (volume, {"name": volume["name"], "mountPath": path, **more})
            for volume, path, more in found
        ]


_READ = {"readOnly": True}
