"""The API of a cluster, by lightkube, with objects as plain dictionaries.

Not with lightkube's own classes: those refuse answers with fields that they do not know, and their
decoder (msgspec) crashes when two threads need a class for the first time at once.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rankwise.backends.base import Unreachable
from rankwise.backends.kubernetes.objects import CONTAINER
from rankwise.documents.site_models import KubernetesConfig
from rankwise.errors import ComputeFailure

if TYPE_CHECKING:
    from lightkube import Client

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
    """Return the class of a kind."""
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


_T = TypeVar("_T")
_TRIES = 4
_PAUSES = (0.2, 0.5, 1.0)
_LONGEST_PAUSE = 5.0
_ANSWER_SECONDS = 15.0
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _CONFLICT, _GONE, _BUSY = 401, 403, 404, 409, 410, 429
_SERVER_FAULT = 500
_EXTRA = "pip install 'rankwise[kubernetes]'"


class ApiRefused(ComputeFailure):
    """The API has refused, and will refuse again."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Gone(Exception):
    """The version to watch from is too old: everything must be listed again."""


class ApiClient:
    """One cluster, in one namespace."""

    def __init__(self, choice: KubernetesConfig) -> None:
        self._choice = choice
        self._client: Client | None = None

    @property
    def namespace(self) -> str:
        return str(self._ready().namespace)

    def twin(self) -> ApiClient:
        """Return a client with connections of its own, for a thread that holds one for long."""
        return ApiClient(self._choice)

    # Objects

    def create(self, thing: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object, or return the one of an earlier call whose answer was lost."""
        of_kind = kind(thing["kind"])
        name = thing["metadata"]["name"]
        try:
            made = self._ask(lambda client: client.create(of_kind(thing)))
        except ApiRefused as refusal:
            if refusal.code != _CONFLICT:
                raise
            made = self._ask(lambda client: client.get(of_kind, name))
            # Markers are unique: the same labels are those of our own earlier call.
            labels = made["metadata"].get("labels") or {}
            if labels != thing["metadata"].get("labels"):
                raise
        return {**made, "apiVersion": thing["apiVersion"], "kind": thing["kind"]}

    def release(self, job: str) -> None:
        """Start a Job that was created suspended."""
        self._patch(job, {"spec": {"suspend": False}})

    def suspend(self, job: str, annotations: Mapping[str, str]) -> None:
        """End the pods of a Job with SIGTERM first; the Job stays, with the annotations."""
        body = {"metadata": {"annotations": dict(annotations)}, "spec": {"suspend": True}}
        with _unless_gone():
            self._patch(job, body)

    def _patch(self, job: str, body: Mapping[str, Any]) -> None:
        self._ask(lambda client: client.patch(kind("Job"), job, body))

    def delete_job(self, name: str) -> None:
        """Remove a Job, and then all that it owns; one that is gone is no error."""
        from lightkube.types import CascadeType

        with _unless_gone():
            self._ask(
                # Said, because the API would leave the pods of a Job behind by default.
                lambda client: client.delete(kind("Job"), name, cascade=CascadeType.BACKGROUND)
            )

    def jobs(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        return self._list("Job", labels)[0]

    def pods(self, labels: Mapping[str, str]) -> tuple[list[dict[str, Any]], str]:
        """Return pods, and the version from which to watch them."""
        return self._list("Pod", labels)

    def events_of(self, name: str) -> list[str]:
        """Return warnings about an object, the latest last; none if events may not be listed."""
        fields: Any = {"involvedObject.name": name}
        try:
            found = self._ask(lambda client: [*client.list(kind("Event"), fields=fields)])
        except ComputeFailure:
            return []
        return [
            f"{one.get('reason', '')}: {one.get('message', '')}"
            for one in found
            if one.get("type") == "Warning"
        ]

    def nodes(self) -> list[Mapping[str, str]]:
        """Return what each node has for pods; ComputeFailure: nodes may not be listed."""
        found = self._ask(lambda client: [*client.list(kind("Node"))])
        return [
            (one.get("status") or {}).get("allocatable") or {}
            for one in found
            if not (one.get("spec") or {}).get("unschedulable")
        ]

    def version(self) -> str:
        """Return the address of the API server, once it has answered."""
        # What every run does: without this permission, nothing else helps.
        self._ask(lambda client: next(iter(client.list(kind("Job"), chunk_size=1)), None))
        return str(self._ready().config.cluster.server)

    def may(self, verb: str, resource: str, group: str = "") -> bool:
        """Return whether we may do something in the namespace."""
        name, _, part = resource.partition("/")
        what = {"verb": verb, "group": group, "resource": name, "subresource": part}
        spec = {"resourceAttributes": {**what, "namespace": self.namespace}}
        review = kind("SelfSubjectAccessReview")(metadata={}, spec=spec)
        answer = self._ask(lambda client: client.create(review))
        return bool((answer.get("status") or {}).get("allowed"))

    def _list(self, name: str, labels: Mapping[str, str]) -> tuple[list[dict[str, Any]], str]:
        def ask(client: Client) -> tuple[list[dict[str, Any]], str]:
            # In pieces: one answer with thousands of pods takes the server too long.
            listed = client.list(kind(name), labels=dict(labels), chunk_size=500)
            return [dict(one) for one in listed], listed.resourceVersion

        return self._ask(ask)

    # What goes on

    def watch(
        self, labels: Mapping[str, str], version: str, *, seconds: int
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return changes of pods from a version on, until the server ends it.

        Gone: the version is too old. Unreachable: the connection broke.
        """
        from lightkube.types import OnErrorAction, OnErrorResult

        with self._in_words():
            found = self._ready().watch(
                kind("Pod"),
                labels=dict(labels),
                server_timeout=seconds,
                resource_version=version,
                # Not the library's own retries: after an error, all is listed again.
                on_error=lambda error, count: OnErrorResult(OnErrorAction.RAISE),
            )
            for event, pod in found:
                yield event, dict(pod)

    def log(self, pod: str, *, since: int | None) -> Iterator[str]:
        """Return the lines of a pod's log, also future ones, until it or the connection ends."""
        with self._in_words():
            options: Any = {"container": CONTAINER, "follow": True, "newlines": False}
            yield from self._ready().log(pod, since=since, **options)

    # Asking

    def _ready(self) -> Client:
        if self._client is None:
            self._client = _connect(self._choice)
        return self._client

    def forget(self) -> None:
        """Close the connections: the next call reads the kubeconfig again."""
        if self._client is not None:
            with contextlib.suppress(Exception):
                self._client.close()
        self._client = None

    def _ask(self, question: Callable[[Client], _T]) -> _T:
        """Call the API, again after an error that may pass."""
        # Rolling updates of the API server and its load balancers take some seconds.
        for number in range(_TRIES):
            is_last = number == _TRIES - 1
            try:
                with self._in_words():
                    return question(self._ready())
            except ApiRefused as refusal:
                if refusal.code != _UNAUTHORIZED or is_last:
                    raise
                # Tokens are renewed in the file that they stand in.
                self.forget()
            except Gone as gone:
                # Of a long list, the rest is too old by now: from its beginning, then.
                if is_last:
                    raise Unreachable(str(gone)) from gone
            except Unreachable as away:
                if is_last:
                    raise
                time.sleep(min(away.seconds or _PAUSES[number], _LONGEST_PAUSE))
        raise AssertionError("the last try gives or raises")

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        """Replace errors of the library by ours."""
        import httpx2
        from lightkube.core.exceptions import ApiError

        try:
            yield
        except ApiError as error:
            status, response = error.status, getattr(error, "response", None)
            code = int(status.code or (response.status_code if response is not None else 0))
            raise _failure(code, str(status.message or error), _retry_after(response)) from error
        except httpx2.HTTPStatusError as error:
            code = error.response.status_code
            raise _failure(code, str(error), _retry_after(error.response)) from error
        except httpx2.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}".strip(": ")) from error
        except ValueError as error:
            # What is in between answers in its place, with a page for people.
            raise Unreachable(f"the answer is not understood: {error}") from error


