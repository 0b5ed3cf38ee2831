"""The objects of a cluster that an attempt is made of: pure functions of task and site file."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise.documents.site_models import ComputeConfig, KubernetesConfig
from rankwise.errors import ComputeFailure
from rankwise.plan import Resources, RuntimeChoice, Task
from rankwise.wording import grouped

HEAD = "head"
"""The role of the first pod if no process of the task is in it."""
_WORKER = "worker"
# Room for the number of a pod, and for what Kubernetes puts behind its name.
_MOST_LETTERS = 63
_MOST_FOR_JOBS = 50
# A head without processes of the task only supervises the other pods.
HEAD_CLAIM = Resources(cores=0.05, memory=64 << 20)
HEAD_LIMIT = Resources(cores=1, memory=512 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """Pods that are alike: an Indexed Job."""

    role: str
    nodes: tuple[int, ...]
    """The node of the task that each pod is; none: the pod is no node, but a head."""
    claim: Resources = Resources()
    """Of one pod."""

    @property
    def count(self) -> int:
        return max(1, len(self.nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLayout:
    """The pods of a task.

    The runner is in the head, and starts what runs in the others. It is the task's only node, the
    launcher's own, or else a small pod beside those of the task, so that no process of theirs
    takes it along when it uses too much memory.
    """

    head: PodGroup
    others: tuple[PodGroup, ...] = ()


def layout_of(task: Task) -> PodLayout:
    """Return the pods of a task."""
    roles = _roles(task)
    # One pod: its head starts all processes itself.
    if task.nodes == 1:
        return PodLayout(head=PodGroup(role=roles[0], nodes=(0,), claim=task.resources))
    nodes = grouped((role, node) for node, role in roles.items())
    claims = _claims(task, nodes)
    groups = [
        PodGroup(role=role, nodes=tuple(its), claim=claims[role]) for role, its in nodes.items()
    ]
    # The launcher's pod has room for the head; pods of workers may be killed for memory.
    # It is there for the launcher of the others alone: the last of the task.
    last = (task.nodes - 1,)
    own = next((one for one in groups if one.role == "launcher" and one.nodes == last), None)
    others = tuple(group for group in groups if group is not own)
    return PodLayout(head=own or PodGroup(role=HEAD, nodes=(), claim=HEAD_CLAIM), others=others)


def _roles(task: Task) -> dict[int, str]:
    """Return the role of each node: that of its first process; without one, ranks are started."""
    found = {process.node: process.role for process in reversed(task.processes)}
    return {node: found.get(node, _WORKER) for node in range(task.nodes)}


def _claims(task: Task, nodes: Mapping[str, list[int]]) -> dict[str, Resources]:
    """Return the claim of a pod of each role; nodes without processes share what is left."""
    if len(nodes) == 1:
        [(role, where)] = nodes.items()
        return {role: task.resources.share(len(where))}
    claims, left, bare = {}, task.resources, []
    for role, where in nodes.items():
        own = [process.resources for process in task.processes if process.node in where]
        if not own:
            bare.append(role)
            continue
        total = sum(own, Resources())
        claims[role], left = total.share(len(where)), left - total
    count = sum(len(nodes[role]) for role in bare)
    return claims | {role: left.share(count) for role in bare}


def job_name(attempt: str, role: str) -> str:
    """Return the name of a role's Job; its pods have it too, with their numbers."""
    return dns_name(f"{attempt}-{role}", _MOST_FOR_JOBS)


def dns_name(text: str, most: int = _MOST_LETTERS) -> str:
    """Return a valid name for an object; one that has to be cut ends with a digest."""
    # RFC 1035: letters, digits and dashes, and a letter first.
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not name or not name[0].isalpha():
        name = f"rw-{name}".strip("-")
    if len(name) > most:
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        name = f"{name[: most - 9].rstrip('-')}-{digest}"
    return name


def label(text: str) -> str:
    """Return a valid value for a label."""
    # A label may also not begin or end with a sign.
    value = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:_MOST_LETTERS]
    return value.strip("-_.")


_QUANTITY = re.compile(r"(\d+(?:\.\d+)?(?:[eE]-?\d+)?)([A-Za-z]*)")
_UNITS = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3}
for _power, _letter in enumerate("kMGTPE", 1):
    _UNITS[_letter] = 1000.0**_power
    _UNITS[f"{_letter.upper()}i"] = 1024.0**_power


def number_in(text: str) -> float:
    """Return a quantity as a number; 0 for an invalid one."""
    found = _QUANTITY.fullmatch(text.strip())
    return float(found[1]) * _UNITS[found[2]] if found and found[2] in _UNITS else 0.0


