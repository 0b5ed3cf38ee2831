"""Tasks for computes that run containers themselves: in which image."""

from __future__ import annotations

import dataclasses

from rankwise.compute.kubernetes.manifests import image_of
from rankwise.errors import ComputeFailure, InputError
from rankwise.plan import RuntimeChoice, Task
from rankwise.site import Site
from rankwise.site.choices import KUBERNETES


def with_image(task: Task, site: Site) -> Task:
    """Have a task run in an image, if it goes to where nothing else is run.

    InputError: nobody says in which.
    """
    choice = site.compute(task.compute)
    if choice.backend != KUBERNETES:
        return task
    try:
        image = image_of(task, choice)
    except ComputeFailure as failure:
        place = task.place or choice.place
        raise InputError(f"{place}: {failure}" if place else str(failure)) from failure
    notes = task.notes
    if task.runtime.kind != "container":
        notes += (f"environment {task.runtime.name}: the image {image} of compute {task.compute}",)
    runtime = RuntimeChoice(name=task.runtime.name, kind="container", image=image)
    return dataclasses.replace(task, runtime=runtime, notes=notes)
