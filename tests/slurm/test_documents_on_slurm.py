"""A matrix whose machines are this one and a real Slurm cluster."""

from __future__ import annotations

import json
import os
import shutil
from itertools import pairwise
from pathlib import Path

import containers
import pytest
from cluster import Cluster
from environments import ENVIRONMENTS, ROOT, why_unavailable

from rankwise.records import read_end
from rankwise.store import Store
from tests.acceptance.jobs import Shop
from tests.backends.places import need
from tests.slurm.shops import (
    LIMIT_SECONDS,
    cluster_shop,
    wait_until_idle,
)

MATRIX = """\
type: Matrix
name: both
runtimes:
  one: current
  two: {runtime: current, needs: batch}
machines:
  here: local
  cluster: {compute: slurm, max_parallel: 2}
tests:
  - {run: 'hostname | grep "^NODES[1-4]$"', name: on-a-node}
  - {run: look.ipynb, needs: batch, runtimes: one}
  - {run: 'true', name: too-big, needs: "cores>=10000", runtimes: one}
"""


def test_cells_run_where_their_machine_is(slurm: Cluster, tmp_path: Path) -> None:
    with cluster_shop(tmp_path / "shop", slurm, 'features = ["batch"]') as shop:
        source = f"import os\nassert os.uname().nodename in {slurm.nodes}, os.uname()"
        cell: dict[str, object] = {"cell_type": "code", "source": source}
        cell |= {"metadata": {}, "outputs": [], "execution_count": None, "id": "only"}
        notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        shop.write("look.ipynb", json.dumps(notebook))
        shop.write("matrix.yaml", MATRIX.replace("NODES", slurm.prefix))
        said = shop.rankwise("run", "matrix.yaml")
        with Store.open(shop.folder / ".rankwise", read_only=True) as store:
            rows = {row.key: row for row in store.task_rows("both-1")}
            tries = {row.task: row for row in store.attempts("both-1")}
        assert {key: str(row.state) for key, row in rows.items()} == {
            "one@here@environment": "passed",
            "one@here@on-a-node": "failed",
            "one@here@look.ipynb": "skipped",
            "one@here@too-big": "skipped",
            "one@cluster@environment": "passed",
            "one@cluster@on-a-node": "passed",
            "one@cluster@look.ipynb": "passed",
            "one@cluster@too-big": "skipped",
            "two@here@on-a-node": "skipped",
            "two@cluster@environment": "passed",
            "two@cluster@on-a-node": "passed",
        }, said
        # What a node has is asked of Slurm.
        assert rows["one@cluster@too-big"].reason.startswith("needs cores>=10000, and cluster has")
        assert rows["two@here@on-a-node"].reason == "needs batch, which here does not have"
        assert tries["one@cluster@look.ipynb"].job_id
        assert said.exit_code == 1, said
        shop.wait_until_empty()
    wait_until_idle(slurm)


# Suites on a cluster: the same document, the same checks

SUITE = """\
type: Suite
compute: slurm
tests:
  # The `srun printRank | grep -q` of many clusters.
  - run: python print_rank.py
    ranks: 4
    nodes: 2
    checks:
      - contains: "rank {rank} of 4"
        rank: all
      - regex: 'rank \\d of 4'
        count: 4
        on: stdout
  - run: echo one; exit 3
    name: expected
    checks: [{exit_code: 3}, one]
  - run: echo hello
    name: wrong
    checks: [goodbye]
  - run: touch ran
    name: gpus
    requires: {gpus: 2}
  - run: touch ran
    name: many-gpus
    requires: {gpus: 64}
    optional: true
"""


def test_a_suite_is_checked_on_the_nodes_and_says_what_could_not_run(
    tmp_path: Path, slurm: Cluster
) -> None:
    with cluster_shop(tmp_path / "shop", slurm) as shop:
        shutil.copy(ROOT / "examples/suite/src/print_rank.py", shop.folder)
        shop.write("suite.yaml", SUITE)
        said = shop.rankwise("run", "suite.yaml", seconds=LIMIT_SECONDS)
        assert said.exit_code == 1, said
        status = json.loads(shop.rankwise("status", "--json").output)
        found = {task["key"]: (task["state"], task["reason"]) for task in status["tasks"]}
        assert found.pop("wrong") == (
            "failed",
            "check 1 (contains 'goodbye'): not found in worker-0/output.log:\n  | hello",
        )
        assert found == {
            "print_rank": ("passed", ""),
            "expected": ("passed", ""),
            "gpus": ("not run", "needs 2 GPUs, found 0"),
            "many-gpus": ("skipped", "needs 64 GPUs, found 0"),
        }
        assert not (shop.folder / "ran").exists()
        shop.wait_until_empty()
    wait_until_idle(slurm)


