"""The page about distributed jobs of Azure ML: each of its documents runs as it is written."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from environments import ROOT, RUNTIMES

from tests.acceptance.conftest import require_environment
from tests.acceptance.jobs import Said, Shop, opened
from tests.seeds.sentences import sentence

PAGE = "azureml-distributed-jobs"
DOCUMENTS = ROOT / "tests" / "documents" / "seed"
HOROVODRUN = ROOT / "examples" / "jobs" / "mpi" / "bin"

# What a process of a job was told. Workers meet all parameter servers, which serve until they are ended.
TRAIN = """\
import json, os, socket, time

names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
names += ("NCCL_DEBUG", "RANKWISE_NODE", "AZUREML_MPI_HOSTFILE", "TF_CONFIG")
names += ("HOROVOD_CYCLE_TIME", "HOROVOD_AUTOTUNE")
facts = {name: os.environ[name] for name in names if name in os.environ}
if path := facts.get("AZUREML_MPI_HOSTFILE"):
    from mpi4py import MPI
    with open(path) as file:
        facts["hosts"] = file.read().splitlines()
    facts |= {"rank": MPI.COMM_WORLD.rank, "sum": MPI.COMM_WORLD.allreduce(1)}
print("facts", json.dumps(facts), flush=True)


def address_of(server):
    name, _, port = server.rpartition(":")
    return name, int(port)


settings = json.loads(facts.get("TF_CONFIG", "{}"))
servers = settings.get("cluster", {}).get("ps", [])
if settings.get("task", {}).get("type") == "ps":
    with socket.create_server(address_of(servers[settings["task"]["index"]])):
        time.sleep(600)
while servers:
    try:
        socket.create_connection(address_of(servers[-1])).close()
        servers.pop()
    except ConnectionRefusedError:
        time.sleep(0.05)
"""
SITE = """\
[runtime."azureml:pytorch-*"]
python = "{python}"
[runtime."azureml:tensorflow-*"]
current = true
[compute.nc24-cluster]
backend = "local"
[compute.gpu-cluster]
backend = "local"
gpus = 16
[compute.my-aks-cluster]
backend = "local"
gpus = 16
[compute.my-aks-clutser]
backend = "local"
gpus = 16
"""
GPUS = "a count of 16 GPUs"

Facts = list[dict[str, Any]]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A folder with the documents of the page, as they are, and a script for all of them."""
    with opened(tmp_path_factory.mktemp("azureml")) as shop:
        for document in DOCUMENTS.glob("*.yaml"):
            shop.write(document.name, document.read_text())
        shop.write("src/train.py", TRAIN)
        shop.variables["PATH"] = f"{HOROVODRUN}{os.pathsep}{os.environ['PATH']}"
        yield shop
        shop.wait_until_empty()


def run(shop: Shop, document: str, runtime: str = "mpi4py") -> tuple[Said, Facts]:
    """Run a document, and return what its processes were told, by rank where they have one."""
    require_environment(runtime)
    shop.write("rankwise.toml", SITE.format(python=RUNTIMES[runtime].folder))
    said = shop.rankwise("run", document, "--strict")
    assert said.exit_code == 0, said
    # horovodrun has mpirun put the rank before each line.
    found = [json.loads(line) for line in re.findall(r"\|.* facts (.*)", said.output)]
    return said, sorted(found, key=lambda one: int(one.get("rank", one.get("RANK", 0))))


@pytest.fixture(scope="module")
def mpi_job(shop: Shop) -> Facts:
    """What the ranks of the first document were told."""
    return run(shop, "mpi-mpirun.yaml")[1]


@pytest.fixture(scope="module")
def torch_job(shop: Shop) -> Facts:
    """What the processes of `torch.distributed.launch` were told, which is the real one."""
    return run(shop, "pytorch-launch.yaml", "torch")[1]


@sentence(PAGE, ran="rankwise run mpi-mpirun.yaml")
def test_an_mpi_job_has_a_launcher_and_workers(mpi_job: Facts) -> None:
    """For an MPI job, the user provides the launcher spec and the worker spec."""
    assert [(one["rank"], one["sum"]) for one in mpi_job] == [(rank, 16) for rank in range(16)]
    nodes = [one["RANKWISE_NODE"] for one in mpi_job]
    assert nodes == [f"node{rank // 4}" for rank in range(16)]


