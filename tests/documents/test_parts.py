"""References to inputs, and inputs themselves."""

from __future__ import annotations

import pytest

from rankwise.documents.jobs import PytorchJob
from tests.documents.conftest import complaints_about, parsed

JOB = "type: PytorchJob\ninputs: {rate: 1, data: x}\nworker:\n  spec:\n    command: run "


@pytest.mark.parametrize(
    "command", ["${{inputs.rate}} ${{ inputs.data }}", "$HOME ${HOME} {{x}} $"]
)
def test_references_to_inputs_are_known(command: str) -> None:
    job = parsed(JOB + command)
    assert isinstance(job, PytorchJob)
    assert job.worker.spec.command == f"run {command}"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("${{inputs.rat}}", "`${{inputs.rat}}`: `inputs` has no `rat`; did you mean `rate`?"),
        ("${{inputs.xyz}}", "`${{inputs.xyz}}`: `inputs` has no `xyz`; add it to `inputs`"),
        ("${{inputs}}", "`${{inputs}}`: `inputs` has no ``; add it to `inputs`"),
        ("${{outputs.x}}", "`${{outputs.x}}` is unknown; there is `${{inputs.NAME}}`"),
    ],
)
def test_a_reference_to_nothing_is_a_mistake(command: str, message: str) -> None:
    assert complaints_about(JOB + command) == [f"5:5: {message}"]


def test_every_role_is_looked_through() -> None:
    text = "type: TensorflowJob\n" + "".join(
        f"{role}: {{spec: {{command: '${{{{inputs.x}}}}'}}}}\n"
        for role in ("worker", "chief", "parameter_server", "evaluator")
    )
    assert len(complaints_about(text)) == 4


def test_a_text_full_of_beginnings_of_references_is_only_text() -> None:
    assert isinstance(parsed(JOB + "${{" * 50_000), PytorchJob)


def test_an_input_needs_something_to_put_in() -> None:
    text = "type: PytorchJob\nworker: {spec: {command: x}}\ninputs:\n  a: {type: uri_file}\n  b:\n"
    assert complaints_about(text) == [
        "4:6: an input needs `value` or `path`",
        "5:3: `inputs.b` is empty; give it a value, or leave it out",
    ]
