"""What cannot be said elsewhere is told, each with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankwise.errors import InputError
from tests.export.exporting import IMAGE, job_in, templates_in, written

FULL = """\
type: PytorchJob
name: full
description: "all of it"
tags: {team: vision, "odd name!": "yes"}
environment_variables:
  OMP_NUM_THREADS: 1
  SHELLED: $(hostname)
  PET_NNODES: 9
secrets: [HF_TOKEN]
inputs:
  rate: 0.01
  data: {path: ./data}
  remote: {path: "azureml:thing:1"}
restart: {max: 2, on_exit_codes: [75]}
timeout: 90.5
success: all
worker:
  spec:
    command: python train.py --lr ${{inputs.rate}}
    code: src
    environment: some
    resource_limits: {cpu: 500m, memory: 1500, gpu: 1}
compute: {target: cluster, instance_count: 2}
"""
SITE = """
[compute.cluster]
backend = "kubernetes"
namespace = "team"
service_account = "runner"
pull_secrets = ["registry"]
node_selector = { pool = "gpu" }
tolerations = [{ key = "gpu", operator = "Exists", effect = "NoSchedule" }]
priority_class = "high"
gpu_resource = "amd.com/gpu"
claims = { data = "/data" }
[runtime.some]
image = "from/site:1"
"""


ROLES = """\
type: TensorflowJob
name: roles
parameter_server:
  spec: {command: python a.py, code: servers, environment: other}
worker:
  spec: {command: python a.py, code: src, environment: some}