@sentence(PAGE, ran="rankwise run mpi-mpirun.yaml with mpirun, and with mpiexec")
def test_the_user_writes_the_command_that_starts_mpi(shop: Shop, mpi_job: Facts) -> None:
    """For fine-grained control, the user provides the launch command (mpirun or mpiexec)."""
    assert {one["NCCL_DEBUG"] for one in mpi_job} == {"INFO"}
    text = (shop.folder / "mpi-mpirun.yaml").read_text()
    smaller = text.replace("mpirun -np 16", "mpiexec -np 4").replace("DEBUG=INFO", "DEBUG=WARN")
    shop.write("mpi-mpiexec.yaml", smaller)
    _, facts = run(shop, "mpi-mpiexec.yaml")
    assert [one["sum"] for one in facts] == [4] * 4
    assert [one["NCCL_DEBUG"] for one in facts] == ["WARN"] * 4


@sentence(PAGE, ran="rankwise run mpi-mpirun.yaml")
def test_the_variable_of_the_file_of_hosts_has_its_path(mpi_job: Facts) -> None:
    """Azure ML sets AZUREML_MPI_HOSTFILE to the path of the MPI hostfile that it made."""
    hosts = [f"node{number} slots=4" for number in range(4)]
    assert [one["hosts"] for one in mpi_job] == [hosts] * 16


@sentence(PAGE, ran="rankwise run mpi-horovodrun.yaml", stand_in="a script with its options")
def test_horovodrun_starts_the_ranks(shop: Shop) -> None:
    """horovodrun, a wrapper of Open MPI, is simpler to configure for distributed jobs."""
    _, facts = run(shop, "mpi-horovodrun.yaml")
    assert [one["sum"] for one in facts] == [16] * 16
    assert [one["RANKWISE_NODE"] for one in facts] == [f"node{rank // 4}" for rank in range(16)]


@sentence(PAGE, ran="rankwise run fine.yaml", stand_in="a script with its options")
def test_horovodrun_takes_the_options_of_horovods_own(shop: Shop) -> None:
    """horovodrun is recommended to users who need no fine-grained control of MPI."""
    text = (shop.folder / "mpi-horovodrun.yaml").read_text()
    line = "horovodrun -np 16 --hostfile AZUREML_MPI_HOSTFILE"
    options = "--mpi --verbose --cycle-time-ms 3.5 --no-autotune --binding-args='-bind-to none'"
    shop.write("fine.yaml", text.replace(line, f"horovodrun -np 2 -H node0:1,node3:1 {options}"))
    said, facts = run(shop, "fine.yaml")
    assert [(one["sum"], one["RANKWISE_NODE"]) for one in facts] == [(2, "node0"), (2, "node3")]
    assert {(one["HOROVOD_CYCLE_TIME"], one["HOROVOD_AUTOTUNE"]) for one in facts} == {("3.5", "0")}
    assert (
        "mpirun --allow-run-as-root --tag-output -np 2 -H node0:1,node3:1 --bind-to" in said.output
    )
    shop.write("gloo.yaml", text.replace(line, "horovodrun -np 2 --gloo"))
    refused = shop.rankwise("run", "gloo.yaml")
    assert refused.exit_code == 2, refused
    assert "--gloo needs Horovod itself" in refused.output, refused


@sentence(PAGE, ran="rankwise run mpi-k8s.yaml", stand_in=GPUS)
def test_jobs_for_kubernetes_say_what_they_need(shop: Shop) -> None:
    """For jobs on Kubernetes, users can specify more, such as resource limits."""
    said, facts = run(shop, "mpi-k8s.yaml")
    assert [one["sum"] for one in facts] == [16] * 16
    assert "4 instances: -np 16 with 4 GPUs each" in " ".join(said.output.split())
    (shop.folder / "rankwise.toml").write_text(
        '[compute.my-aks-cluster]\nbackend = "local"\ngpus = 15\n'
    )
    refused = shop.rankwise("run", "mpi-k8s.yaml")
    assert refused.exit_code == 1, refused
    assert "needs 16 GPUs" in refused.output, refused


LIMITED = """\
type: PytorchJob
process_count_per_instance: 1
worker:
  spec:
    command: python -c "import os; data = b'x' * (int(os.environ['RANK']) * 250 << 20)"
    environment: azureml:pytorch-1.7:1
    resource_limits: {cpu: 1, memory: 200Mi}
compute: {target: gpu-cluster, instance_count: 2}
"""


