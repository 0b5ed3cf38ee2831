"""Makes attempts ready to be sent: folders, orders, scripts, and our own files for the nodes."""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankwise import runner
from rankwise.compute.compiled import compiled_runner
from rankwise.compute.contract import Attempt, Job
from rankwise.compute.order import make_folders, write_order
from rankwise.compute.slurm import inside
from rankwise.compute.slurm.script import Needs, needs_of, options_of, script_text
from rankwise.compute.slurm.sending import Parcel
from rankwise.errors import ComputeFailure
from rankwise.site import ComputeChoice
from rankwise.slurm.answers import Node


class Packing:
    """Makes parcels of attempts, as the site file wants them for one cluster."""

    def __init__(self, choice: ComputeChoice) -> None:
        self._choice = choice
        self._slurm = choice.slurm

    def parcel_for(self, job: Job, nodes: Sequence[Node]) -> Parcel:
        """Write everything that an attempt needs there; ComputeFailure: it cannot be."""
        attempt, task = job.attempt, job.task
        try:
            places = make_folders(attempt.folder, task)
            # Which they are, Slurm decides.
            later = [
                {"name": f"node{number}", "address": "", "folder": str(place)}
                for number, place in enumerate(places)
            ]
            write_order(job, later, starts_by_srun=self._slurm.mpi != "mpirun")
            parts = self._parts(attempt.folder)
        except OSError as error:
            raise ComputeFailure(
                f"{attempt.label} could not be made ready in {attempt.folder}: {error.strerror}"
            ) from error
        most_cores = max((node.cores for node in nodes), default=0)
        needs = needs_of(task, most_cores=most_cores, counts_gpus=self._choice.gpus is not None)
        return Parcel(
            attempt=attempt,
            options=tuple(options_of(self._slurm, needs)),
            script=self._script(attempt, parts, "inside.py"),
            secrets=job.secrets,
            nodes=needs.nodes,
            cores=needs.cores,
            **self._pilot_for(attempt, needs, parts, most_cores),
        )

    def _pilot_for(
        self, attempt: Attempt, needs: Needs, parts: Path, most_cores: int
    ) -> dict[str, Any]:
        """Say what the job would be that this task shares with others: whole nodes."""
        if self._slurm.mode != "pilot":
            return {}
        whole = Needs(
            nodes=max(needs.nodes, self._slurm.pilot_nodes), cores=max(most_cores, needs.cores)
        )
        arguments = (str(self._slurm.pilot_idle),)
        return {
            "pilot_options": (*options_of(self._slurm, whole), "--mem=0"),
            "pilot_script": self._script(attempt, parts, "pilot_agent.py", "agent", arguments),
        }

    def _script(
        self, attempt: Attempt, parts: Path, program: str, word: str = "", more: Sequence[str] = ()
    ) -> str:
        """Write the script that starts one of our parts, with the runner as what it works with."""
        python = self._slurm.python or sys.executable
        runner_file = next(parts.glob("runner.*"))
        first = [python, "-I", "-S", str(parts / program), *([word] if word else [])]
        run = attempt.label.partition("/")[0]
        return script_text(self._slurm, run, [*first, str(runner_file), *more])

    def _parts(self, folder: Path) -> Path:
        """Have copies of our own files where the nodes can read them, beside the attempts."""
        has_own = not self._slurm.python
        source = compiled_runner() if has_own else Path(str(runner.__file__))
        beside = Path(inside.__file__).parent
        files = {f"runner{source.suffix}": source}
        files |= {name: beside / name for name in ("inside.py", "pilot_agent.py")}
        return _copied(files, folder.parent.parent / ".parts")


def _copied(files: Mapping[str, Path], library: Path) -> Path:
    """Have copies of files in a folder of their own, which is named after what is in them."""
    contents = {name: source.read_bytes() for name, source in files.items()}
    place = library / hashlib.sha256(b"".join(contents.values())).hexdigest()[:12]
    if not place.exists():
        beside = library / f".{place.name}.{time.monotonic_ns()}"
        beside.mkdir(parents=True)
        for name, content in contents.items():
            (beside / name).write_bytes(content)
        try:
            beside.rename(place)
        except OSError:  # Another client was faster.
            shutil.rmtree(beside)
    return place