compute: {target: cluster, instance_count: 2}
"""


@pytest.mark.parametrize(
    ("target", "lost"),
    [
        ("kubernetes", []),
        ("kubeflow-v1", ["code"]),
        ("azureml", ["code", "environment"]),
    ],
)
def test_what_roles_have_of_their_own_is_lost_where_all_are_alike(
    tmp_path: Path, target: str, lost: list[str]
) -> None:
    (tmp_path / "servers").mkdir()
    (tmp_path / "servers" / "a.py").touch()
    site = f'{SITE}[runtime.other]\nimage = "other:1"\n'
    made = written(tmp_path, ROLES, target, site=site, image="")
    own = [one for one in made.losses if "parameter_server.spec." in one]
    assert [one.partition(".spec.")[2].partition(":")[0] for one in own] == lost, made.losses


def test_all_that_can_be_said_is(tmp_path: Path) -> None:
    made = written(tmp_path, FULL, "kubeflow-v1", site=SITE, image="")
    job = job_in(made)
    assert job["metadata"]["namespace"] == "team"
    assert json.loads(job["metadata"]["annotations"]["rankwise/tags"])["odd name!"] == "yes"
    assert job["spec"]["runPolicy"] == {
        "cleanPodPolicy": "Running",
        "backoffLimit": 2,
        "activeDeadlineSeconds": 91,
    }
    master = job["spec"]["pytorchReplicaSpecs"]["Master"]
    assert master["restartPolicy"] == "OnFailure"
    pod = master["template"]["spec"]
    [container] = pod["containers"]
    assert container["image"] == "from/site:1"
    assert container["command"][2].endswith("python train.py --lr 0.01")
    assert container["resources"]["limits"] == {"cpu": "500m", "memory": "1500", "amd.com/gpu": "1"}
    assert container["env"][:2] == [
        {"name": "OMP_NUM_THREADS", "value": "1"},
        # Kubernetes takes one of the two away.
        {"name": "SHELLED", "value": "$$(hostname)"},
    ]
    secret = {"secretKeyRef": {"name": "full-secrets", "key": "HF_TOKEN"}}
    assert container["env"][-1] == {"name": "HF_TOKEN", "valueFrom": secret}
    assert {"name": "claim-0", "mountPath": "/data"} in container["volumeMounts"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert pod["securityContext"]["runAsUser"] == 1000
    assert pod["serviceAccountName"] == "runner"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["nodeSelector"] == {"pool": "gpu"}
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert pod["priorityClassName"] == "high"
    assert any("kubectl create secret generic -n team full-secrets" in note for note in made.notes)


@pytest.mark.parametrize("target", ["kubernetes", "kubeflow-v1"])
def test_the_only_cluster_stands_in_for_an_unknown_one(tmp_path: Path, target: str) -> None:
    text = FULL.replace("target: cluster", "target: elsewhere")
    made = written(tmp_path, text, target, site=SITE)
    assert made.objects[-1]["metadata"]["namespace"] == "team"
    assert [note for note in made.notes if '"cluster", the only Kubernetes there' in note]
    azure = job_in(written(tmp_path, text, "azureml", site=SITE))
    assert azure["compute"] == "azureml:elsewhere"


LOST = {
    "kubeflow-v1": {
        "restart.on_exit_codes": (14, "every failure"),
        "restart.scope": (14, "by itself"),
        "timeout": (15, "all attempts together"),
        "success": (16, "its master"),
        "inputs.data": (12, "`./data` is a path here"),
        "inputs.remote": (13, "`azureml:thing:1` is not fetched there"),
    },
    "kubeflow-trainer": {
        "restart.on_exit_codes": (14, "every failure"),
        "restart": (14, "the runtime decides"),
        "timeout": (15, "all attempts together"),
        "inputs.data": (12, "`./data` is a path here"),
        "inputs.remote": (13, "`azureml:thing:1` is not fetched there"),
        "environment_variables.PET_NNODES": (8, "sets it itself"),
        "priorityClassName": (2, "no field"),
    },
    "kubernetes": {
        "restart": (14, "that needs a client"),
        "inputs.data": (12, "`./data` is a path here"),
        "inputs.remote": (13, "`azureml:thing:1` is not fetched there"),
    },
    "azureml": {
        "restart": (14, "does not start a command job again"),
        "secrets": (9, "key vault"),
        "worker.spec.resource_limits": (22, "decides how large"),
    },
}


@pytest.mark.parametrize("target", LOST)
def test_each_loss_has_its_place(tmp_path: Path, target: str) -> None:
    made = written(tmp_path, FULL, target, site=SITE)
    expected = LOST[target]
    for line in made.losses:
        place, field, why = line.split(": ", 2)
        number, part = expected[field]
        assert place.split(":")[1] == str(number), line
        assert part in why
    assert len(made.losses) == len(expected)


def test_plain_objects_have_all_that_the_site_file_says(tmp_path: Path) -> None:
    made = written(tmp_path, FULL, "kubernetes", site=SITE, image="")
    # Who has secrets makes the object with them; it is not in the file.
    assert [one["kind"] for one in made.objects] == ["ConfigMap", "Service", "Job", "Job"]
    assert "kubectl create secret generic -n team full " in made.notes[0]
    assert '--from-literal=secret.HF_TOKEN="$HF_TOKEN"' in made.notes[0]
    for one in made.objects:
        assert one["metadata"]["namespace"] == "team"
        assert one["metadata"]["annotations"]["rankwise/description"] == "all of it"
    workers = made.objects[-1]["spec"]
    assert workers["completions"] == 2
    pod = workers["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "gpu"}
    [container] = pod["containers"]
    assert container["image"] == "from/site:1"
    assert container["resources"]["limits"]["amd.com/gpu"] == "1"
    order = json.loads(made.objects[0]["data"]["order.json"])
    assert order["timeout"] == 90.5
    assert [one["command"] for one in order["processes"]] == ["python train.py --lr 0.01"] * 2
    inside = written(tmp_path, FULL, "kubernetes", site=SITE, code_in_image="/app")
    assert "code.tgz" not in inside.objects[0]["binaryData"]


def test_a_command_job_says_where_its_outputs_go(tmp_path: Path) -> None:
    text = (
        "type: command\ncommand: python train.py --out ${{outputs.model}} --rank NODE_RANK\n"
        "code: src\nenvironment: azureml:some:1\nidentity: {type: managed}\n"
        "outputs: {model: {type: uri_folder}}\n"
        "resources: {instance_count: 2, instance_type: Standard_NC6, shm_size: 2g}\n"
        "distribution: {type: pytorch, process_count_per_instance: 1}\n"
    )
    made = written(tmp_path, text, "kubeflow-v1")
    script = next(templates_in(job_in(made)))["spec"]["containers"][0]["command"][2]
    assert script.endswith("--out /tmp/rankwise/outputs/model --rank $NODE_RANK")
    lost = [line.split(": ")[1] for line in made.losses]
    assert lost == ["outputs.model", "identity", "resources.instance_type", "resources.shm_size"]
    azure = job_in(written(tmp_path, text, "azureml", image="", beside=tmp_path))
    assert azure["command"].endswith("--out ${{outputs.model}} --rank $NODE_RANK")
    assert azure["outputs"] == {"model": {"type": "uri_folder"}}
    assert azure["identity"] == {"type": "managed"}
    assert azure["resources"] == {
        "instance_count": 2,
        "instance_type": "Standard_NC6",
        "shm_size": "2g",
    }
    assert (azure["environment"], azure["code"]) == ("azureml:some:1", "src")


MPI = """\
type: MpiJob
launcher:
  spec:
    command: {command}
    environment: azureml:mpi:1
    code: src
