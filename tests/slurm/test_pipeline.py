"""The pipeline of examples/theta on a real Slurm: the check in the queue, the detached benchmarks."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

from cluster import Cluster
from environments import ROOT

from tests.slurm.shops import cluster_shop, is_idle, wait_until

EXAMPLE = ROOT / "examples" / "theta"
REAL_BUILD = "RANKWISE_BUILD_FROM_SOURCE"
"""Set it to have mpi4py compiled, as the example does; otherwise the one that is here is taken."""


def without_the_build(text: str) -> str:
    """Take mpi4py from where it is: compiling it takes minutes, and has nothing to do with Slurm."""
    lines = """\
      mkdir -p "$BUILD_ROOT/source/mpi4py-$MPI4PY/demo" "$BUILD_ROOT/wheels"
      touch "$BUILD_ROOT/wheels/mpi4py.whl"
      cp bench.py "$BUILD_ROOT/source/mpi4py-$MPI4PY/demo/osu_latency.py"
      echo "$MPI4PY_HERE" > "$(echo "$BUILD_ROOT"/venv/lib/python3*)/site-packages/here.pth"
      # It would look for MPI beside the Python that it is loaded into.
      export MPI4PY_LIBMPI="$LIBMPI_HERE"
"""
    text = re.sub(r"(?s)(  download:\n    run: )\|\n.*?(    inputs: \[\])", r"\1'true'\n\2", text)
    text = re.sub(
        r"(?s)(  build:\n    run: \|\n).*?(    inputs: \[\])",
        lambda found: f"{found[1]}{lines}{found[2]}",
        text,
    )
    return text.replace("    outputs: build/source/mpi4py-*/demo/osu_latency.py\n", "")


BENCH = """\
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 0:
    print("# OSU MPI Latency Test")
    print("# Size [B]        Latency [us]")
    print("1    0.5")
MPI.COMM_WORLD.Barrier()
"""


def test_the_whole_pipeline_on_a_cluster(tmp_path: Path, slurm: Cluster) -> None:
    import mpi4py

    is_real = bool(os.environ.get(REAL_BUILD))
    with cluster_shop(tmp_path / "shop", slurm) as shop:
        shutil.copytree(EXAMPLE, shop.folder, dirs_exist_ok=True)
        (shop.folder / "rankwise.toml").write_text(
            '[compute.theta]\nbackend = "slurm"\nmpi = "srun-pmi2"\n'
        )
        text = (EXAMPLE / "pipeline.yaml").read_text()
        sweep = (EXAMPLE / "osu.yaml").read_text()
        shop.variables["MPI4PY_HERE"] = str(Path(mpi4py.__file__).parents[1])
        shop.variables["LIBMPI_HERE"] = str(Path(sys.prefix, "lib", "libmpi.so.12"))
        if not is_real:
            text = without_the_build(text).replace("4.1.2", mpi4py.__version__)
            sweep = sweep.replace("4.1.2", mpi4py.__version__)
            sweep = sweep.replace("[osu_latency.py, osu_bw.py]", "[osu_latency.py]")
            shop.write("bench.py", BENCH)
        (shop.folder / "pipeline.yaml").write_text(text)
        (shop.folder / "osu.yaml").write_text(sweep)
        said = shop.rankwise("run", "pipeline.yaml", "--strict", seconds=900.0)
        assert said.exit_code == 0, said
        assert "rank 1 of 2, mpi4py" in said.output
        assert (shop.folder / "releases" / "current").readlink() == Path("mpi4py-1")
        summary = (shop.folder / "summary.md").read_text()
        assert "| sanity-check | passed |" in summary
        assert "Goes on by itself: mpi4py-benchmark-1" in summary

        def is_measured() -> bool:
            status = json.loads(shop.rankwise("status", "mpi4py-1", "--json").output)
            (child,) = status["children"]
            assert child["state"] in ("queued", "running", "passed"), child
            return bool(child["state"] == "passed")

        wait_until("the benchmarks are over", is_measured, 300.0)
        again = shop.rankwise("run", "pipeline.yaml", "--from", "deploy")
        assert again.exit_code == 0, again
        assert "sanity-check passed: taken over from mpi4py-1" in again.output
        back = shop.rankwise("rollback", "releases")
        assert back.output.splitlines()[0].startswith("* mpi4py-1"), back
        wait_until("no job is left", lambda: is_idle(slurm))
        shop.wait_until_empty()
