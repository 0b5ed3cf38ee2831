"""Suites on a cluster: the same document, the same checks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from cluster import Cluster
from environments import ROOT

from tests.slurm.shops import (
    LIMIT_SECONDS,
    cluster_shop,
    wait_until_idle,
)

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
