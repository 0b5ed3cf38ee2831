"""From what a job asks for to the task that is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from rankwise.launch.inputs import with_inputs
from rankwise.launch.mpijob import mpi_task
from rankwise.launch.plain import plain_task
from rankwise.launch.request import Facts, JobRequest, Kind
from rankwise.launch.tensorflow import tensorflow_task
from rankwise.launch.torch import pytorch_task
from rankwise.plan import Task

_PLANNERS: Mapping[Kind, Callable[[JobRequest, Facts], Task]] = {
    "mpi": mpi_task,
    "pytorch": pytorch_task,
    "tensorflow": tensorflow_task,
    "plain": plain_task,
}


def task_for(request: JobRequest, facts: Facts | None = None) -> Task:
    """Plan a job; raises InputError if what it asks for cannot be.

    The same request and facts give the same task: nothing is looked up, started or written.
    """
    facts = facts or Facts()
    task = _PLANNERS[request.kind](with_inputs(request), facts)
    if not facts.environment:
        return task
    return dataclasses.replace(task, environment={**facts.environment, **task.environment})
