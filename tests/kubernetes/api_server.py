"""An API server that keeps objects in memory, and speaks Kubernetes' protocol on the loopback.

Only what a client needs: making, listing, watching, patching and removing objects, and logs. A
fault is something that the next fitting request gets instead of its answer.
"""

from __future__ import annotations

import base64
import copy
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Thing = dict[str, Any]
KINDS = {
    "jobs": ("batch/v1", "Job"),
    "pods": ("v1", "Pod"),
    "services": ("v1", "Service"),
    "configmaps": ("v1", "ConfigMap"),
    "secrets": ("v1", "Secret"),
    "events": ("v1", "Event"),
    "nodes": ("v1", "Node"),
}


@dataclass
class Request:
    """What was asked for."""

    method: str
    path: str
    query: dict[str, str]
    token: str = ""

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"


@dataclass
class Fault:
    """What happens to the next requests that fit."""

    fits: Callable[[Request], bool]
    code: int = 0
    """The code to answer with; 0: the line is cut. A watch with a code ends as it should."""
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1
    happened: int = 0
    after: bool = False
    """Whether what was asked for is done, and only the answer is lost."""
    body: bytes | None = None
    kind: str = "text/html"
    """What the body is said to be."""


class Cluster:
    """All objects, by kind and name, and what has become of them."""

    def __init__(self) -> None:
        self.things: dict[str, dict[str, Thing]] = {kind: {} for kind in KINDS}
        self.history: list[tuple[int, str, str, Thing]] = []
        self.oldest = 0
        """Watches from before this version are told 410 Gone."""
        self.changed = threading.Condition()
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.tokens: set[str] | None = None
        self.logs: dict[str, Path] = {}
        """Where the log of each pod is kept."""
        self.finished_logs: set[str] = set()
        self.unreachable: set[str] = set()
        """Pods whose node does not answer."""
        self._version = 100

    def put(self, kind: str, thing: Thing, event: str) -> Thing:
        """Note a change, and tell all watches of it."""
        with self.changed:
            self._version += 1
            thing = copy.deepcopy(thing)
            thing["metadata"]["resourceVersion"] = str(self._version)
            name = thing["metadata"]["name"]
            if event == "DELETED":
                self.things[kind].pop(name, None)
            else:
                self.things[kind][name] = thing
            self.history.append((self._version, kind, event, thing))
            self.changed.notify_all()
            return thing

    def create(self, kind: str, thing: Thing) -> Thing | None:
        with self.changed:
            name = thing["metadata"]["name"]
            if name in self.things[kind]:
                return None
            thing["metadata"].setdefault("uid", str(uuid.uuid4()))
            thing["metadata"].setdefault("namespace", "default")
            return self.put(kind, thing, "ADDED")

    def update(self, kind: str, name: str, change: Callable[[Thing], None]) -> Thing | None:
        with self.changed:
            if name not in self.things[kind]:
                return None
            thing = copy.deepcopy(self.things[kind][name])
            change(thing)
            return self.put(kind, thing, "MODIFIED")

    def delete(self, kind: str, name: str) -> bool:
        """Remove an object, and what it owns; pods are first asked to end."""
        with self.changed:
            thing = self.things[kind].get(name)
            if thing is None:
                return False
            if kind == "pods" and name in self.logs and not _is_over(thing):
                self.update(kind, name, _mark_deleted)
                return True
            self.put(kind, thing, "DELETED")
            uid = thing["metadata"]["uid"]
            for other, things in self.things.items():
                for owned in [one for one in things.values() if _owner(one) == uid]:
                    self.delete(other, owned["metadata"]["name"])
            return True

    def listed(self, kind: str, query: dict[str, str]) -> list[Thing]:
        with self.changed:
            return [one for one in self.things[kind].values() if _fits(one, query)]

    @property
    def version(self) -> int:
        return self._version

    def watched(self, kind: str, query: dict[str, str], seconds: float) -> Iterator[Thing]:
        """Return events from a version on, as they come."""
        version = int(query.get("resourceVersion") or 0)
        deadline = time.monotonic() + seconds
        while True:
            with self.changed:
                found = [
                    (number, event, thing)
                    for number, what, event, thing in self.history
                    if what == kind and number > version and _fits(thing, query)
                ]
                if not found:
                    if time.monotonic() >= deadline:
                        return
                    self.changed.wait(0.1)
            for number, event, thing in found:
                version = number
                yield {"type": event, "object": thing}

    def fault_for(self, request: Request) -> Fault | None:
        with self.changed:
            self.requests.append(request)
            for fault in self.faults:
                if fault.happened < fault.times and fault.fits(request):
                    fault.happened += 1
                    return fault
        return None