def _failure(code: int, message: str, seconds: float | None) -> Exception:
    if code == _GONE:
        return Gone(message)
    # The server is overloaded, restarting or without its storage.
    if code == _BUSY or code >= _SERVER_FAULT:
        away = Unreachable(f"the API server answers {code}: {message}")
        away.seconds = seconds
        return away
    return ApiRefused(code, f"the API server answers {code}: {message}")


def _retry_after(response: Any) -> float | None:
    text = response.headers.get("Retry-After", "") if response is not None else ""
    return float(text) if text.isdecimal() else None


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    try:
        yield
    except ApiRefused as refusal:
        if refusal.code != _NOT_FOUND:
            raise


def _connect(choice: KubernetesConfig) -> Client:
    """Open a client by the kubeconfig; ComputeFailure: there is none, or the library is not."""
    try:
        import httpx2
        import lightkube
        from lightkube.config.kubeconfig import KubeConfig
        from lightkube.core.exceptions import ConfigError
    except ImportError as error:
        raise ComputeFailure(f"lightkube is not installed: {_EXTRA}") from error
    try:
        file = choice.kubeconfig
        config = KubeConfig.from_file(file) if file else KubeConfig.from_env()
        single = config.get(context_name=choice.context or None)
        if single is None:
            raise ConfigError("it has no current context")
        plugin = single.user.exec if single.user is not None else None
        if plugin is not None and plugin.apiVersion.endswith("/v1"):
            # The same answer as that of v1beta1, which is what the library knows.
            plugin.apiVersion = "client.authentication.k8s.io/v1beta1"
        return lightkube.Client(
            config=single,
            namespace=choice.namespace or None,
            timeout=httpx2.Timeout(_ANSWER_SECONDS),
            field_manager="rankwise",
        )
    except (ConfigError, OSError, LookupError, ValueError, AssertionError) as error:
        name = choice.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        raise ComputeFailure(
            f"the kubeconfig {Path(name)} cannot be used: {error!r}; name "
            "another with KUBECONFIG, or kubeconfig = … and context = … in the site file"
        ) from error
