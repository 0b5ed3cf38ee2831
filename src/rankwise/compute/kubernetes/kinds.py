"""Kinds of objects as lightkube calls them: plain dictionaries, whatever fields a server has.

Not its own classes for them: those refuse answers with fields that they miss, and their decoder
(msgspec) crashes when two threads need a class for the first time at once.
"""

from __future__ import annotations

import threading
from typing import Any

_KINDS = {
    "Job": ("batch", "v1", "jobs"),
    "Pod": ("", "v1", "pods"),
    "ConfigMap": ("", "v1", "configmaps"),
    "Secret": ("", "v1", "secrets"),
    "Service": ("", "v1", "services"),
    "Event": ("", "v1", "events"),
}
_GLOBAL = {
    "Node": ("", "v1", "nodes"),
    "SelfSubjectAccessReview": ("authorization.k8s.io", "v1", "selfsubjectaccessreviews"),
}
_made: dict[str, Any] = {}
_making = threading.Lock()


def kind(name: str) -> Any:
    """Give the class of a kind."""
    with _making:
        if not _made:
            _make_all()
        return _made[name]


def _make_all() -> None:
    """Make all of them at once, and have their decoder know what it will need."""
    from lightkube.core import decoders
    from lightkube.generic_resource import create_global_resource, create_namespaced_resource

    for name, (group, version, plural) in _KINDS.items():
        _made[name] = create_namespaced_resource(group, version, name, plural)
    for name, (group, version, plural) in _GLOBAL.items():
        _made[name] = create_global_resource(group, version, name, plural)
    for one in _made.values():
        decoders.decode_list(b'{"items": [], "metadata": {"resourceVersion": "1"}}', one)
    pod = decoders.decode_object(b'{"metadata": {"name": "a", "labels": {}}}', _made["Pod"])
    assert pod.metadata.name == "a"
    decoders.decode_watch_event(b'{"type": "ADDED", "object": {}}')
    decoders.decode_status(b'{"code": 404, "message": "", "details": {"causes": []}}')
