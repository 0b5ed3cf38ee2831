"""A cluster with Slurm that nobody answers for: what is not sent can be cancelled all the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from queue import SimpleQueue

import pytest

from rankwise.backends.base import Attempt, Submission, Updates
from rankwise.backends.batch.backend import BatchBackend
from rankwise.documents.site_models import ComputeConfig, SlurmConfig
from rankwise.plan import Process, Task
from rankwise.runtimes.base import PreparedRuntime
from tests.backends.places import Watching


@pytest.mark.parametrize("is_writable", [True, False], ids=["writable", "not writable"])
def test_what_was_not_sent_is_over_when_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_writable: bool
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # There is no Slurm on it.
    folder = tmp_path / "store" / "run-1" / "task" / "1"
    folder.mkdir(parents=True)
    # There is no room in the queue for anything.
    settings = SlurmConfig(max_queued=0)
    updates: Updates = SimpleQueue()
    compute = BatchBackend(ComputeConfig(name="slurm", backend="slurm", batch=settings), updates)
    watching = Watching(compute, updates)
    attempt = Attempt(label="run-1/task/1", marker="rw-1", folder=folder)
    worker = Process(name="worker", role="worker", command="true")
    task = Task(key="task", processes=(worker,), folder=str(tmp_path), compute="slurm")
    compute.submit(Submission(attempt=attempt, task=task, runtime=PreparedRuntime()))
    assert watching.look() == []
    if not is_writable:
        shutil.rmtree(folder)
        folder.touch()
    compute.cancel(attempt)
    assert watching.look() == [attempt]
    end = watching.ends[attempt.marker]
    assert (end.outcome, end.exit_code) == ("cancelled", 130)
    compute.close()
