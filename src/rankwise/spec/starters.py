"""Documents to start from, one of each type."""

from __future__ import annotations

from rankwise.errors import InputError
from rankwise.spec.complaints import choice

_COMMON = """\

# Everything below may be left out.

# Environment variables of all processes, and names of those that are passed on from your shell.
environment_variables:
  OMP_NUM_THREADS: 1
# secrets: [HF_TOKEN]

# What ${{inputs.NAME}} stands for in commands.
inputs:
  epochs: 3

# Start again after a failure, at most so many times; with on_exit_codes only after these.
restart:
  max: 1
  # on_exit_codes: [75]

# Runs are found by these.
tags:
  team: mine
"""

_TIMEOUT = """\

# Longest run time of an attempt: seconds, or such as 90s, 10m, 1h30m.
timeout: 1h
"""

_COMPUTE = """\

# Where to run: `local` is this machine, others are named in rankwise.toml.
# On `local` the nodes are virtual ones.
compute:
  target: local
  instance_count: 2
"""

_PIPELINE = """\
# A pipeline: stages that run one after the other, or as `needs` says.
type: Pipeline
name: my-pipeline

# Variables of all stages.
env:
  RELEASE_ROOT: ./releases
# The folder in which stages work, and the compute of those that name none.
# workspace: ./work
# on: local

stages:
  # The lines are bash's, and the first that fails ends them. What they export, later stages see.
  setup:
    run: |
      export BUILD_ROOT="$PWD/build"
      mkdir -p "$BUILD_ROOT"

  build:
    needs: setup
    run: echo 'print("hello")' > "$BUILD_ROOT/hello.py"
    # Try again after a failure, and give up after so long.
    retries: 1
    timeout: 30m
    # Kept with the run; ${{artifacts.build}} is their folder.
    artifacts: build/*.py

  test:
    needs: build
    run: python "$BUILD_ROOT/hello.py"
    # On a compute of rankwise.toml, and on so many MPI ranks.
    # on: local
    # ranks: 2
    # What must be true of the output.
    checks:
      - contains: hello

  # Copied at once or not at all; `rankwise rollback ./releases` goes back.
  deploy:
    needs: test
    deploy:
      from: build
      to: $RELEASE_ROOT
      keep: 3

  summary:
    needs: deploy
    # Also after a failure.
    when: always
    report: summary.md
"""

