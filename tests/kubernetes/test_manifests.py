"""The API objects of tasks: what is in them, and that Kubernetes takes them."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest
from environments import ROOT

from rankwise.backends.base import Attempt, Submission
from rankwise.backends.kubernetes.delivery import copy_of_code, deliver, own_part, pack
from rankwise.backends.kubernetes.objects import (
    dns_name,
    job_name,
    layout_of,
    number_in,
    objects_for,
    owned,
    quantities,
    resources_of,
)
from rankwise.documents.site_models import ComputeConfig, KubernetesConfig
from rankwise.errors import ComputeFailure, InputError
from rankwise.plan import Process, Resources, RuntimeChoice, Task
from rankwise.planning.planner import plan_from
from rankwise.runtimes.base import PreparedRuntime
from tests.kubernetes.api_server import Cluster, Server

EXAMPLES = sorted((ROOT / "examples" / "jobs").glob("*/*.yaml"))
VERSIONS = ("1.27", "1.30", "1.33", "1.36")
MARKER = "rw-0123456789abcdef"
GIB = 1 << 30


def choice(**more: Any) -> ComputeConfig:
    site = KubernetesConfig(**{"image": "train:1", **more})
    return ComputeConfig(name="k8s", backend="kubernetes", kubernetes=site)


def objects(task: Task, where: ComputeConfig | None = None, **more: Any) -> list[dict[str, Any]]:
    return objects_for(
        task, where or choice(), run="run-1", attempt=MARKER, secrets={"key": "k"}, **more
    )


def jobs(made: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = [one for one in made if one["kind"] == "Job"]
    return {one["metadata"]["labels"]["rankwise.dev/role"]: one for one in found}


def container(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]["containers"][0]
    return found


@pytest.fixture(scope="module")
def planned() -> dict[str, Task]:
    """All examples of jobs, planned for the cluster that is in their site files."""
    found = {}
    for path in EXAMPLES:
        plan, _ = plan_from([path], on="k8s")
        [found[f"{path.parent.name}/{path.name}"]] = plan.tasks
    return found


def test_every_example_can_be_sent_and_is_valid(planned: dict[str, Task]) -> None:
    assert len(planned) >= 11
    for name, task in planned.items():
        image = f"{name.partition('/')[0]}-jobs:1"
        assert (task.compute, task.runtime.image) == ("k8s", image), name
        made = objects(task, head_address="10.0.0.7", order="{}", parts={"pod.pyz": b"zip"})
        for one in made:
            for version in VERSIONS if name.endswith("k8s.yaml") else VERSIONS[-1:]:
                kubernetes_validate.validate(one, version, strict=True)
            assert len(one["metadata"]["name"]) <= 57


def test_the_examples_of_clusters_have_the_pods_that_they_ask_for(planned: dict[str, Task]) -> None:
    def pods(name: str) -> dict[str, tuple[int, dict[str, str]]]:
        made = jobs(objects(planned[name]))
        return {
            role: (
                job["spec"]["completions"],
                container(job).get("resources", {}).get("limits", {}),
            )
            for role, job in made.items()
        }

    gpus = {"nvidia.com/gpu": "4"}
    assert pods("mpi/k8s.yaml") == {
        "launcher": (1, {"cpu": "1", "memory": "2Gi"}),
        "worker": (4, gpus),
    }
    head = {"cpu": "1", "memory": "512Mi"}
    assert pods("pytorch/k8s.yaml") == {"head": (1, head), "worker": (4, gpus)}
    assert pods("tensorflow/k8s.yaml") == {
        "head": (1, head),
        "worker": (4, gpus),
        "parameter_server": (2, {"cpu": "1"}),
    }
    assert [process.node for process in planned["tensorflow/k8s.yaml"].processes] == [*range(6)]
    assert planned["mpi/k8s.yaml"].processes[0].node == 4
    # Whose mpirun the image has is not known: the line is such as every Open MPI takes.
    assert "--bind-to none --map-by slot" in planned["mpi/k8s.yaml"].processes[0].command


def test_kubectl_takes_them(planned: dict[str, Task], tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl is installed")
    made = objects(planned["mpi/k8s.yaml"], order="{}")
    server = Server(Cluster())
    done = subprocess.run(
        ["kubectl", "create", "--dry-run=client", "--validate=false", "-o", "name", "-f", "-"],
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": made}),
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "KUBECONFIG": str(server.kubeconfig(tmp_path / "config")),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    server.close()
    assert done.stdout.split() == [
        f"configmap/{MARKER}",
        f"secret/{MARKER}",
        f"service/{MARKER}",
        f"job.batch/{MARKER}-launcher",
        f"job.batch/{MARKER}-worker",
    ], done.stderr


def one_task(**more: Any) -> Task:
    process = Process(name="worker-0", role="worker", command="true")
    given: dict[str, Any] = {"key": "t", "processes": (process,), "code": "/code", "folder": "/f"}
    return Task(**{**given, **more})


def test_pods_may_do_as_little_as_possible() -> None:
    [job] = jobs(objects(one_task())).values()
    pod = job["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "runAsNonRoot": True,
    }
    assert container(job)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "hostNetwork" not in pod
    assert not any("hostPath" in volume for volume in pod["volumes"])
    [root] = jobs(objects(one_task(), choice(user=0))).values()
    assert "runAsNonRoot" not in root["spec"]["template"]["spec"]["securityContext"]
    [own] = jobs(objects(one_task(), choice(user=None))).values()
    assert "runAsUser" not in own["spec"]["template"]["spec"]["securityContext"]
    assert not any(mount["mountPath"] == "/etc/passwd" for mount in container(own)["volumeMounts"])


def test_what_the_site_file_says_is_in_them() -> None:
    where = choice(
        namespace="team",
        pull_policy="Never",
        pull_secrets=("registry",),
        service_account="trainer",
        node_selector={"gpu": "a100"},
        tolerations=({"key": "gpu", "operator": "Exists"},),
        labels={"team": "x"},
        annotations={"note": "y"},
        priority_class="low",
        runtime_class="nvidia",
        host_network=True,
        claims={"data": "/data"},
        host_paths={"/scratch": "/scratch"},
        keep_seconds=60,
    )
    made = objects(one_task(resources=Resources(cores=0.5, memory=GIB, gpus=1)), where)
    assert all(one["metadata"]["namespace"] == "team" for one in made)
    assert all(one["metadata"]["labels"]["team"] == "x" for one in made)
    [job] = jobs(made).values()
    pod = job["spec"]["template"]["spec"]
    kubernetes_validate.validate(job, "1.36", strict=True)
    assert job["spec"]["ttlSecondsAfterFinished"] == 60
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["serviceAccountName"] == "trainer"
    assert (pod["nodeSelector"], pod["hostNetwork"]) == ({"gpu": "a100"}, True)
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert (pod["priorityClassName"], pod["runtimeClassName"]) == ("low", "nvidia")
    mounts = {one["mountPath"]: one["name"] for one in container(job)["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert volumes[mounts["/data"]]["persistentVolumeClaim"] == {"claimName": "data"}
    assert volumes[mounts["/scratch"]]["hostPath"] == {"path": "/scratch"}
    wanted = {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "1"}
    assert container(job)["resources"] == {"requests": wanted, "limits": wanted}
    assert container(job)["imagePullPolicy"] == "Never"


def test_mounts_whose_names_are_much_alike_have_volumes_of_their_own() -> None:
    where = choice(
        claims={"a.b": "/one", "a-b": "/two"}, host_paths={"/data/x": "/x", "/data_x": "/y"}
    )
    [job] = jobs(objects(one_task(), where)).values()
    kubernetes_validate.validate(job, "1.36", strict=True)
    names = [one["name"] for one in job["spec"]["template"]["spec"]["volumes"]]
    assert len(set(names)) == len(names)


def test_gpus_that_the_site_file_counts_are_not_asked_for() -> None:
    where = ComputeConfig(
        name="k8s", backend="kubernetes", gpus=4, kubernetes=KubernetesConfig(image="a")
    )
    [job] = jobs(objects(one_task(resources=Resources(gpus=2)), where)).values()
    assert "resources" not in container(job)


def test_others_know_the_head_by_number_or_by_name() -> None:
    processes = tuple(
        Process(name=f"worker-{n}", role="worker", node=n, command="true") for n in range(2)
    )
    task = one_task(processes=processes, nodes=2)

    def worker(address: str) -> dict[str, Any]:
        job = jobs(objects(task, head_address=address))["worker"]
        pod: dict[str, Any] = job["spec"]["template"]["spec"]
        return pod

    def head_of(pod: dict[str, Any]) -> str:
        values = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
        return str(values["RANKWISE_HEAD"])

    named = worker("")
    assert head_of(named) == f"{MARKER}-head-0.{MARKER}"
    assert named["subdomain"] == MARKER
    assert "hostAliases" not in named
    numbered = worker("10.1.2.3")
    assert head_of(numbered) == "10.1.2.3"
    assert numbered["hostAliases"] == [{"ip": "10.1.2.3", "hostnames": [f"{MARKER}-head-0"]}]
    assert worker("fd00::7")["hostAliases"][0]["ip"] == "fd00::7"


def test_everything_goes_with_its_owner() -> None:
    head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "head", "uid": "u-1"}}
    for one in owned(objects(one_task()), head):
        [reference] = one["metadata"]["ownerReferences"]
        assert (reference["kind"], reference["name"], reference["uid"]) == ("Job", "head", "u-1")


def test_names_are_such_as_kubernetes_takes() -> None:
    assert job_name(MARKER, "parameter_server") == f"{MARKER}-parameter-server"
    assert dns_name("Sample MPI-Job!") == "sample-mpi-job"
    assert dns_name("1st") == "rw-1st"
    long = dns_name("a" * 100, 50)
    assert len(long) == 50
    assert long != dns_name("a" * 99 + "b", 50)


def test_without_an_image_it_says_what_to_write() -> None:
    task = one_task(runtime=RuntimeChoice(name="azureml:x:1"))
    with pytest.raises(ComputeFailure, match=r'write image = "…" in \[compute.k8s\]'):
        objects(task, choice(image=""))
    own = one_task(runtime=RuntimeChoice(name="x", kind="container", image="mine:2"))
    [job] = jobs(objects(own, choice(image=""))).values()
    assert container(job)["image"] == "mine:2"


def test_a_plan_without_an_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rankwise.toml").write_text('[compute.k8s]\nbackend = "kubernetes"\n')
    job = tmp_path / "job.yaml"
    job.write_text("name: a\ntype: command\ncommand: true\ncompute: k8s\n")
    with pytest.raises(InputError, match="there is no image for environment"):
        plan_from([job])


@pytest.mark.parametrize("kind", ["AksCompute", "AksCluster"])
def test_kinds_of_azure_mean_the_only_cluster(tmp_path: Path, kind: str) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: a\ntype: PytorchJob\nworker: {spec: {command: 'true'}}\n"
        f"compute: {{type: {kind}, target: my-aks, instance_count: 2}}\n"
    )
    table = 'backend = "kubernetes"\nimage = "a"\n'
    (tmp_path / "rankwise.toml").write_text(f"[compute.k8s]\n{table}")
    plan, _ = plan_from([job])
    assert plan.tasks[0].compute == "k8s"
    said = [note for note in plan.notices if not note.startswith("the site file is ")]
    assert said[0].startswith('compute "my-aks" is not in the site file: using "k8s", the only')
    (tmp_path / "rankwise.toml").write_text(f"[compute.k8s]\n{table}[compute.other]\n{table}")
    with pytest.raises(InputError, match='there are "k8s", "other" and "local"'):
        plan_from([job])
    (tmp_path / "rankwise.toml").write_text(f"[compute.k8s]\n{table}[compute.my-aks]\n{table}")
    assert plan_from([job])[0].tasks[0].compute == "my-aks"


def job_in(folder: Path, **more: Any) -> Submission:
    attempt = Attempt(label="run/t/1", marker=MARKER, folder=folder / "attempt")
    return Submission(
        attempt=attempt, task=one_task(code=str(folder), **more), runtime=PreparedRuntime()
    )


ROLES = """\
type: TensorflowJob
name: roles
worker:
  num_replicas: 2
  spec: {command: python train.py, code: ./src, environment: one, resource_limits: {cpu: 1}}