@sentence(PAGE, ran="rankwise run limited.yaml")
def test_resource_limits_are_enforced(shop: Shop) -> None:
    """Configurations that are relevant to training there, such as resource limits."""
    require_environment("mpi4py")
    site = SITE.format(python=RUNTIMES["mpi4py"].folder)
    shop.write("rankwise.toml", site)
    shop.write("limited.yaml", LIMITED)
    plan = shop.rankwise("plan", "limited.yaml").output
    assert "limits: a" in plan, plan
    said = shop.rankwise("run", "limited.yaml")
    assert said.exit_code in (1, 137), said
    assert "worker-1 exceeded its memory limit of 200Mi" in said.output, said
    shop.write("rankwise.toml", site.replace("gpus = 16", "gpus = 16\nenforce_limits = false"))
    assert shop.rankwise("run", "limited.yaml").exit_code == 0
    shop.write("rankwise.toml", site)
    shop.write("limited.yaml", LIMITED.replace("200Mi", "4000Gi"))
    refused = shop.rankwise("run", "limited.yaml")
    assert (refused.exit_code, "not run: needs" in refused.output) == (1, True), refused


@sentence(PAGE, ran="rankwise run roles.yaml")
def test_each_role_has_its_environment_and_its_code(shop: Shop) -> None:
    """parameter_server and worker each have a command, code and an environment of their own."""
    require_environment("mpi4py")
    text = (shop.folder / "tensorflow-parameter-server.yaml").read_text()
    server, worker = text.split("worker:\n")
    server = server.replace("./src", "./servers").replace("azureml:tensorflow-2.3:1", "servers")
    shop.write("roles.yaml", f"{server}worker:\n{worker}")
    shop.write("servers/train.py", f"import sys; print('server', sys.prefix, flush=True)\n{TRAIN}")
    site = SITE.format(python=sys.prefix) + "[runtime.servers]\npython = "
    shop.write("rankwise.toml", f'{site}"{RUNTIMES["mpi4py"].folder}"\n')
    said = shop.rankwise("run", "roles.yaml", "--strict")
    assert said.exit_code == 0, said
    servers = re.findall(r"parameter_server (\d) *\| server (.*)", said.output)
    assert sorted(servers) == [(number, str(RUNTIMES["mpi4py"].folder)) for number in "01"]
    found = [json.loads(line) for line in re.findall(r"\| facts (.*)", said.output)]
    assert places(found) == SERVERS + WORKERS


@sentence(PAGE, ran="rankwise run slots.yaml")
def test_the_number_of_processes_per_node_is_a_field(shop: Shop) -> None:
    """TO DO: the number of processes per node that the user wants, to create the hostfile."""
    text = (shop.folder / "mpi-mpirun.yaml").read_text().replace("-np 16 ", "-np 2 ")
    shop.write(
        "slots.yaml", f"{text}process_count_per_instance: 3\n".replace("count: 4", "count: 2")
    )
    _, facts = run(shop, "slots.yaml")
    assert [one["hosts"] for one in facts] == [["node0 slots=3", "node1 slots=3"]] * 2


@sentence(PAGE, ran="rankwise run pytorch-launch.yaml")
def test_the_launch_utility_runs_on_each_node(torch_job: Facts) -> None:
    """torch.distributed.launch runs on each node and launches the given number of processes."""
    nodes = [one["RANKWISE_NODE"] for one in torch_job]
    assert nodes == [f"node{rank // 4}" for rank in range(16)]


@sentence(PAGE, ran="rankwise run pytorch-launch.yaml")
def test_the_launch_command_refers_to_the_master_and_the_node(torch_job: Facts) -> None:
    """Azure ML sets MASTER_ADDR, MASTER_PORT and NODE_RANK for use in the launch command."""
    assert {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in torch_job} == {
        (torch_job[0]["MASTER_ADDR"], torch_job[0]["MASTER_PORT"])
    }
    assert [one["NODE_RANK"] for one in torch_job] == [str(rank // 4) for rank in range(16)]


@sentence(PAGE, ran="rankwise run pytorch-launch.yaml")
def test_the_launch_utility_numbers_its_processes(torch_job: Facts) -> None:
    """The launch utility sets WORLD_SIZE, RANK and LOCAL_RANK for each process it starts."""
    numbers = [(one["WORLD_SIZE"], one["RANK"], one["LOCAL_RANK"]) for one in torch_job]
    assert numbers == [("16", str(rank), str(rank % 4)) for rank in range(16)]


@sentence(PAGE, ran="rankwise run pytorch-k8s.yaml", stand_in=GPUS)
def test_a_plain_script_has_a_process_for_each_gpu(shop: Shop) -> None:
    """A PyTorch job on Kubernetes: `python train.py` on 4 instances with 4 GPUs each."""
    _, facts = run(shop, "pytorch-k8s.yaml", "torch")
    numbers = [(one["WORLD_SIZE"], one["RANK"], one["LOCAL_RANK"]) for one in facts]
    assert numbers == [("16", str(rank), str(rank % 4)) for rank in range(16)]
    assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in facts}) == 1


