"""Tasks as JSON."""

from __future__ import annotations

import json

import pytest

from rankwise.plan import Task, body_of, task_of, to_data
from tests.store.samples import rich_task, simple_task

tasks = pytest.mark.parametrize("task", [simple_task("a"), rich_task("b")], ids=["simple", "rich"])


@tasks
def test_a_task_comes_back_as_it_was(task: Task) -> None:
    assert task_of(body_of(task)) == task


@tasks
def test_a_body_is_what_the_plan_calls_plain_data(task: Task) -> None:
    assert json.loads(body_of(task)) == json.loads(json.dumps(to_data(task)))