# Sweeps on a real Slurm: trials have whole nodes to themselves, one after the other

_SWEEP = """\
    type: Sweep
    name: timing
    command: echo "took ${{size}} s"; squeue -h -j "$RANKWISE_SLURM_JOB" -o "cores %C, shared %h"
    parameters:
      size: [1, 2, 3]
    trials: 2
    compute: slurm
    metrics:
      - {name: time, unit: s, better: lower, pattern: 'took (?P<value>[0-9.]+) s'}
    """


def _times(shop: Shop, run: str = "timing-1") -> list[tuple[float, float]]:
    """Return when trials have started and ended, in the order of their starts."""
    with Store.open(shop.folder / ".rankwise", read_only=True) as store:
        ends = [read_end(row.folder) for row in store.attempts(run)]
    found = [(one.started, one.ended) for one in ends if one is not None]
    assert all(started and ended for started, ended in found), found
    return sorted((started or 0.0, ended or 0.0) for started, ended in found)


@pytest.mark.parametrize("mode", ["job", "pilot"])
def test_trials_have_whole_nodes_one_after_the_other(
    tmp_path: Path, slurm: Cluster, mode: str
) -> None:
    with cluster_shop(tmp_path / "shop", slurm, f'mode = "{mode}"\npilot_idle = 1') as shop:
        shop.write("sweep.yaml", _SWEEP)
        said = shop.rankwise("run", "sweep.yaml", seconds=LIMIT_SECONDS)
        assert said.exit_code == 0, said
        times = _times(shop)
        assert len(times) == 6
        for (_, ended), (started, _) in pairwise(times):
            assert ended <= started, times
        logs = shop.rankwise("logs", "timing-1").output
        # The nodes of this cluster have four cores each.
        word = "shared NO" if mode == "job" else ""
        assert logs.count(f"cores 4, {word}") == 6, logs


def test_a_sweep_whose_cases_may_run_beside_each_other_claims_what_they_need(
    tmp_path: Path, slurm: Cluster
) -> None:
    with cluster_shop(tmp_path / "shop", slurm) as shop:
        shop.write("sweep.yaml", _SWEEP.replace("trials: 2", "trials: 2\n    parallel: true"))
        said = shop.rankwise("run", "sweep.yaml", seconds=LIMIT_SECONDS)
        assert said.exit_code == 0, said
        logs = shop.rankwise("logs", "timing-1").output
        assert "cores 1, shared OK" in logs, logs
        assert "cores 4" not in logs, logs
        assert "shared NO" not in logs, logs


@pytest.mark.full_length
def test_ranks_of_mpi_are_in_a_container_on_a_node(slurm: Cluster, tmp_path: Path) -> None:
    mpich = ENVIRONMENTS["mpich"]
    need(containers.obstacle() or why_unavailable(mpich))
    with (
        containers.podman([mpich.folder]) as engine,
        cluster_shop(tmp_path / "shop", slurm) as shop,
    ):
        # Nodes have the variables of a login, and not those of this test.
        settings = "".join(f"export {name}={value}\n" for name, value in engine.variables.items())
        found = shutil.which("podman")
        shop.write("bin/podman", f'#!/bin/sh\n{settings}exec {found} "$@"\n').chmod(0o755)
        shop.variables["PATH"] = f"{shop.folder}/bin{os.pathsep}{os.environ['PATH']}"
        site = (shop.folder / "rankwise.toml").read_text()
        box = f'[runtime.box]\nimage = "{containers.IMAGE}"\nengine = "podman"\n'
        shop.write("rankwise.toml", site + box)
        line = "from mpi4py import MPI; import os; world = MPI.COMM_WORLD; world.barrier(); "
        line += "print('rank', world.rank, flush=True); world.barrier(); "
        line += "world.rank == 1 and os.kill(os.getpid(), 11); world.barrier()\n"
        shop.write("ranks.py", line)
        shop.write(
            "job.yaml",
            f"""\
            type: MpiJob
            name: job
            compute: slurm
            launcher: {{spec: {{command: mpirun -np 2 python ranks.py, environment: box}}}}
            environment_variables: {{PATH: "{mpich.folder}/bin:/usr/local/bin:/usr/bin:/bin"}}
            """,
        )
        said = shop.rankwise("run", "job.yaml", seconds=LIMIT_SECONDS)
        assert said.exit_code == 139, said
        assert "job crashed: rank 1 was ended by signal 11 (SIGSEGV)" in said.output, said
        assert "rank 0     | rank 0\n" in said.output, said
        shop.wait_until_empty()
        assert engine.containers() == []
    wait_until_idle(slurm)