def resources_of(amounts: Mapping[str, str], gpu: str) -> Resources:
    """Return what a node has."""
    return Resources(
        cores=number_in(amounts.get("cpu", "0")),
        memory=int(number_in(amounts.get("memory", "0"))),
        gpus=int(number_in(amounts.get(gpu, "0"))),
    )


def quantities(claim: Resources, gpu: str) -> dict[str, str]:
    """Return a claim as quantities; what is not claimed is left out."""
    found = {}
    if claim.cores:
        # The API knows no smaller part of a core.
        thousandths = max(1, round(claim.cores * 1000))
        found["cpu"] = f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)
    if claim.memory:
        found["memory"] = _size(claim.memory)
    if claim.gpus and gpu:
        found[gpu] = str(claim.gpus)
    return found


def _size(size: int) -> str:
    # The largest unit that divides it: quantities are exact.
    for power, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)


NO_PYTHON = 78
"""The exit code of an image without Python: one that programs do not use; see `start.sh`."""

START = Path(__file__).with_name("start.sh").read_text(encoding="utf-8")


MARKER = "rankwise.dev/attempt"
"""The label by which everything that an attempt has made is found."""
RUN, TASK, PART, ROLE = (f"rankwise.dev/{name}" for name in ("run", "task", "part", "role"))
MANAGER = {"app.kubernetes.io/managed-by": "rankwise"}
HEAD_PART, OTHER_PART = "head", "other"
CONTAINER = "main"
# Our own part ends what it has started when it is asked to, which takes two graces of the runner.
_END_SECONDS = 30
# With `user`, fsGroup makes the group able to read; without, the image's user is not known.
_MODE, _MODE_FOR_ANY = 0o440, 0o444


RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""The security context of a container that needs no privileges."""
_Mount = tuple[str, dict[str, Any], str, dict[str, Any]]


def scheduling(site: KubernetesConfig) -> dict[str, Any]:
    """Return the fields of a pod that say where it may run, as far as the site file sets them."""
    fields: dict[str, Any] = {
        "serviceAccountName": site.service_account,
        "imagePullSecrets": [{"name": name} for name in site.pull_secrets],
        "nodeSelector": dict(site.node_selector),
        "tolerations": [dict(one) for one in site.tolerations],
        "priorityClassName": site.priority_class,
        "runtimeClassName": site.runtime_class,
        "hostNetwork": site.host_network,
    }
    return {key: value for key, value in fields.items() if value}


def site_volumes(
    site: KubernetesConfig, *own: _Mount
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return volumes, and where containers mount them: `own`, then those of the site file."""
    # Numbers, because paths that differ only in punctuation would make the same name.
    found = list(own)
    for number, (claim, path) in enumerate(site.claims.items()):
        found.append((f"claim-{number}", {"persistentVolumeClaim": {"claimName": claim}}, path, {}))
    for number, (folder, path) in enumerate(site.host_paths.items()):
        found.append((f"host-{number}", {"hostPath": {"path": folder}}, path, {}))
    volumes = [{"name": name, **source} for name, source, _, _ in found]
    return volumes, [{"name": name, "mountPath": path, **more} for name, _, path, more in found]


def image_of(runtime: RuntimeChoice, choice: ComputeConfig) -> str:
    """Return the image that is a runtime there; ComputeFailure: none is set."""
    if runtime.kind == "container":
        return runtime.image
    if choice.kubernetes.image:
        return choice.kubernetes.image
    raise ComputeFailure(
        f'there is no image for environment "{runtime.name}" on compute "{choice.name}": '
        f'write image = "…" in [compute.{choice.name}], or [runtime."{runtime.name}"] with '
        f'image = "…"'
    )


def objects_for(
    task: Task,
    choice: ComputeConfig,
    *,
    run: str,
    attempt: str,
    head_address: str = "",
    order: str = "",
    parts: Mapping[str, bytes] | None = None,
    secrets: Mapping[str, str] | None = None,
    has_frames: bool = False,
) -> list[dict[str, Any]]:
    """Return all API objects of a task, those first that others need.

    `attempt` is what makes their names unique. `head_address` is where the other pods find the
    head: empty, by the name that it has where the cluster has names. `order` and `parts` are the
    contents of the ConfigMap (see `delivery`), `secrets` those of the Secret. With `has_frames` the
    head writes what a client reads, otherwise what people do. ComputeFailure: there is no image.
    """
    made = _ObjectMaker(task, choice, run=run, attempt=attempt, has_frames=has_frames)
    address = head_address or f"{made.head_job}-0.{made.name}"
    return [
        made.config_map(order, parts or {}),
        *([made.secret(secrets)] if secrets is not None else []),
        made.service(),
        made.job(made.layout.head, HEAD_PART),
        *(made.job(group, OTHER_PART, address) for group in made.layout.others),
    ]


