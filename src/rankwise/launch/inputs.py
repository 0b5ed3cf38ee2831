"""Inputs of a job, which commands and variables refer to: `${{inputs.data}}`."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping

from rankwise.errors import InputError
from rankwise.launch.request import JobRequest

_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_INPUT = re.compile(r"\s*inputs\.([\w.-]+)\s*")


def with_inputs(request: JobRequest) -> JobRequest:
    """Put the inputs into all commands and variables.

    Raises InputError, with a line for each reference that leads nowhere.
    """
    if not _has_expressions(request):
        return request
    problems: list[str] = []

    def fill(text: str, where: str) -> str:
        return _EXPRESSION.sub(
            lambda found: _value(found, request.inputs, f"{request.name}: {where}", problems), text
        )

    def fill_all(variables: Mapping[str, str], where: str) -> dict[str, str]:
        return {name: fill(value, f"{where}{name}") for name, value in variables.items()}

    roles = tuple(
        dataclasses.replace(
            role,
            command=fill(role.command, f"the command of {role.name}"),
            environment=fill_all(role.environment, f"the variable of {role.name} "),
        )
        for role in request.roles
    )
    environment = fill_all(request.environment, "the variable ")
    if problems:
        raise InputError("\n".join(dict.fromkeys(problems)))
    return dataclasses.replace(request, roles=roles, environment=environment)


def _has_expressions(request: JobRequest) -> bool:
    texts = [role.command for role in request.roles]
    for variables in (request.environment, *(role.environment for role in request.roles)):
        texts += variables.values()
    return any("${{" in text for text in texts)


def _value(found: re.Match[str], inputs: Mapping[str, str], where: str, problems: list[str]) -> str:
    reference = _INPUT.fullmatch(found[1])
    if reference is None:
        problems.append(
            f"{where} has `{found[0]}`, and only inputs can be referred to: `${{{{inputs.NAME}}}}`"
        )
        return found[0]
    name = reference[1]
    if name not in inputs:
        problems.append(f"{where} refers to the input `{name}`, {_remedy(name, inputs)}")
        return found[0]
    return inputs[name]


def _remedy(name: str, inputs: Mapping[str, str]) -> str:
    nearest = difflib.get_close_matches(name, inputs, n=1)
    if nearest:
        return f"which there is not: did you mean `{nearest[0]}`?"
    known = ", ".join(f"`{known}`" for known in inputs)
    return f"which there is not: {f'there are {known}' if known else 'add it under `inputs:`'}"
