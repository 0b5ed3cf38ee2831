"""Sweeps on a real Slurm: trials have whole nodes to themselves, one after the other."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from cluster import Cluster

from rankwise.records import read_end
from rankwise.store import Store
from tests.acceptance.jobs import Shop
from tests.slurm.shops import LIMIT_SECONDS, cluster_shop

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
    """Give when trials have started and ended, in the order of their starts."""
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