parameter_server:
  spec: {command: python serve.py, code: ./servers, environment: two}
compute: {target: k8s}
"""


def test_each_role_has_its_image_and_its_code(tmp_path: Path) -> None:
    table = '[compute.k8s]\nbackend = "kubernetes"\n'
    images = '[runtime.one]\nimage = "one:1"\n[runtime.two]\nimage = "two:1"\n'
    (tmp_path / "rankwise.toml").write_text(table + images)
    for name in ("src", "servers"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of_{name}.py").touch()
    (tmp_path / "roles.yaml").write_text(ROLES)
    [task] = plan_from([tmp_path / "roles.yaml"])[0].tasks
    where = replace(choice(), enforce_limits=False)
    made = jobs(objects(task, where))
    images_of = {role: container(job)["image"] for role, job in made.items()}
    assert images_of == {"head": "one:1", "worker": "one:1", "parameter_server": "two:1"}
    # Claimed, but not enforced.
    assert container(made["worker"])["resources"] == {"requests": {"cpu": "1"}, "limits": {}}
    assert container(jobs(objects(task))["worker"])["resources"]["limits"] == {"cpu": "1"}
    attempt = Attempt(label="run/t/1", marker=MARKER, folder=tmp_path / "attempt")
    job = Submission(attempt=attempt, task=task, runtime=PreparedRuntime())
    code = copy_of_code(job, where.kubernetes)
    order, parts = deliver(job, where.kubernetes, code)
    assert set(parts) == {"pod.pyz", "code.tgz", "code-parameter_server.tgz"}
    with tarfile.open(fileobj=io.BytesIO(parts["code-parameter_server.tgz"])) as archive:
        assert archive.getnames() == ["of_servers.py"]
    # Each process works in the folder of its own pod.
    assert {one["folder"] for one in json.loads(order)["processes"]} == {""}


def test_code_that_is_too_much_is_refused_with_what_to_do(tmp_path: Path) -> None:
    import random

    (tmp_path / "small.py").write_text("print()")
    job = job_in(tmp_path)
    code = {"code.tgz": tmp_path}
    _, parts = deliver(job, choice().kubernetes, code)
    assert set(parts) == {"pod.pyz", "code.tgz"}
    (tmp_path / "data.bin").write_bytes(random.Random(1).randbytes(1_200_000))
    with pytest.raises(ComputeFailure, match=r"1\.2 MB of code after .* \.rankwiseignore"):
        deliver(job, choice().kubernetes, code)
    # Where the code comes from elsewhere, it does not matter.
    other = choice(code="image", code_path="/app").kubernetes
    order, parts = deliver(job, other, {})
    assert set(parts) == {"pod.pyz"}
    assert json.loads(order)["nodes"][0]["folder"] == "/app"


def test_what_is_packed_is_always_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x")
    first = pack(tmp_path)
    (tmp_path / "a.py").touch()
    assert pack(tmp_path) == first
    assert own_part() == own_part.__wrapped__()
    assert base64.b64encode(own_part())


def test_amounts() -> None:
    assert [number_in(text) for text in ("2", "500m", "1Ki", "3M", "x")] == [2, 0.5, 1024, 3e6, 0]
    assert quantities(Resources(cores=1.5, memory=3 << 20, gpus=2), "g") == {
        "cpu": "1500m",
        "memory": "3Mi",
        "g": "2",
    }
    node = {"cpu": "3920m", "memory": "16Gi", "nvidia.com/gpu": "1"}
    assert resources_of(node, "nvidia.com/gpu") == Resources(cores=3.92, memory=16 * GIB, gpus=1)


def test_a_task_of_one_node_is_one_pod() -> None:
    layout = layout_of(one_task(resources=Resources(cores=2)))
    assert (layout.others, layout.head.role, layout.head.nodes) == ((), "worker", (0,))
    assert layout.head.claim == Resources(cores=2)


def test_a_task_that_must_be_alone_keeps_other_tasks_away_from_its_nodes() -> None:
    made = objects(one_task(is_alone=True))
    for one in made:
        kubernetes_validate.validate(one, VERSIONS[0], strict=True)
    [job] = jobs(made).values()
    [term] = job["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    # Its own pods may share a node, as those of any task may.
    own = job["spec"]["template"]["metadata"]["labels"]["rankwise.dev/attempt"]
    assert term["labelSelector"]["matchExpressions"] == [
        {"key": "rankwise.dev/attempt", "operator": "Exists"},
        {"key": "rankwise.dev/attempt", "operator": "NotIn", "values": [own]},
    ]
    [shared] = jobs(objects(one_task())).values()
    assert "affinity" not in shared["spec"]["template"]["spec"]
