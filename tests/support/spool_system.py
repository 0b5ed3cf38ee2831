"""A small batch system for tests: a folder, three commands, and a process that keeps each job.

As another's package would, it comes by an entry point and knows only rankwise's contract.

    SPOOL/jobs/7/job.json        what was submitted
    SPOOL/jobs/7/0.state         how its first member stands, in one word
    SPOOL/jobs/7/0.pid           the process of its script
    SPOOL/slots/0                locked by the member that has the slot
    SPOOL/away, SPOOL/full       while it is there, nothing is answered, or nothing taken
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

WAITING, RUNNING, COMPLETED, FAILED, CANCELLED = "WAIT", "RUN", "DONE", "FAIL", "KILLED"
AWAY, FULL = "the spool is closed", "the spool is full"
NODES = ("localhost", "there")
"""All of them are this machine."""
_SUBREAPER = 36


# The commands. They do without rankwise, as those of a batch system do.


def submit(spool: Path) -> None:
    """Take what stands on standard input, start its keeper, and print the number."""
    if (spool / "full").exists():
        sys.exit(FULL)
    job = json.load(sys.stdin)
    with (spool / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (spool / "jobs").mkdir(exist_ok=True)
        number = 1 + len(list((spool / "jobs").iterdir()))
        folder = spool / "jobs" / str(number)
        folder.mkdir()
    for index in range(job["count"]):
        _write(folder / f"{index}.state", WAITING)
    (folder / "script").write_text(job["script"])
    _write(folder / "job.json", json.dumps(job))
    for index in range(job["count"]):
        subprocess.Popen(
            [sys.executable, __file__, str(spool), "keep", str(number), str(index)],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    print(number)


def show(spool: Path) -> None:
    """Print a line for each member: number, index, how many there are, state, name."""
    for folder in (spool / "jobs").glob("*"):
        with contextlib.suppress(FileNotFoundError):
            job = json.loads((folder / "job.json").read_text())
            for index in range(job["count"]):
                state = (folder / f"{index}.state").read_text()
                print(folder.name, index, job["count"], state, job["name"])


def cancel(spool: Path, number: str, index: str, ending: str) -> None:
    """End one member: out of the queue, by SIGTERM to its script, or all of it."""
    # Whether it has begun, and what ends it, only its keeper knows.
    _write(spool / "jobs" / number / f"{index}.cancel", ending)


def keep(spool: Path, number: str, index: str) -> None:
    """Wait for a slot, run the script in it, and end all that it leaves."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    folder = spool / "jobs" / number
    state = folder / f"{index}.state"
    job = json.loads((folder / "job.json").read_text())
    if not _wait_for_slot(spool, folder / f"{index}.cancel"):
        _write(state, CANCELLED)
        return
    _write(state, RUNNING)
    told = {
        "SPOOL_JOB": number,
        "SPOOL_INDEX": index,
        "SPOOL_NODES": ",".join(NODES[: job["nodes"]]),
    }
    told["SPOOL_CORES"] = f"{job['cores']}(x{job['nodes']})"
    with Path(job["output"].replace("{index}", index)).open("ab") as output:
        script = subprocess.Popen(
            ["/bin/bash", str(folder / "script")],
            env={**job["environment"], **told},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    ended = _watch(script, folder / f"{index}.cancel")
    while children := _children():
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)
    _write(state, CANCELLED if ended else FAILED if script.returncode else COMPLETED)


def _wait_for_slot(spool: Path, cancelled: Path) -> bool:
    """Lock a slot for as long as this process lives; False: it is cancelled."""
    slots = [os.open(one, os.O_RDWR) for one in (spool / "slots").iterdir()]
    while not cancelled.exists():
        for slot in slots:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        time.sleep(0.02)
    return False