compute: {{target: c, instance_count: 2}}
"""


def test_ranks_before_the_launcher_stay_in_the_command(tmp_path: Path) -> None:
    line = "cd sub && mpirun -np 3 -x A=1 -x B -mca btl self -tag-output ./prog NODE_RANK > log"
    made = written(tmp_path, MPI.format(command=line), "azureml", image="")
    job = job_in(made)
    assert job["command"] == "cd sub && ./prog NODE_RANK > log"
    assert job["environment_variables"] == {"A": "1", "OMPI_MCA_btl": "self"}
    options, uneven = made.losses
    assert "`-tag-output`" in options
    assert "3 ranks" in uneven


@pytest.mark.parametrize(
    ("target", "command", "words"),
    [
        ("azureml", "'mpirun -np 1 ./a : -np 1 ./b'", "4:5: Azure ML writes the mpirun itself"),
        ("azureml", "for i in 1 2; do mpirun ./a; done", "4:5: Azure ML writes the mpirun itself"),
    ],
)
def test_what_would_become_another_job_is_refused(
    tmp_path: Path, target: str, command: str, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        written(tmp_path, MPI.format(command=command), target, image="")


def test_tensorflow_roles_that_azure_ml_does_not_have_are_refused(tmp_path: Path) -> None:
    role = "{spec: {command: python %s.py, code: src, environment: 'azureml:tf:1'}}"
    text = f"type: TensorflowJob\nworker: {role % 'a'}\nparameter_server: {role % 'b'}\n"
    with pytest.raises(InputError, match=r"job.yaml:3:27: all processes .* the same command"):
        written(tmp_path, text, "azureml")
    text = f"type: TensorflowJob\nworker: {role % 'a'}\nchief: {role % 'a'}\n"
    with pytest.raises(InputError, match=r"job\.yaml:3:1: Azure ML has no chief"):
        written(tmp_path, text, "azureml")


@pytest.mark.parametrize("target", ["mpi-operator", "kubeflow-v1", "kubeflow-trainer"])
def test_without_an_image_there_is_a_remedy(tmp_path: Path, target: str) -> None:
    with pytest.raises(InputError, match=r"job.yaml:5:18: .* --image IMAGE, or image = "):
        written(tmp_path, MPI.format(command="mpirun -np 2 ./a"), target, image="")


def test_azure_ml_needs_an_environment_of_its_own_or_an_image(tmp_path: Path) -> None:
    text = MPI.format(command="mpirun -np 2 ./a").replace("azureml:mpi:1", "mine")
    with pytest.raises(InputError, match=r"job\.yaml:5:18: Azure ML has no environment `mine`"):
        written(tmp_path, text, "azureml", image="")
    assert job_in(written(tmp_path, text, "azureml"))["environment"] == {"image": IMAGE}


def test_more_code_than_fits_is_refused_with_the_ways_out(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "weights").write_bytes(bytes(range(256)) * 3000)
    text = MPI.format(command="mpirun -np 2 ./a")
    with pytest.raises(InputError, match=r"job.yaml:6:5: .*ConfigMap.*--code-in-image FOLDER"):
        written(tmp_path, text, "mpi-operator")
    (tmp_path / "src" / ".rankwiseignore").write_text("weights\n")
    assert len(written(tmp_path, text, "mpi-operator").objects) == 2
    [job] = written(tmp_path, text, "mpi-operator", code_in_image="/app").objects
    for template in templates_in(job):
        assert template["spec"]["containers"][0]["workingDir"] == "/app"
        assert "volumes" not in template["spec"]


def test_files_of_any_name_reach_the_pod(tmp_path: Path) -> None:
    code = tmp_path / "src"
    (code / "deep er").mkdir(parents=True)
    (code / "deep er" / "ä.py").write_text("")
    (code / "deep er" / "..odd").write_bytes(b"\xff\x00")
    (code / "run.sh").write_text("#!/bin/sh\n")
    (code / "run.sh").chmod(0o755)
    config, job = written(tmp_path, MPI.format(command="mpirun ./a"), "mpi-operator").objects
    [source, _] = next(templates_in(job))["spec"]["volumes"]
    items = source["configMap"]["items"]
    assert {item["path"].removeprefix("code/") for item in items} == {
        *("deep er/ä.py", "deep er/..odd", "run.sh", "train.py")
    }
    keys = [item["key"] for item in items]
    assert sorted(keys) == sorted([*config["data"], *config["binaryData"]])
    modes = {item["path"]: item.get("mode") for item in items}
    assert (modes["code/run.sh"], modes["code/train.py"]) == (0o755, None)


def test_other_documents_are_refused(tmp_path: Path) -> None:
    text = "type: Sweep\ncommand: echo 1\nparameters: {a: [1]}\n"
    with pytest.raises(InputError, match="a Sweep cannot be exported"):
        written(tmp_path, text, "kubeflow-v1")


def test_an_image_of_the_document_goes_back_as_it_was(tmp_path: Path) -> None:
    text = "type: command\ncommand: hostname\nenvironment: {image: 'a/b:1', name: x}\n"
    found = written(tmp_path, text, "azureml", image="")
    assert job_in(found)["environment"] == {"image": "a/b:1"}
    with pytest.raises(InputError, match="or say --image IMAGE"):
        written(tmp_path, text.replace("image: 'a/b:1'", "conda_file: c.yml"), "azureml", image="")
