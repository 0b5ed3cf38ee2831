"""Where pods go, as whom they run and what they see, as the site file says of their compute."""

from __future__ import annotations

from typing import Any

from rankwise.site.choices import KUBERNETES, ComputeChoice, KubernetesChoice

_CAPABILITIES = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def scheduling(choice: KubernetesChoice) -> dict[str, Any]:
    """Give the fields of a pod that say where it may go."""
    fields: dict[str, Any] = {
        "serviceAccountName": choice.service_account,
        "imagePullSecrets": [{"name": name} for name in choice.pull_secrets],
        "nodeSelector": dict(choice.node_selector),
        "tolerations": [dict(one) for one in choice.tolerations],
        "priorityClassName": choice.priority_class,
        "runtimeClassName": choice.runtime_class,
        "hostNetwork": choice.host_network,
    }
    return {name: value for name, value in fields.items() if value}


def security(compute: ComputeChoice) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the fields of a pod and of its container that keep them from being more than they need.

    Who runs in there is decided by the image, unless a site file knows the cluster.
    """
    user = compute.kubernetes.user if compute.backend == KUBERNETES else None
    if user is None:
        return {}, {"securityContext": _CAPABILITIES}
    who = {"runAsUser": user, "runAsGroup": user, "fsGroup": user}
    return {"securityContext": who}, {"securityContext": _CAPABILITIES}


def volumes(choice: KubernetesChoice) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Give the volumes that the site file names, and where containers see them."""
    found, mounts = [], []
    for number, (name, path) in enumerate(choice.claims.items()):
        found.append({"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": name}})
        mounts.append({"name": f"claim-{number}", "mountPath": path})
    for number, (folder, path) in enumerate(choice.host_paths.items()):
        found.append({"name": f"host-{number}", "hostPath": {"path": folder}})
        mounts.append({"name": f"host-{number}", "mountPath": path})
    return found, mounts