def _watch(script: subprocess.Popen[bytes], cancelled: Path) -> bool:
    """Wait for the end of a script; return whether it was killed."""
    obeyed = ""
    while script.poll() is None:
        with contextlib.suppress(FileNotFoundError):
            ending = cancelled.read_text()
            if ending == "now":
                script.kill()
                script.wait()
                return True
            if ending == "gently" != obeyed:
                script.terminate()
            obeyed = ending
        time.sleep(0.02)
    return False


def _children() -> list[int]:
    """Return what is below this process; what has lost its parents is its own."""
    return list(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(path)


def main(spool: str, verb: str, *arguments: str) -> None:
    if (Path(spool) / "away").exists() and verb != "keep":
        sys.exit(AWAY)
    verbs: dict[str, Callable[..., None]] = {"submit": submit, "show": show}
    verbs |= {"cancel": cancel, "keep": keep}
    verbs[verb](Path(spool), *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.exit()


# What rankwise finds by the entry point.

from rankwise.backends.batch import system as batch  # noqa: E402 - the commands do without
from rankwise.documents.site_models import BatchConfig  # noqa: E402
from rankwise.node.dialect import Dialect  # noqa: E402

_STATES = {
    WAITING: (batch.Phase.WAITING, None),
    RUNNING: (batch.Phase.RUNNING, None),
    COMPLETED: (batch.Phase.OVER, batch.Cause.COMPLETED),
    FAILED: (batch.Phase.OVER, batch.Cause.FAILED),
    CANCELLED: (batch.Phase.OVER, batch.Cause.CANCELLED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolSettings(BatchConfig):
    """What `[compute.NAME]` may have, beside what every batch system has."""

    folder: str
    slots: int = 4


class Spool(batch.BatchSystem):
    """The batch system."""

    Settings = SpoolSettings
    title = "Spool"
    most_in_array = 100
    dialect = Dialect(
        system="Spool",
        job="SPOOL_JOB",
        array_index="SPOOL_INDEX",
        nodes="SPOOL_NODES",
        cores="SPOOL_CORES",
        reach=("env", "SPOOL_STEP={node}", "SPOOL_JOB={job}"),
        dropped=("SPOOL_",),
    )

    def __init__(self, settings: SpoolSettings) -> None:
        self._slots = settings.slots
        self._call = batch.Commands(self)
        self._command = [sys.executable, __file__, settings.folder]
        for number in range(settings.slots):
            place = Path(settings.folder) / "slots" / str(number)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()

    def options(self, needs: batch.Needs) -> list[str]:
        return [str(needs.cores), str(needs.nodes)]

    def submit(self, job: batch.BatchJob) -> str:
        said = {"name": job.name, "script": job.script, "count": job.count}
        said |= {"output": str(job.output), "environment": dict(job.environment)}
        said |= {"cores": job.options[0], "nodes": int(job.options[1])}
        return self._call([*self._command, "submit"], given=json.dumps(said)).strip()

    def states(self, ids: Sequence[str]) -> dict[str, batch.JobState]:
        found = {}
        for line in self._call([*self._command, "show"]).splitlines():
            number, index, count, word, name = line.split(" ", 4)
            phase, cause = _STATES[word]
            job_id = number if count == "1" else self.member(number, int(index))
            found[job_id] = batch.JobState(phase=phase, cause=cause, word=word, name=name)
        return {job_id: found[job_id] for job_id in ids if job_id in found}

    def find(self, name: str) -> str:
        lines = self._call([*self._command, "show"]).splitlines()
        return next((line.split()[0] for line in lines if line.split()[-1] == name), "")

    def cancel(self, job_id: str, ending: batch.Ending) -> None:
        number, _, index = job_id.partition("_")
        self._call([*self._command, "cancel", number, index or "0", ending.value])

    def nodes(self) -> Sequence[batch.BatchNode]:
        return [batch.BatchNode(name=name, cores=self._slots, memory=4096) for name in NODES]

    def is_away(self, text: str) -> bool:
        return AWAY in text

    def is_full(self, text: str) -> bool:
        return FULL in text

    def close(self) -> None:
        self._call.close()