_STARTERS = {
    "MpiJob": f"""\
# An MPI job: one command starts the ranks on all nodes.
type: MpiJob
name: my-mpi-job
experiment_name: first-steps

launcher:
  spec:
    # The host file of the nodes is at AZUREML_MPI_HOSTFILE, with or without a $.
    command: >-
      mpirun -np 4 --hostfile AZUREML_MPI_HOSTFILE
      python train.py --epochs ${{{{inputs.epochs}}}}
    # The folder with the program, from that of this file.
    code:
      path: ./src
    # rankwise.toml maps this name to a Python, a virtual environment or a container.
    # environment: azureml:pytorch-1.7:1

# The nodes on which the ranks are started.
worker:
  spec: {{}}
  # What each may use.
  # resource_limits:
  #   cpu: 4
  #   memory: 2Gi
  #   gpu: 1

# Ranks on each node; left out, it follows from -np.
process_count_per_instance: 2
{_COMPUTE}{_TIMEOUT}{_COMMON}
# Whose success counts: `all` ranks or the `launcher`.
success: all
""",
    "PytorchJob": f"""\
# A PyTorch job: the same command on every node.
type: PytorchJob
name: my-pytorch-job
experiment_name: first-steps

worker:
  spec:
    # MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK and LOCAL_RANK are set for every process. A command
    # that starts processes itself (torchrun) gets NODE_RANK as well, and runs once on each node.
    command: python train.py --epochs ${{{{inputs.epochs}}}}
    # The folder with the program, from that of this file.
    code:
      path: ./src
    # rankwise.toml maps this name to a Python, a virtual environment or a container.
    # environment: azureml:pytorch-1.7:1
    # What each process may use.
    # resource_limits:
    #   cpu: 4
    #   memory: 2Gi
    #   gpu: 1

# Processes on each node.
process_count_per_instance: 2
{_COMPUTE}{_TIMEOUT}{_COMMON}
# Whose success counts: `all` processes or the `chief`, which is rank 0.
success: all
""",
    "TensorflowJob": f"""\
# A TensorFlow job: workers, and perhaps others, that find each other by TF_CONFIG.
type: TensorflowJob
name: my-tensorflow-job
experiment_name: first-steps

worker:
  num_replicas: 2
  spec:
    command: python train.py --epochs ${{{{inputs.epochs}}}}
    # The folder with the program, from that of this file.
    code:
      path: ./src
    # rankwise.toml maps this name to a Python, a virtual environment or a container.
    # environment: azureml:tensorflow-2.3:1
  # What each may use.
  # resource_limits:
  #   cpu: 4
  #   memory: 2Gi
  #   gpu: 1

# For ParameterServerStrategy; they are ended when the workers are done.
# parameter_server:
#   num_replicas: 1
#   spec:
#     command: python train.py

# `chief` and `evaluator` are written in the same way; there is one of each.
{_COMPUTE}{_TIMEOUT}{_COMMON}
# Whose success counts: `all` workers or the `chief`.
success: all
""",
    "command": f"""\
# A command job, as Azure ML has them: one command, started once for each process.
type: command
name: my-command-job
experiment_name: first-steps
display_name: My first command job

command: python train.py --epochs ${{{{inputs.epochs}}}}
# The folder with the program, from that of this file.
code: ./src
# rankwise.toml maps this name to a Python, a virtual environment or a container.
# environment: azureml:pytorch-1.7:1

# Where to run: `local` is this machine, others (azureml:NAME) are named in rankwise.toml.
compute: local
resources:
  # Nodes; on `local` they are virtual ones.
  instance_count: 2

# How the processes find each other: mpi, pytorch or tensorflow. The last has worker_count and
# parameter_server_count in place of process_count_per_instance.
distribution:
  type: pytorch
  process_count_per_instance: 2

# Longest run time: seconds, or such as 90s, 10m, 1h30m.
limits:
  timeout: 1h
{_COMMON}""",
    "Pipeline": _PIPELINE,
    "Suite": """\
# A suite of tests: scripts and commands, each by itself or as ranks.
type: Suite
name: my-suite

# Longest run time of each test that says nothing else: seconds, or such as 90s, 10m.
timeout: 10m
# For all tests. Names of variables that are passed on from your shell are under `secrets`.
environment_variables:
  OMP_NUM_THREADS: 1
# secrets: [HF_TOKEN]

# rankwise.toml maps these names to a Python or a container, and to a cluster.
# environment: pytorch
# compute: gpu-cluster

tests:
  # A script may also say it itself, in a comment:  # rankwise: ranks=4 gpus=2 timeout=60
  - run: python -c "print('all is well')"
    name: dummy
    # As how many ranks it runs; left out, it is one process.
    # ranks: 4
    # Without these it is not run, and the suite is not green.
    # requires: {gpus: 2, memory: 2Gi}
    # Unless the suite may pass without it.
    # optional: true
    # What must be true when it has run: see docs/checks.md for all of them.
    checks:
      - all is well
      - absent: Traceback

  # Every script that fits is a test.
  # - files: tests/*_test.py

  # Tests of pytest, which show one by one in the report.
  # - pytest: tests/ --n-workers=4

# Runs are found by these.
tags:
  team: mine
""",
    "Sweep": """\
type: Sweep
name: my-sweep

# The line of one rank; ${{NAME}} is a parameter, or ranks, nodes, ranks_per_node, trial.
command: python benchmark.py --size ${{size}}

# There is a case for each combination of values: lists, or ranges.
parameters:
  size: {from: 1024, to: 65536, times: 4}
# zip: [{algorithm: [ring, tree], chunk: [64, 4096]}]

# Without ranks_per_node, the command is run as it is, without mpiexec.
nodes: [1]
ranks_per_node: [2, 4]

# Cases to leave out, each with the reason, and what is different for some of them.
exclude:
  - when: {ranks: ">= 4", size: "> 16384"}
    reason: takes too long here
# set: [{when: {ranks: 4}, timeout: 10m}]

# How often each case is measured: all once, then all again.
trials: 5
warmup: 1

# What to read from the output: osu, imb, mpi4py.bench, jsonl ..., or an expression of your own.
metrics:
  - parser: regex
    name: time
    unit: s
    better: lower
    pattern: 'took ([0-9.]+) s'

# Longest time of one case, and what all may cost; more is refused before anything starts.
timeout: 2m
budget:
  max_cases: 100
  max_core_hours: 10

# Where to run: `local` is this machine, others are named in rankwise.toml. Cases run one by one,
# unless they may disturb each other.
compute: local
# parallel: true
""",
    "Matrix": """\
# A matrix: the same tests in every runtime, on every machine.
type: Matrix
name: my-matrix

# What tests run in. Each is made once, and kept for the next time.
runtimes:
  # The Python of rankwise itself.
  current: current
  # Packages for a new environment; or a file of them, as `lock: requirements.lock`.
  numpy-1.26:
    requirements: [numpy==1.26.4]
    # python: "3.12"
    # Tests of this runtime alone, and what a machine must have for it.
    # tests: [specific.ipynb]
    # needs: [gpu]
  # Others have an `image`, `modules`, or the name of a runtime in rankwise.toml.

# Where tests run: `local` is this machine, others are named in rankwise.toml.
machines:
  here:
    compute: local
    # How many tests at a time, and what they can rely on.
    max_parallel: 2
    # features: [gpu, "mem>=64"]

# What is run in every cell: scripts, notebooks, commands, pytest, suites.
tests:
  - python -c "import sys; print(sys.version)"
  # - hello.sh
  # - {run: plots.ipynb, needs: [gpu, -avx512]}
  # - pytest: tests/

# Cells to leave out, each with the reason; more of them; and what is different in some.
# exclude: [{when: {runtime: numpy-*, machine: here}, reason: known not to work}]
# add: [{runtime: current, machine: here}]
# set: [{when: {runtime: current}, timeout: 5m, soft_fail: true}]

timeout: 10m
""",
}


def starter(type_name: str) -> str:
    """Give a commented document of a type; raises InputError if there is no such type."""
    if type_name not in _STARTERS:
        raise InputError(f"the type {choice(type_name, list(_STARTERS))}")
    return _STARTERS[type_name]
