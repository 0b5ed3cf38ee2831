"""Every example of a job, written for everybody, is what the readers' own schemas take."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types of its own
import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own

from rankwise.errors import InputError
from rankwise.export.base import TARGETS, to_yaml
from tests.export.exporting import (
    DOCUMENTS,
    EXAMPLES,
    IMAGE,
    example,
    job_in,
    judged,
    read_back,
    templates_in,
)
from tests.export.mpijob_model import wrong_in

OPERATORS = ("mpi-operator", "kubeflow-v1", "kubeflow-trainer")
# The oldest that is still run somewhere, and the newest that is known; they differ the most.
VERSIONS = ("1.27", "1.37")
KINDS = {"mpi": "MPIJob", "pytorch": "PyTorchJob", "tensorflow": "TFJob"}


def is_taken(document: str, target: str) -> bool:
    """Return whether there is a kind for a job there."""
    kind = document.partition("/")[0]
    refused = {"mpi-operator": ("pytorch", "tensorflow"), "kubeflow-trainer": ("tensorflow",)}
    return kind not in refused.get(target, ())


PAIRS = [
    (document, target) for target in TARGETS for document in DOCUMENTS if is_taken(document, target)
]


def validate(data: Mapping[str, Any]) -> None:
    for version in VERSIONS:
        kubernetes_validate.validate(dict(data), version, strict=True)


# Plain objects are read back where they are validated: there is much in them to read.
@pytest.mark.parametrize(
    ("document", "target"), [pair for pair in PAIRS if pair[1] != "kubernetes"]
)
def test_what_is_written_is_read_back(document: str, target: str) -> None:
    made = example(document, target)
    text = to_yaml(made.objects)
    plain = read_back(text)
    assert plain == list(yaml.safe_load_all(text)) == list(made.objects)
    assert made.name in text


@pytest.mark.parametrize(("document", "target"), [pair for pair in PAIRS if pair[1] in OPERATORS])
def test_pods_and_code_are_as_kubernetes_takes_them(document: str, target: str) -> None:
    code, job = read_back(to_yaml(example(document, target).objects))
    validate(code)
    assert (
        code["data"]["train.py"]
        == (EXAMPLES / document).parent.joinpath("src/train.py").read_text()
    )
    # A TrainJob has only patches of the pods that its runtime makes.
    templates = [] if target == "kubeflow-trainer" else list(templates_in(job))
    assert len(templates) in {"mpi-operator": (2,), "kubeflow-v1": (1, 2)}.get(target, (0,))
    for template in templates:
        validate({"apiVersion": "v1", "kind": "PodTemplate", "template": template})
        [container] = template["spec"]["containers"]
        assert container["image"] == IMAGE
        assert container["workingDir"] == "/rankwise/code"
    if target == "mpi-operator":
        assert wrong_in(job) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_plain_objects_are_as_kubernetes_takes_them(document: str) -> None:
    made = example(document, "kubernetes")
    objects = read_back(to_yaml(made.objects))
    for one in objects:
        validate(one)
    kinds = [one["kind"] for one in objects]
    assert kinds[:3] == ["ConfigMap", "Secret", "Service"]
    assert set(kinds[3:]) == {"Job"}
    for job in objects[3:]:
        [container] = job["spec"]["template"]["spec"]["containers"]
        assert container["image"] == IMAGE
    # Every time another one: who has it can join the pods.
    [other] = [one for one in example(document, "kubernetes").objects if one["kind"] == "Secret"]
    assert other["data"]["key"] != objects[1]["data"]["key"]
    assert any(f"-l rankwise.dev/attempt={made.name}" in note for note in made.notes)


def test_kubectl_reads_what_was_written(tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        if os.environ.get("RANKWISE_REQUIRE_ALL"):
            pytest.fail("kubectl is not installed", pytrace=False)
        pytest.skip("kubectl is not installed")
    objects = [
        one
        for document, target in (
            ("tensorflow/k8s.yaml", "kubernetes"),
            ("mpi/k8s.yaml", "mpi-operator"),
        )
        for one in example(document, target).objects
    ]
    (tmp_path / "all.yaml").write_text(to_yaml(objects))
    # It changes nothing anywhere: what it has read, it writes, and leaves out what it does not know.
    done = subprocess.run(
        [kubectl, "label", "--local", "--overwrite", "-o", "json", "-f", "all.yaml", "read=yes"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    decoder, text, read = json.JSONDecoder(), done.stdout, []
    while text := text.lstrip():
        one, end = decoder.raw_decode(text)
        read.append(one)
        text = text[end:]
    assert len(read) == len(objects)
    for expected, one in zip(objects, read, strict=True):
        assert missing(expected, one) == []


def missing(expected: Any, found: Any, path: str = "") -> list[str]:
    """Say what is not there any more; there may be more than was expected."""
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping):
            return [] if not expected and not found else [path]
        return [
            line
            for key, value in expected.items()
            for line in missing(value, found.get(key), f"{path}.{key}")
        ]
    if isinstance(expected, list | tuple):
        if not isinstance(found, list) or len(found) != len(expected):
            return [path]
        pairs = zip(expected, found, strict=True)
        return [
            line
            for number, pair in enumerate(pairs)
            for line in missing(*pair, f"{path}[{number}]")
        ]
    # Kubernetes leaves out what is empty.
    return [] if expected == found or (not expected and not found) else [f"{path}: {found!r}"]


def test_models_of_kubeflow_give_back_what_was_written() -> None:
    pairs = [pair for pair in PAIRS if pair[1] in ("kubeflow-v1", "kubeflow-trainer")]
    jobs = [job_in(example(*pair)) for pair in pairs]
    broken = copy.deepcopy(jobs)
    for job in broken:
        job["spec"]["unknown"] = 1
    deep = copy.deepcopy(jobs[0])
    next(templates_in(deep))["spec"]["containers"][0]["imagee"] = "x"
    verdicts = judged("kubeflow", [*jobs, *broken, deep])
    assert verdicts[: len(jobs)] == [""] * len(jobs)
    # The judge can say no.
    assert all(verdicts[len(jobs) :])


def test_azure_ml_loads_and_validates_its_jobs(tmp_path: Path) -> None:
    files = []
    for document in DOCUMENTS:
        file = tmp_path / document.replace("/", "-")
        file.write_text(to_yaml(example(document, "azureml", beside=tmp_path).objects))
        files.append(str(file))
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(Path(files[0]).read_text() + "no_such_field: 1\n")
    *verdicts, refused = judged("azure", [*files, str(wrong)])
    assert "no_such_field" in refused["wrong"]
    for document, verdict in zip(DOCUMENTS, verdicts, strict=True):
        assert verdict["wrong"] == "", document
        kind = document.partition("/")[0]
        assert verdict["job"]["distribution"]["type"] == kind
        code = verdict["job"]["component"]["code"]
        assert Path(code).resolve() == (EXAMPLES / kind / "src").resolve()


@pytest.mark.parametrize(
    ("document", "target"),
    [
        (document, target)
        for target in TARGETS
        for document in DOCUMENTS
        if not is_taken(document, target)
    ],
)
def test_a_job_that_has_no_kind_there_is_refused(document: str, target: str) -> None:
    with pytest.raises(InputError, match=rf"{document}:\d+:1: .* `--to kubeflow-v1`"):
        example(document, target)


# What is in them.


def test_an_mpi_job_has_a_launcher_and_workers_with_slots() -> None:
    spec = job_in(example("mpi/k8s.yaml", "mpi-operator"))["spec"]
    assert (spec["slotsPerWorker"], spec["mpiReplicaSpecs"]["Worker"]["replicas"]) == (4, 4)
    assert spec["launcherCreationPolicy"] == "WaitForWorkersReady"
    launcher, worker = (
        spec["mpiReplicaSpecs"][name]["template"]["spec"]["containers"][0]
        for name in ("Launcher", "Worker")
    )
    assert launcher["resources"]["limits"] == {"cpu": "1", "memory": "2Gi"}
    assert worker["resources"] == {
        "requests": {"nvidia.com/gpu": "4"},
        "limits": {"nvidia.com/gpu": "4"},
    }
    # The operator has them wait for the launcher.
    assert "command" not in worker


@pytest.mark.parametrize("folder", KINDS)
def test_each_kind_has_its_own_of_version_1(folder: str) -> None:
    job = job_in(example(f"{folder}/k8s.yaml", "kubeflow-v1"))
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", KINDS[folder])


def test_the_first_pod_of_a_pytorch_job_is_its_master() -> None:
    spec = job_in(example("pytorch/k8s.yaml", "kubeflow-v1"))["spec"]
    specs = spec["pytorchReplicaSpecs"]
    assert {name: one["replicas"] for name, one in specs.items()} == {"Master": 1, "Worker": 3}
    assert specs["Master"]["template"] == specs["Worker"]["template"]
    assert spec["nprocPerNode"] == "4"


def test_a_tensorflow_job_has_its_roles() -> None:
    spec = job_in(example("tensorflow/k8s.yaml", "kubeflow-v1"))["spec"]
    specs = spec["tfReplicaSpecs"]
    assert {name: one["replicas"] for name, one in specs.items()} == {"Worker": 4, "PS": 2}
    server = specs["PS"]["template"]["spec"]["containers"][0]
    assert (server["name"], server["resources"]["limits"]) == ("tensorflow", {"cpu": "1"})
    assert spec["successPolicy"] == "AllWorkers"
    assert spec["runPolicy"]["cleanPodPolicy"] == "Running"


def test_a_train_job_names_a_runtime() -> None:
    spec = job_in(example("pytorch/k8s.yaml", "kubeflow-trainer"))["spec"]
    assert spec["runtimeRef"] == {"name": "torch-distributed"}
    assert (spec["trainer"]["numNodes"], spec["trainer"]["numProcPerNode"]) == (4, 4)
    own = job_in(example("mpi/k8s.yaml", "kubeflow-trainer", runtime="mpi-own"))["spec"]
    assert own["runtimeRef"] == {"name": "mpi-own"}
    patched = own["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert [one["name"] for one in patched] == ["launcher", "node"]


def test_azure_ml_writes_the_mpirun_itself() -> None:
    made = example("mpi/amlcompute.yaml", "azureml")
    job = job_in(made)
    assert job["command"] == "python train.py"
    assert job["distribution"] == {"type": "mpi", "process_count_per_instance": 4}
    assert job["resources"] == {"instance_count": 4}
    assert job["environment_variables"] == {
        "NCCL_DEBUG": "INFO",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "^openib",
    }
    assert len(made.losses) == 1
    assert "`-bind-to none`, `-map-by slot`" in made.losses[0]
