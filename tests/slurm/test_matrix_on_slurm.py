"""A matrix whose machines are this one and a real Slurm cluster."""

from __future__ import annotations

import json
from pathlib import Path

from cluster import Cluster

from rankwise.store import Store
from tests.slurm.shops import (
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
