"""A stand-in for the controller of Jobs and for the kubelet: pods are processes of this machine.

Each pod has a mount namespace in which its volumes are where its manifest says, a host name, an
/etc/hosts, processes and a loopback address of its own, and the user that it asks for. Nothing of
the cluster's own is there: no names of pods but those in that file, no shared folder.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from tests.kubernetes.api_server import Cluster, Thing, _is_over

# Shorter than in manifests: tests wait for it.
_GRACE_SECONDS = 12.0
_INDEX = "batch.kubernetes.io/job-completion-index"


class Kubelet:
    """Runs the pods of a cluster's Jobs."""

    def __init__(self, cluster: Cluster, folder: Path, *, path: str) -> None:
        self._cluster = cluster
        self._folder = folder
        self._path = path
        """The image, so to speak: where its commands are found."""
        self._count = 0
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: dict[str, float] = {}
        """When pods were asked to end."""
        self.refusals: dict[str, Thing] = {}
        """What the status of a container is instead, by the role of its pod."""
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.is_over.set()
        self._thread.join(10)
        for process in self._running.values():
            process.kill()
            process.wait()

    def running(self) -> list[str]:
        """Name the pods that have a process."""
        return list(self._running)

    def kill(self, pod: str, *, reason: str = "Error") -> None:
        """End a pod as the kernel would."""
        process = self._running[pod]
        self._reasons[pod] = reason
        os.killpg(process.pid, signal.SIGKILL)

    _reasons: dict[str, str] = {}  # noqa: RUF012  of one test only

    def _go(self) -> None:
        while not self.is_over.wait(0.03):
            for job in list(self._cluster.things["jobs"].values()):
                self._look_at_job(job)
            for pod in list(self._cluster.things["pods"].values()):
                self._look_at_pod(pod)
            for name in list(self._running):
                if name not in self._cluster.things["pods"]:
                    self._ask_to_end(name)

    # The controller of Jobs

    def _look_at_job(self, job: Thing) -> None:
        name, spec = job["metadata"]["name"], job["spec"]
        own = [
            pod
            for pod in self._cluster.things["pods"].values()
            if pod["metadata"]["labels"].get("job-name") == name
        ]
        if spec.get("suspend"):
            for pod in own:
                if not pod["metadata"].get("deletionTimestamp"):
                    self._cluster.delete("pods", pod["metadata"]["name"])
        elif not own and not job.get("status", {}).get("started"):
            self._cluster.update("jobs", name, lambda thing: thing.update(status={"started": True}))
            for index in range(spec["completions"]):
                self._make_pod(job, index)

    def _make_pod(self, job: Thing, index: int) -> None:
        template, name = job["spec"]["template"], job["metadata"]["name"]
        self._count += 1
        pod = f"{name}-{index}-{os.urandom(3).hex()[:5]}"
        labels = {**template["metadata"]["labels"], "job-name": name, _INDEX: str(index)}
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": job["metadata"]["uid"],
        }
        self._cluster.create(
            "pods",
            {
                "metadata": {"name": pod, "labels": labels, "ownerReferences": [owner]},
                "spec": {**template["spec"], "hostname": f"{name}-{index}"},
                "status": {"phase": "Pending"},
            },
        )

    # The kubelet

    def _look_at_pod(self, pod: Thing) -> None:
        name = pod["metadata"]["name"]
        if name in self._cluster.unreachable:
            return
        if name in self._running:
            process = self._running[name]
            if process.poll() is not None:
                self._note_end(name, process.returncode)
            elif pod["metadata"].get("deletionTimestamp"):
                self._ask_to_end(name)
        elif pod["metadata"].get("deletionTimestamp"):
            self._cluster.put("pods", pod, "DELETED")
        elif pod["status"]["phase"] == "Pending":
            role = pod["metadata"]["labels"]["rankwise.dev/role"]
            if role in self.refusals:
                if pod["status"] != self.refusals[role]:
                    self._set_status(name, self.refusals[role])
                return
            self._start(pod)

    def _start(self, pod: Thing) -> None:
        name = pod["metadata"]["name"]
        address = (
            f"127.{os.getpid() % 200 + 10}.{self._count // 250 + 1}.{len(self._running) % 250 + 2}"
        )
        folder = self._folder / name
        log = self._folder / f"{name}.log"
        self._folder.mkdir(exist_ok=True)
        self._running[name] = self._process(pod, folder, address, log)
        self._cluster.logs[name] = log
        self._set_status(
            name,
            {
                "phase": "Running",
                "podIP": address,
                "containerStatuses": [_container({"running": {}})],
            },
        )

    def _variables(self, pod: Thing, address: str) -> dict[str, str]:
        """Return the variables of a container."""
        found = {"HOSTNAME": pod["spec"]["hostname"]}
        for one in pod["spec"]["containers"][0]["env"]:
            field = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            known = {"status.podIP": address, "metadata.name": pod["metadata"]["name"]}
            found[one["name"]] = known[field] if field else one["value"]
        found["JOB_COMPLETION_INDEX"] = pod["metadata"]["labels"][_INDEX]
        return found

    def _process(
        self, pod: Thing, folder: Path, address: str, log: Path
    ) -> subprocess.Popen[bytes]:
        """Start what is the pod."""
        line = ["unshare", "-mup", "--fork", "--kill-child=KILL", "--mount-proc", "sh", "-c"]
        with log.open("wb") as output:
            return subprocess.Popen(
                [*line, self._script(pod, folder, address)],
                env={"PATH": self._path, **self._variables(pod, address), **self.more},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    more: dict[str, str] = {}  # noqa: RUF012  the same for all pods
    """Variables of the image."""

    def _script(self, pod: Thing, folder: Path, address: str) -> str:
        """Write what sets a pod up and then becomes its container."""
        spec = pod["spec"]
        container, user = spec["containers"][0], spec["securityContext"].get("runAsUser", 0)
        lines = ["set -e", "mount --make-rprivate /"]
        for volume in spec["volumes"]:
            place = folder / volume["name"]
            self._fill(volume, place)
            # Pods may not read what they are not given.
            for one in (place, *place.rglob("*")):
                os.chown(one, user, user)
        for mount in container["volumeMounts"]:
            source = folder / mount["name"] / mount.get("subPath", "")
            if "subPath" not in mount:
                Path(mount["mountPath"]).mkdir(parents=True, exist_ok=True)
            lines.append(f"mount --bind {source} {shlex.quote(mount['mountPath'])}")
        hosts = [f"{address} {spec['hostname']}", "127.0.0.1 localhost"]
        aliases = spec.get("hostAliases", ())
        hosts += [f"{alias['ip']} {' '.join(alias['hostnames'])}" for alias in aliases]
        (folder / "hosts").write_text("\n".join(hosts) + "\n")
        command = shlex.join(container["command"])
        become = f"setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs"
        lines += [
            f"mount --bind {folder}/hosts /etc/hosts",
            f"hostname {spec['hostname']}",
            f"exec {become} --bounding-set=-all {command}",
        ]
        return "\n".join(lines)

    def _fill(self, volume: Thing, place: Path) -> None:
        place.mkdir(parents=True)
        things = self._cluster.things
        if "configMap" in volume:
            found = things["configmaps"][volume["configMap"]["name"]]
            contents = {name: text.encode() for name, text in found.get("data", {}).items()}
            binary = found.get("binaryData", {})
            contents |= {name: base64.b64decode(text) for name, text in binary.items()}
        elif "secret" in volume:
            data = things["secrets"][volume["secret"]["secretName"]]["data"]
            contents = {name: base64.b64decode(text) for name, text in data.items()}
        else:
            contents = {}
        for name, content in contents.items():
            (place / name).write_bytes(content)

    def _ask_to_end(self, name: str) -> None:
        """Send SIGTERM to the first process of a pod, once, and kill it when that is no use."""
        if name not in self._ended:
            self._ended[name] = time.monotonic()
            self._terminate(name)
        elif time.monotonic() > self._ended[name] + _GRACE_SECONDS:
            self._kill(name)

    def _kill(self, name: str) -> None:
        # It may have ended just now.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._running[name].pid, signal.SIGKILL)

    def _terminate(self, name: str) -> None:
        outer = self._running[name].pid
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGTERM)

    def _note_end(self, name: str, code: int) -> None:
        self._running[name].wait()
        del self._running[name]
        self._cluster.finished_logs.add(name)
        code = code if code >= 0 else 128 - code
        reason = self._reasons.get(name, "Completed" if code == 0 else "Error")
        ended: dict[str, Any] = {"exitCode": code, "reason": reason}
        pod = self._set_status(
            name,
            {
                "phase": "Failed" if code else "Succeeded",
                "containerStatuses": [_container({"terminated": ended})],
            },
        )
        if pod is not None and pod["metadata"].get("deletionTimestamp"):
            self._cluster.put("pods", pod, "DELETED")

    def _set_status(self, name: str, status: Thing) -> Thing | None:
        return self._cluster.update("pods", name, lambda pod: pod["status"].update(status))


def _container(state: Thing) -> Thing:
    """Write how a container stands, with all that the API has of it."""
    fixed = {"name": "main", "image": "here:1", "imageID": "", "ready": False, "restartCount": 0}
    return {**fixed, "state": state}


def wait_until(condition: Any, seconds: float = 30.0) -> None:
    """Wait for something to become true; an error if it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


__all__ = ["Kubelet", "_is_over", "wait_until"]
