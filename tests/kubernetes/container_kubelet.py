"""A stand-in for the kubelet whose pods are real containers, by Podman, of one small image.

They have what the image has and nothing else of this machine, the user, groups and rights that
their manifest says, and volumes with the owners that a kubelet gives them. Only the network is
the machine's: each pod has a loopback address of its own there.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from containers import IMAGE, Podman

from tests.kubernetes.api_server import Cluster, Thing
from tests.kubernetes.kubelet import Kubelet


class ContainerKubelet(Kubelet):
    """Runs the pods of a cluster's Jobs as containers."""

    def __init__(self, cluster: Cluster, folder: Path, engine: Podman) -> None:
        self._engine = engine
        super().__init__(cluster, folder, path="")

    def _container(self, pod: Thing, folder: Path, address: str) -> list[str]:
        name, spec = pod["metadata"]["name"], pod["spec"]
        [container] = spec["containers"]
        security, rights = spec["securityContext"], container["securityContext"]
        user, group = security["runAsUser"], security["fsGroup"]
        assert rights == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["image"] == IMAGE
        places = {}
        for volume in spec["volumes"]:
            place = places[volume["name"]] = folder / volume["name"]
            if "hostPath" in volume:
                places[volume["name"]] = Path(volume["hostPath"]["path"])
                continue
            self._fill(volume, place)
            _hand_over(volume, place, group)
        line = ["podman", "run", "--rm", f"--name={name}", "--network=host", "--uts=private"]
        line += [f"--hostname={spec['hostname']}", f"--user={user}:{security['runAsGroup']}"]
        line += ["--cap-drop=all", "--security-opt=no-new-privileges"]
        line += [f"--add-host={spec['hostname']}:{address}"]
        for alias in spec.get("hostAliases", ()):
            line += [f"--add-host={one}:{alias['ip']}" for one in alias["hostnames"]]
        for variable, value in self._variables(pod, address).items():
            line.append(f"--env={variable}={value}")
        for mount in container["volumeMounts"]:
            source = places[mount["name"]] / mount.get("subPath", "")
            kind = "ro" if mount.get("readOnly") else "rw"
            line.append(f"--volume={source}:{mount['mountPath']}:{kind}")
        return [*line, IMAGE, *container["command"]]

    def _process(
        self, pod: Thing, folder: Path, address: str, log: Path
    ) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen(
                self._container(pod, folder, address),
                env={**os.environ, **self._engine.variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _terminate(self, name: str) -> None:
        # It may have ended just now.
        with contextlib.suppress(RuntimeError):
            self._engine.ask("kill", "--signal=TERM", name)

    def _kill(self, name: str) -> None:
        with contextlib.suppress(RuntimeError):
            self._engine.ask("kill", "--signal=KILL", name)


def _hand_over(volume: Thing, place: Path, group: int) -> None:
    """Set the owner of a volume's files to root and the pod's group, as a kubelet does."""
    told: Thing = volume.get("secret") or volume.get("configMap") or {}
    mode = told.get("defaultMode", 0o644)
    for file in place.iterdir():
        os.chown(file, 0, group)
        file.chmod(mode)
    os.chown(place, 0, group)
    place.chmod(0o2777 if "emptyDir" in volume else 0o755)