def places(facts: Facts) -> list[tuple[str, int]]:
    """Return the task of each process by its TF_CONFIG, which must name one cluster for all."""
    settings = [json.loads(one["TF_CONFIG"]) for one in facts]
    assert all(one["cluster"] == settings[0]["cluster"] for one in settings)
    tasks = [(one["task"]["type"], one["task"]["index"]) for one in settings]
    addresses = settings[0]["cluster"]
    listed = [(kind, index) for kind, names in addresses.items() for index in range(len(names))]
    assert sorted(tasks) == sorted(listed)
    assert len({name for names in addresses.values() for name in names}) == len(tasks)
    return sorted(tasks)


WORKERS = [("worker", index) for index in range(4)]
SERVERS = [("ps", index) for index in range(2)]


@sentence(
    PAGE,
    ran="rankwise run tensorflow-mirrored.yaml",
    said="Azure ML sets TF_CONFIG, which distributed TensorFlow training needs.",
)
@sentence(PAGE, ran="rankwise run tensorflow-mirrored.yaml")
def test_mirrored_workers_are_a_job(shop: Shop) -> None:
    """With MultiWorkerMirroredStrategy, the user provides the worker spec."""
    assert places(run(shop, "tensorflow-mirrored.yaml")[1]) == WORKERS


@sentence(PAGE, ran="rankwise run tensorflow-parameter-server.yaml")
def test_parameter_servers_and_workers_are_a_job(shop: Shop) -> None:
    """With ParameterServerStrategy, the user provides parameter server and worker specs."""
    assert places(run(shop, "tensorflow-parameter-server.yaml")[1]) == SERVERS + WORKERS


@sentence(PAGE, ran="rankwise run tensorflow-k8s.yaml", stand_in=GPUS)
def test_parameter_servers_and_workers_are_a_job_of_kubernetes(shop: Shop) -> None:
    """A TensorFlow job on Kubernetes: parameter servers with a CPU, workers with 4 GPUs."""
    assert places(run(shop, "tensorflow-k8s.yaml")[1]) == SERVERS + WORKERS


# The same service's documents of today, as people have them

SCHEMA = "$schema: https://azuremlschemas.azureedge.net/latest/{}.schema.json\n"
COMMAND_JOB = (
    SCHEMA.format("commandJob")
    + """\
display_name: Copy a table
code: src
command: |
  cat ${{inputs.table}} ${{inputs.local}}/more.csv > ${{outputs.far}}/all.csv
  cp ${{outputs.far}}/all.csv ${{outputs.near}}/it.csv
  echo "rows: $(wc -l < ${{outputs.near}}/it.csv)" | tee ./outputs/log.txt
inputs:
  table: {type: uri_file, path: "URL/iris.csv"}
  local: {type: uri_folder, path: ./my data}
outputs:
  far: {type: uri_folder, path: azureml://datastores/blob/paths/x}
  near: {path: ./kept}
"""
)
CONDA_JOB = """\
type: command
command: |
  pip install pluggy==1.5.0
  python -c "import iniconfig, pluggy, sys; print(sys.prefix, pluggy.__file__)"
environment:
  image: mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04
  conda_file: {name: few, dependencies: [pip, numpy=1.26, {pip: [iniconfig==2.0.0]}]}
"""
COMPONENT = (
    SCHEMA.format("commandComponent")
    + """\
name: prepare
type: command
version: 1
inputs: {word: {type: string}, times: {type: integer, default: 2}}
outputs: {text: {type: uri_folder}}
command: for i in $(seq ${{inputs.times}}); do echo ${{inputs.word}} >> ${{outputs.text}}/it; done
"""
)
PIPELINE = (
    SCHEMA.format("pipelineJob")
    + """\
type: pipeline
display_name: Prepare and count
settings: {default_compute: azureml:gpu-cluster}
inputs: {word: hello}
outputs: {count: {path: ./counted}}
jobs:
  count:
    command: wc -l < ${{inputs.text}}/it > ${{outputs.number}}/n
    inputs: {text: "${{parent.jobs.prepare.outputs.text}}"}
    outputs: {number: "${{parent.outputs.count}}"}
  prepare:
    component: ./prepare.yml
    inputs: {word: "${{parent.inputs.word}}"}
"""
)
SWEEP = (
    SCHEMA.format("sweepJob")
    + """\
type: sweep
trial: {command: "echo tried ${{inputs.a}} ${{search_space.b}} ${{search_space.c}}"}
inputs: {a: 0.5}
sampling_algorithm: grid
search_space: {b: {type: choice, values: [x, y]}, c: {type: choice, values: [1, 2]}}
objective: {goal: minimize, primary_metric: loss}
limits: {max_concurrent_trials: 2}
"""
)


