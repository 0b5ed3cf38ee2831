"""`[compute.NAME]` of a Kubernetes cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rankwise.site.choices import KubernetesChoice
from rankwise.site.page import Key, Page, did_you_mean
from rankwise.site.values import (
    from_file,
    read_number,
    read_text,
    read_truth,
    read_words,
    written,
)

_TEXTS = (
    *("context", "namespace", "image", "service_account", "priority_class", "runtime_class"),
    *("python", "code_path", "gpu_resource"),
)
_TABLES = ("node_selector", "labels", "annotations", "claims", "host_paths")
_TRUTHS = ("host_network", "autoscale")
KUBERNETES_KEYS = (
    *_TEXTS,
    *_TABLES,
    *_TRUTHS,
    *("kubeconfig", "pull_policy", "pull_secrets", "tolerations", "user", "code", "mount", "port"),
    "mpi",
    *("max_parallel", "pending_limit", "keep_seconds"),
)
PULL_POLICIES = ("IfNotPresent", "Always", "Never")
WAYS = ("configmap", "image", "claim")
FAMILIES = ("openmpi5", "openmpi4", "mpich", "intel")
_TOLERATION_KEYS = ("key", "operator", "value", "effect", "tolerationSeconds")
_OURS = "rankwise.dev/"
_LABEL = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
_GREATEST_PORT = 65535


def read_kubernetes(at: Key, table: Mapping[str, Any], page: Page) -> KubernetesChoice:
    """Read what only a Kubernetes cluster has."""
    said: dict[str, Any] = {
        name: read_text((*at, name), table, page) for name in _TEXTS if name in table
    }
    said |= {name: _texts((*at, name), table, page) for name in _TABLES if name in table}
    said |= {name: read_truth((*at, name), table, page) for name in _TRUTHS}
    for name, known in (("pull_policy", PULL_POLICIES), ("code", WAYS), ("mpi", FAMILIES)):
        if name in table:
            said[name] = _one_of((*at, name), table, page, known)
    for name, least in (("port", 1024), ("max_parallel", 1), ("keep_seconds", 60)):
        if (value := read_number((*at, name), table, page, least=least, is_whole=True)) is not None:
            said[name] = int(value)
    if (seconds := read_number((*at, "pending_limit"), table, page, least=1)) is not None:
        said["pending_limit"] = seconds
    if "kubeconfig" in table:
        said["kubeconfig"] = from_file(read_text((*at, "kubeconfig"), table, page), page)
    if "user" in table:
        said["user"] = _user((*at, "user"), table, page)
    if "mount" in table:
        said["mount"] = _folder((*at, "mount"), table["mount"], page)
    choice = KubernetesChoice(
        **said,
        pull_secrets=read_words((*at, "pull_secrets"), table, page),
        tolerations=_tolerations((*at, "tolerations"), table, page),
    )
    _check(at, choice, page)
    return choice


def _texts(at: Key, table: Mapping[str, Any], page: Page) -> dict[str, str]:
    """Read a table of texts."""
    value = table[at[-1]]
    if isinstance(value, dict) and all(isinstance(one, str) for one in value.values()):
        return value
    page.complain(at, f'{at[-1]} must be a table such as {{ "name" = "value" }}, all in quotes')
    return {}


def _one_of(at: Key, table: Mapping[str, Any], page: Page, known: tuple[str, ...]) -> str:
    value = table[at[-1]]
    if value in known:
        return str(value)
    hint = did_you_mean(str(value), known) or f"; there are {', '.join(known)}"
    page.complain(at, f"{at[-1]} cannot be {written(value)}{hint}")
    return known[0]


def _user(at: Key, table: Mapping[str, Any], page: Page) -> int | None:
    value = table["user"]
    if value == "image":
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    page.complain(at, f'user must be the number of a user, or "image", not {written(value)}')
    return 1000


def _folder(at: Key, value: Any, page: Page) -> str:
    if isinstance(value, str) and value.startswith("/") and value.strip("/") and ":" not in value:
        return value.rstrip("/")
    page.complain(at, f'{at[-1]} must be a folder such as "/rankwise", not {written(value)}')
    return "/rankwise"


def _tolerations(at: Key, table: Mapping[str, Any], page: Page) -> tuple[Mapping[str, Any], ...]:
    value = table.get("tolerations", [])
    is_list = isinstance(value, list) and all(isinstance(one, dict) for one in value)
    if not is_list:
        example = '[{ key = "gpu", operator = "Exists" }]'
        page.complain(at, f"tolerations must be a list such as {example}")
        return ()
    for one in value:
        for key in one.keys() - set(_TOLERATION_KEYS):
            listed = ", ".join(_TOLERATION_KEYS)
            hint = did_you_mean(key, _TOLERATION_KEYS) or f"; there are {listed}"
            page.complain(at, f'a toleration has no "{key}"{hint}')
    return tuple(value)


def _check(at: Key, choice: KubernetesChoice, page: Page) -> None:
    """Complain of what the cluster would refuse, or what does not go together."""
    if choice.namespace and not _NAME.fullmatch(choice.namespace):
        page.complain((*at, "namespace"), f'"{choice.namespace}" cannot be the name of a namespace')
    if choice.image.startswith("-") or any(letter.isspace() for letter in choice.image):
        page.complain((*at, "image"), f'"{choice.image}" is no image')
    for name, value in choice.labels.items():
        if not _LABEL.fullmatch(value) or name.startswith(_OURS):
            page.complain((*at, "labels"), f'{name} = "{value}" cannot be a label here')
    for name in ("claims", "host_paths"):
        for path in getattr(choice, name).values():
            _folder((*at, name), path, page)
    if choice.code != "configmap" and not choice.code_path.startswith("/"):
        page.complain(
            (*at, "code"),
            f'code = "{choice.code}" needs code_path: the folder in pods, such as "/code"',
        )
    if choice.code == "claim" and not choice.claims:
        page.complain((*at, "code"), 'code = "claim" needs claims, such as { "data" = "/data" }')
    if choice.port > _GREATEST_PORT:
        page.complain((*at, "port"), f"port must be {_GREATEST_PORT} at most")
