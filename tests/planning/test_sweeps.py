"""Sweeps planned: what their trials have to themselves, wherever they run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rankwise.backends.batch.slurm import Slurm
from rankwise.backends.batch.system import needs_of
from rankwise.backends.remote.backend import fits
from rankwise.documents.site_models import SlurmConfig
from rankwise.plan import Resources, Task, claim_of
from rankwise.planning import plan_from

_SITE = """\
[compute.cluster]
backend = "slurm"
[compute.pods]
backend = "kubernetes"
image = "bench:1"
cores = 16
[compute.hosts]
backend = "ssh"
hosts = ["a", "b"]
"""
_SWEEP = """\
type: Sweep
command: ./bench ${{size}}
parameters: {size: [1, 2]}
trials: 2
compute: %s
"""


def _tasks(folder: Path, compute: str, more: str = "") -> list[Task]:
    (folder / "rankwise.toml").write_text(_SITE)
    (folder / "sweep.yaml").write_text(_SWEEP % compute + more)
    plan, _ = plan_from([folder / "sweep.yaml"])
    return list(plan.tasks)


@pytest.mark.parametrize("compute", ["local", "cluster", "pods", "hosts"])
def test_trials_are_alone_on_every_compute_and_one_at_a_time(tmp_path: Path, compute: str) -> None:
    tasks = _tasks(tmp_path, compute)
    assert len(tasks) == 4
    assert all(task.is_alone and task.lane_width == 1 for task in tasks)
    assert len({task.lane for task in tasks}) == 1
    # How many cores this machine has does not matter elsewhere.
    assert {task.resources for task in tasks} == {Resources()}


@pytest.mark.parametrize("compute", ["local", "cluster"])
def test_trials_that_may_run_beside_each_other_are_not_alone(tmp_path: Path, compute: str) -> None:
    tasks = _tasks(tmp_path, compute, "parallel: true\n")
    assert not any(task.is_alone or task.lane for task in tasks)


def test_a_trial_has_a_host_to_itself(tmp_path: Path) -> None:
    trial = _tasks(tmp_path, "hosts")[0]
    host = Resources(cores=8, memory=1 << 30, gpus=0)
    claim = claim_of(trial, host)
    assert fits(claim, host)
    assert not fits(claim, host - Resources(cores=1))
    # Of a host that has not said what it has, no more is claimed than can be given back.
    assert claim_of(trial, Resources(cores=math.inf)).cores == 1


def test_a_trial_has_its_nodes_in_slurm_to_itself(tmp_path: Path) -> None:
    trial = _tasks(tmp_path, "cluster")[0]
    assert "--exclusive" in Slurm(SlurmConfig()).options(needs_of(trial, most_cores=4))
    shared = _tasks(tmp_path, "cluster", "parallel: true\n")[0]
    assert "--exclusive" not in Slurm(SlurmConfig()).options(needs_of(shared, most_cores=4))