@sentence(PAGE, ran="rankwise run command.yml", said="A command job of v2 runs as it is.")
def test_a_command_job_of_today_runs_as_it_is(shop: Shop) -> None:
    """Its inputs are fetched or found, its outputs have folders, and its name is that of the run."""
    shop.write("my data/more.csv", "3,4\n")
    shop.write("served/iris.csv", "1,2\n")
    shop.variables["XDG_CACHE_HOME"] = str(shop.folder / "cache")
    handler = partial(SimpleHTTPRequestHandler, directory=shop.folder / "served")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        shop.write("command.yml", COMMAND_JOB.replace("URL", url))
        said = shop.rankwise("run", "command.yml")
        server.shutdown()
        thread.join()
    assert said.exit_code == 0, said
    assert "azureml://datastores/blob/paths/x is in Azure: see the attempt's folder" in flat(said)
    assert "rows: 2" in said.output, said
    assert (shop.folder / "kept" / "it.csv").read_text() == "1,2\n3,4\n"
    # What was fetched stays.
    again = shop.rankwise("run", "command.yml")
    assert again.exit_code == 0, again
    assert "Copy-a-table-2 passed" in flat(shop.rankwise("list"))


@pytest.mark.usefixtures("package_index")
@sentence(PAGE, ran="rankwise run conda.yml", said="A conda file of v2 says what a job runs in.")
def test_a_conda_file_becomes_an_environment(shop: Shop) -> None:
    """uv makes it of the packages of pip; what the command installs is not put into it."""
    shop.variables["XDG_CACHE_HOME"] = str(shop.folder / "cache")
    # Where conda is installed, it would make the environment.
    path = [one for one in os.environ["PATH"].split(os.pathsep) if "conda" not in one]
    shop.write("conda.yml", CONDA_JOB)
    said = shop.rankwise("run", "conda.yml", variables={"PATH": os.pathsep.join(path)})
    assert said.exit_code == 0, said
    assert "its pip packages, without numpy=1.26 and mcr." in flat(said)
    [where] = re.findall(r"\| /.*/content (/.*/pluggy/__init__.py)", said.output)
    assert "/packages/node0-" in where
    runtimes = shop.folder / "cache" / "rankwise" / "runtimes"
    installed = {one.name for one in runtimes.glob("*/content/lib/*/site-packages/*")}
    assert installed >= {"iniconfig", "pip"}
    assert "pluggy" not in installed


@sentence(PAGE, ran="rankwise run pipeline.yml", said="A pipeline job of v2 runs as it is.")
def test_a_pipeline_job_runs_its_jobs_in_order(shop: Shop) -> None:
    """Its jobs, of which one is a component, read what others have written."""
    shop.write("prepare.yml", COMPONENT)
    shop.write("pipeline.yml", PIPELINE)
    said = shop.rankwise("run", "pipeline.yml")
    assert said.exit_code == 0, said
    assert (shop.folder / "counted" / "n").read_text().strip() == "2"
    alone = shop.rankwise("run", "prepare.yml")
    assert alone.exit_code == 1, alone
    assert "not run: no value for the inputs word" in flat(alone)


@sentence(PAGE, ran="rankwise run sweep.yml", said="A sweep job of v2 over choices runs as it is.")
def test_a_sweep_job_tries_each_combination(shop: Shop) -> None:
    """There is a trial for each combination of values."""
    shop.write("sweep.yml", SWEEP)
    said = shop.rankwise("run", "sweep.yml")
    assert said.exit_code == 0, said
    tried = re.findall(r"tried (.*)", said.output)
    assert sorted(tried) == ["0.5 x 1", "0.5 x 2", "0.5 y 1", "0.5 y 2"]


def flat(said: Said) -> str:
    return " ".join(f"{said.output} {said.errors}".split())