def _is_over(pod: Thing) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _mark_deleted(thing: Thing) -> None:
    thing["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def _owner(thing: Thing) -> str:
    owners = thing["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("uid", ""))


def _fits(thing: Thing, query: dict[str, str]) -> bool:
    labels = thing["metadata"].get("labels") or {}
    wanted = [one.partition("=") for one in query.get("labelSelector", "").split(",") if one]
    fields = [one.partition("=") for one in query.get("fieldSelector", "").split(",") if one]
    return all(labels.get(name) == value.lstrip("=") for name, _, value in wanted) and all(
        thing.get("involvedObject", {}).get("name") == value.lstrip("=")
        for name, _, value in fields
        if name == "involvedObject.name"
    )


class Server:
    """The server itself, on a port of its own."""

    def __init__(self, cluster: Cluster) -> None:
        class Handler(_Handler):
            world = cluster

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def kubeconfig(self, path: Path, *, token: str = "first", user: Thing | None = None) -> Path:
        """Write how to reach it."""
        text = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": user or {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path.write_text(json.dumps(text))
        return path


class _Handler(BaseHTTPRequestHandler):
    world: Cluster
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing: requests are kept."""

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PATCH(self) -> None:
        self._answer("PATCH")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        request = Request(method, parts.path, query, token)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.world.fault_for(request)
        if fault is not None and not fault.after:
            return self._fail(fault)
        if self.world.tokens is not None and token not in self.world.tokens:
            return self._status(401, "Unauthorized")
        try:
            if fault is not None:
                self._quiet = True
                self._do(request, json.loads(body) if body else {})
                self._quiet = False
                return self._fail(fault)
            return self._do(request, json.loads(body) if body else {})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        return None

    _quiet = False

    def _fail(self, fault: Fault) -> None:
        if not fault.code:
            self.close_connection = True
            self.connection.close()
            return
        headers = {**fault.headers, "Content-Type": fault.kind} if fault.body else fault.headers
        self._status(fault.code, "so it is", headers, fault.body)

    def _do(self, request: Request, body: Thing) -> None:
        if found := _discovery(request.path.strip("/")):
            return self._send(200, found)
        words = [word for word in request.path.split("/") if word]
        # api/v1/namespaces/NAME/KIND/… or apis/GROUP/v1/namespaces/NAME/KIND/…
        words = words[2:] if words[0] == "api" else words[3:]
        if words[0] == "namespaces" and len(words) > 2:
            words = words[2:]
        kind, name, part = (*words, "", "")[:3]
        if kind == "selfsubjectaccessreviews":
            return self._send(201, {**body, "status": {"allowed": True}})
        if part == "log":
            return self._log(name, request.query)
        match request.method:
            case "GET" if name:
                thing = self.world.things[kind].get(name)
                return self._send(200, thing) if thing else self._status(404, f"{name} not found")
            case "GET" if request.is_watch:
                return self._watch(kind, request.query)
            case "GET":
                return self._list(kind, request.query)
            case "POST":
                made = self.world.create(kind, body)
                if made is None:
                    return self._status(409, f"{body['metadata']['name']} already exists")
                return self._send(201, made)
            case "PATCH":
                changed = self.world.update(kind, name, lambda thing: _merge(thing, body))
                return self._send(200, changed) if changed else self._status(404, "not found")
        is_there = self.world.delete(kind, name)
        return self._status(200 if is_there else 404, "")

    def _list(self, kind: str, query: dict[str, str]) -> None:
        version, name = KINDS[kind]
        items = self.world.listed(kind, query)
        self._send(
            200,
            {
                "apiVersion": version,
                "kind": f"{name}List",
                "metadata": {"resourceVersion": str(self.world.version)},
                "items": items,
            },
        )

    def _watch(self, kind: str, query: dict[str, str]) -> None:
        self._begin_stream("application/json")
        if int(query.get("resourceVersion") or 0) < self.world.oldest:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            self._piece(json.dumps({"type": "ERROR", "object": status}) + "\n")
        else:
            seconds = min(float(query.get("timeoutSeconds", "60")), 60)
            version, name = KINDS[kind]
            for event in self.world.watched(kind, query, seconds):
                event["object"] = {"apiVersion": version, "kind": name, **event["object"]}
                cut = self.world.fault_for(Request("EVENT", kind, query))
                if cut is not None and cut.code:
                    break
                if cut is not None:
                    self.close_connection = True
                    self.connection.close()
                    return
                self._piece(json.dumps(event) + "\n")
        self._piece("")

    def _log(self, name: str, query: dict[str, str]) -> None:
        path = self.world.logs.get(name)
        if path is None:
            return self._status(404, f'pods "{name}" not found')
        if name in self.world.unreachable:
            return self._status(500, "dial tcp 10.0.0.1:10250: connect: no route to host")
        self._begin_stream("text/plain")
        with path.open("rb") as file:
            while True:
                is_finished = name in self.world.finished_logs
                if name in self.world.unreachable:
                    self.close_connection = True
                    self.connection.close()
                    return None
                if data := file.read(65536):
                    self._piece(data)
                    if self.world.fault_for(Request("LOG", name, query)) is not None:
                        self.close_connection = True
                        self.connection.close()
                        return None
                elif is_finished or query.get("follow") not in ("true", "True"):
                    break
                else:
                    time.sleep(0.02)
        self._piece("")
        return None

    def _begin_stream(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _piece(self, data: str | bytes) -> None:
        data = data.encode() if isinstance(data, str) else data
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _status(
        self,
        code: int,
        message: str,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> None:
        kind = "Success" if code < 400 else "Failure"
        status = {"kind": "Status", "apiVersion": "v1", "status": kind, "code": code}
        self._send(code, {**status, "message": message}, headers, body)

    def _send(
        self,
        code: int,
        thing: Thing,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> None:
        if self._quiet:
            return
        data = body if body is not None else json.dumps(thing).encode()
        self.send_response(code)
        if body is None:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def _discovery(path: str) -> Thing | None:
    """Say which kinds there are, as kubectl asks before anything else."""
    if path == "api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "apis":
        version = {"groupVersion": "batch/v1", "version": "v1"}
        group = {"name": "batch", "versions": [version], "preferredVersion": version}
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
    if path not in ("api/v1", "apis/batch/v1"):
        return None
    wanted = path.partition("/")[2]
    resources = [
        {"name": plural, "kind": kind, "namespaced": plural != "nodes", "verbs": ["create", "get"]}
        for plural, (version, kind) in KINDS.items()
        if version == wanted
    ]
    fixed = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": wanted}
    return {**fixed, "resources": resources}


def _merge(thing: Thing, patch: Thing) -> None:
    for name, value in patch.items():
        if isinstance(value, dict) and isinstance(thing.get(name), dict):
            _merge(thing[name], value)
        else:
            thing[name] = value


def secret_values(secret: Thing) -> dict[str, bytes]:
    """Return what is in a Secret."""
    return {name: base64.b64decode(value) for name, value in secret["data"].items()}