def owned(objects: Sequence[dict[str, Any]], owner: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return objects that the cluster removes together with their owner: the head's Job."""
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


class _ObjectMaker:
    """The objects of one attempt."""

    def __init__(
        self, task: Task, choice: ComputeConfig, *, run: str, attempt: str, has_frames: bool
    ) -> None:
        self.layout = layout_of(task)
        self.name = dns_name(attempt, _MOST_FOR_JOBS)
        """Of the Service, the ConfigMap and the Secret."""
        self.head_job = job_name(attempt, self.layout.head.role)
        self._task, self._choice = task, choice
        self._site: KubernetesConfig = choice.kubernetes
        self._attempt = attempt
        self._has_frames = has_frames
        self._labels = {
            **self._site.labels,
            **MANAGER,
            RUN: label(run),
            TASK: label(task.key),
            MARKER: label(attempt),
        }

    def _object(self, kind: str, name: str, *, api: str = "v1", **content: Any) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": name, "labels": dict(self._labels)}
        if self._site.namespace:
            metadata["namespace"] = self._site.namespace
        if self._site.annotations:
            metadata["annotations"] = dict(self._site.annotations)
        return {"apiVersion": api, "kind": kind, "metadata": metadata, **content}

    def config_map(self, order: str, parts: Mapping[str, bytes]) -> dict[str, Any]:
        return self._object(
            "ConfigMap",
            self.name,
            data={"order.json": order, **self._accounts()},
            binaryData={name: _base64(content) for name, content in parts.items()},
        )

    def _accounts(self) -> dict[str, str]:
        """Return files that give the user a name: Open MPI starts nothing for one without."""
        if not (user := self._site.user):
            return {}
        home = f"{self._site.mount}/work/home"
        return {
            "passwd": f"root:x:0:0:root:/root:/bin/sh\nrankwise:x:{user}:{user}::{home}:/bin/sh\n",
            "group": f"root:x:0:\nrankwise:x:{user}:\n",
        }

    def secret(self, values: Mapping[str, str]) -> dict[str, Any]:
        data = {name: _base64(value) for name, value in values.items()}
        return self._object("Secret", self.name, type="Opaque", data=data)

    def service(self) -> dict[str, Any]:
        """Return what gives pods names where the cluster has names, also before they are ready."""
        spec = {
            # Headless: names lead to the pods themselves.
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {MARKER: label(self._attempt)},
            "ports": [{"name": "head", "port": self._site.port}],
        }
        return self._object("Service", self.name, spec=spec)

    def job(self, group: PodGroup, part: str, head_address: str = "") -> dict[str, Any]:
        job = self._object("Job", job_name(self._attempt, group.role), api="batch/v1")
        metadata = job["metadata"]
        metadata["labels"] |= {PART: part, ROLE: label(group.role)}
        pod = {key: metadata[key] for key in ("labels", "annotations") if key in metadata}
        job["spec"] = {
            "completionMode": "Indexed",
            "completions": group.count,
            "parallelism": group.count,
            # To start again is the engine's part: all pods of a task together, or none.
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": self._site.keep_seconds,
            "template": {"metadata": pod, "spec": self._pod(group, part, head_address)},
        }
        return job

    def _pod(self, group: PodGroup, part: str, head_address: str) -> dict[str, Any]:
        pod: dict[str, Any] = {
            # A container that is started again would have lost its files.
            "restartPolicy": "Never",
            "subdomain": self.name,
            "terminationGracePeriodSeconds": _END_SECONDS,
            # Programs of users get no access to the API.
            "automountServiceAccountToken": False,
            # Otherwise each Service of the namespace adds variables to every process.
            "enableServiceLinks": False,
            "securityContext": self._pod_security(),
            "containers": [self._container(group, part, head_address)],
            "volumes": self._volumes()[0],
            **scheduling(self._site),
        }
        if aliases := self._aliases(head_address):
            pod["hostAliases"] = aliases
        if self._task.is_alone:
            pod["affinity"] = self._affinity()
        return pod

    def _affinity(self) -> dict[str, Any]:
        """Return what keeps other tasks away from the nodes of one that must be alone."""
        others = [
            {"key": MARKER, "operator": "Exists"},
            {"key": MARKER, "operator": "NotIn", "values": [label(self._attempt)]},
        ]
        term = {
            "labelSelector": {"matchExpressions": others},
            "topologyKey": "kubernetes.io/hostname",
        }
        return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}

    def _aliases(self, head_address: str) -> list[dict[str, Any]]:
        """Return what resolves the head's name in other pods: some launchers pass it to daemons."""
        try:
            ipaddress.ip_address(head_address)
        except ValueError:
            return []
        return [{"ip": head_address, "hostnames": [f"{self.head_job}-0"]}]

    def _pod_security(self) -> dict[str, Any]:
        security: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
        if (user := self._site.user) is not None:
            security |= {"runAsUser": user, "runAsGroup": user, "fsGroup": user}
            # Namespaces with restricted pods admit only those that promise this.
            security |= {"runAsNonRoot": True} if user else {}
        return security

    def _container(self, group: PodGroup, part: str, head_address: str) -> dict[str, Any]:
        own = (one.runtime for one in self._task.processes if one.node in group.nodes)
        container = {
            "name": CONTAINER,
            "image": image_of(next(filter(None, own), self._task.runtime), self._choice),
            "imagePullPolicy": self._site.pull_policy,
            "command": ["/bin/sh", "-c", START, "rankwise", self._site.mount, part],
            "env": self._variables(group, head_address),
            "securityContext": RESTRICTED,
            # Of a container that ended without a message, the last lines of its log are kept.
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                *self._volumes()[1],
                *(
                    # With subPath, the rest of /etc stays that of the image.
                    {"name": "parts", "mountPath": f"/etc/{name}", "subPath": name, **_READ}
                    for name in self._accounts()
                ),
            ],
        }
        if resources := self._resources(group):
            container["resources"] = resources
        return container

    def _variables(self, group: PodGroup, head_address: str) -> list[dict[str, Any]]:
        site = self._site
        values = {
            **{f"RANKWISE_{name.upper()}": f"{site.mount}/{name}" for name in _FOLDERS},
            "RANKWISE_NODES": ",".join(map(str, group.nodes)),
            "RANKWISE_HEAD": head_address,
            "RANKWISE_PORT": str(site.port),
            "RANKWISE_OUTPUT": "frames" if self._has_frames else "lines",
            "RANKWISE_PYTHON": site.python,
        }
        if site.user is not None:
            # Without a name and a home of its own: it is not known to the image.
            values |= {"HOME": f"{site.mount}/work/home", "USER": "rankwise", "LOGNAME": "rankwise"}
        fields = {"RANKWISE_POD": "metadata.name", "RANKWISE_ADDRESS": "status.podIP"}
        return [{"name": name, "value": value} for name, value in values.items()] + [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in fields.items()
        ]

    def _resources(self, group: PodGroup) -> dict[str, Any]:
        claim = group.claim
        if self._choice.gpus is not None:
            # Told by the site file: they are only counted, since the cluster does not know of them.
            claim = dataclasses.replace(claim, gpus=0)
        requests = quantities(claim, self._site.gpu_resource)
        is_head = group.role == HEAD and not group.nodes
        # A guaranteed pod, with limits equal to requests, is evicted last; a head may use more.
        limits = quantities(HEAD_LIMIT, "") if is_head else requests
        if not (is_head or self._choice.enforce_limits):
            limits = quantities(Resources(gpus=claim.gpus), self._site.gpu_resource)
        return {"requests": requests, "limits": dict(limits)} if requests else {}

    def _volumes(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        site = self._site
        mode = _MODE if site.user is not None else _MODE_FOR_ANY
        keys = {"secretName": self.name, "defaultMode": mode}
        own: list[_Mount] = [
            ("parts", {"configMap": {"name": self.name}}, f"{site.mount}/parts", _READ),
            ("keys", {"secret": keys}, f"{site.mount}/keys", _READ),
            ("work", {"emptyDir": {}}, f"{site.mount}/work", {}),
            # Ranks and loaders of data share more than the 64 MiB that a container has of it.
            ("memory", {"emptyDir": {"medium": "Memory"}}, "/dev/shm", {}),
        ]
        if not self._task.code and site.code == "configmap":
            own.append(("folder", {"emptyDir": {}}, self._task.folder, {}))
        return site_volumes(site, *own)


def _base64(content: bytes | str) -> str:
    if isinstance(content, str):
        # Values of variables may be any bytes, which Python holds as surrogates.
        content = content.encode(errors="surrogateescape")
    return base64.b64encode(content).decode()


_FOLDERS = ("parts", "keys", "work")
_READ = {"readOnly": True}
