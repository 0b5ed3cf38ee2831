from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import InputError
from rankwise.launch.jobs import JobRequest, RoleRequest, with_inputs
from tests.launch.samples import torch_job


def job(command: str, **inputs: str) -> JobRequest:
    return torch_job(command, inputs=inputs)


def filled(command: str, **inputs: str) -> str:
    return with_inputs(job(command, **inputs)).roles[0].command


def test_inputs_stand_in_commands() -> None:
    assert (
        filled("a --lr ${{inputs.lr}} ${{ inputs.data-set }}", **{"lr": "0.1", "data-set": "/d"})
        == "a --lr 0.1 /d"
    )


def test_inputs_stand_in_variables() -> None:
    role = RoleRequest(name="worker", command="a")
    request = JobRequest(
        kind="pytorch",
        name="j",
        roles=(role,),
        inputs={"lr": "1"},
        environment={"A": "x${{inputs.lr}}"},
    )
    assert with_inputs(request).environment == {"A": "x1"}


def test_an_unknown_input_is_named_with_the_nearest() -> None:
    with pytest.raises(InputError) as raised:
        filled("a ${{inputs.learning_rat}}", learning_rate="1", data="x")
    assert str(raised.value) == (
        "sample-pytorch-job: the command of worker refers to the input `learning_rat`, which there "
        "is not: did you mean `learning_rate`?"
    )


def test_an_unknown_input_that_is_near_to_none_is_told_with_all() -> None:
    with pytest.raises(InputError, match="there are `data`, `lr`"):
        filled("a ${{inputs.zzz}}", data="x", lr="1")
    with pytest.raises(InputError, match="add it under `inputs:`"):
        filled("a ${{inputs.zzz}}")


def test_all_wrong_references_are_told_at_once() -> None:
    request = dataclasses.replace(
        job("a ${{inputs.x}} ${{outputs.y}}"), environment={"V": "${{inputs.z}}"}
    )
    with pytest.raises(InputError) as raised:
        with_inputs(request)
    assert len(str(raised.value).splitlines()) == 3
    assert "only inputs can be referred to" in str(raised.value)


def test_other_braces_are_the_shells() -> None:
    assert filled("a ${X} $((1+1)) {{b}}") == "a ${X} $((1+1)) {{b}}"


@settings(deadline=None)
@given(st.text(max_size=40))
def test_filling_in_is_idempotent_and_raises_nothing_but_input_errors(command: str) -> None:
    try:
        once = filled(command, x="1")
    except InputError:
        return
    assert filled(once, x="1") == once
