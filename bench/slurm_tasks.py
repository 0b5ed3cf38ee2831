"""Many small tasks on Slurm: what one costs, as a job of its own, in an array and in a pilot.

    python -m bench.slurm_tasks [TASKS]

Starts a Slurm of four nodes on this machine, which has as many cores as it has: the figures are
those of the machinery, not of a cluster.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from cluster import Cluster, cluster

_LIMIT_SECONDS = 600.0
_DOCUMENT = "type: command\nname: t\ncompute: slurm\ncommand: 'true'\n"
_MODES = {
    "pilot, 4 nodes": 'mode = "pilot"\npilot_nodes = 4\npilot_idle = 5\n',
    "pilot, 1 node": 'mode = "pilot"\npilot_idle = 5\n',
    "jobs, as an array": "",
}


def main(tasks: int) -> None:
    """Print a line for each mode."""
    with cluster() as made:
        for mode, settings in _MODES.items():
            seconds = _time(made, settings, tasks)
            each = seconds / tasks * 1000
            print(f"{mode:20} {tasks} tasks in {seconds:6.2f} s: {each:6.1f} ms a task")


def _time(made: Cluster, settings: str, tasks: int) -> float:
    with tempfile.TemporaryDirectory(prefix="rw-bench-") as place:
        folder = Path(place)
        (folder / "rankwise.toml").write_text(f'[compute.slurm]\nbackend = "slurm"\n{settings}')
        names = [f"t{number}.yaml" for number in range(tasks)]
        for name in names:
            (folder / name).write_text(_DOCUMENT)
        begin = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "rankwise.cli.main", "run", "--quiet", *names],
            cwd=folder,
            env=os.environ | made.variables,
            check=True,
            timeout=_LIMIT_SECONDS,
        )
        return time.monotonic() - begin


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
