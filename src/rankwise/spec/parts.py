"""Parts that documents of several types have: where to run, what goes in, when to start again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field

from rankwise.spec.base import Clash, Model
from rankwise.spec.mistakes import code, nearest
from rankwise.spec.values import Amount, Count, ExitCode, Target, Text, Variable, Written

Variables = dict[Variable, Written]
TestFolder = Annotated[
    Text,
    Field(
        description="Where tests run, from the folder of the document; none given: there.",
        examples=["../tests"],
    ),
]
TestCode = Annotated[
    Text,
    Field(
        description="A folder instead, of which each test gets a copy to work in.",
        examples=["./src"],
    ),
]
"""Environment variables."""
Tags = dict[Text, Written]


class Compute(Model):
    """Where to run, and on how many nodes. A text alone is the target."""

    short_form: ClassVar[str] = "target"
    hints: ClassVar[Mapping[str, str]] = {
        "nodes": "did you mean `instance_count`?",
        "num_nodes": "did you mean `instance_count`?",
        "node_count": "did you mean `instance_count`?",
    }

    target: Annotated[
        Target,
        Field(
            description="Name of a compute in rankwise.toml; `local` is this machine.",
            examples=["local", "gpu-cluster"],
        ),
    ] = "local"
    instance_count: Annotated[
        Count | None,
        Field(description="Number of nodes. On `local` they are virtual ones.", examples=[4]),
    ] = None
    type: Annotated[
        Text,
        Field(
            description="Kind of the compute in Azure ML. `target` decides; where no site file has"
            " it, `AksCompute` and `AksCluster` mean the only Kubernetes cluster there.",
            examples=["AmlCompute", "AksCompute"],
        ),
    ] = ""


class RestartScope(StrEnum):
    """What is started again together."""

    GANG = "gang"


class Restart(Model):
    """When to start again after a failure."""

    max: Annotated[
        Amount, Field(description="Most restarts, beside the first start.", examples=[2])
    ]
    on_exit_codes: Annotated[
        tuple[ExitCode, ...],
        Field(
            description="Exit codes after which to start again; none given: after every failure.",
            examples=[[75, 137]],
        ),
    ] = ()
    scope: Annotated[
        RestartScope, Field(description="What is started again: all processes together.")
    ] = RestartScope.GANG


class Input(Model):
    """Something that `${{inputs.NAME}}` stands for in commands. A value alone is the value."""

    short_form: ClassVar[str] = "value"

    value: Annotated[
        Written | None,
        Field(description="The value itself, put in as it is written.", examples=[0.01]),
    ] = None
    path: Annotated[
        Text,
        Field(description="A file or a folder, put in as it is written.", examples=["./data"]),
    ] = ""
    type: Annotated[
        Text, Field(description="Kind of the input in Azure ML.", examples=["uri_folder"])
    ] = ""
    mode: Annotated[
        Text, Field(description="How Azure ML brings it in.", examples=["ro_mount", "download"])
    ] = ""

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        given = [name for name in ("value", "path") if contents.get(name) is not None]
        if not given:
            yield Clash((), "an input needs a `value` or a `path`")
        elif len(given) > 1:
            yield Clash(("path",), "an input has a `value` or a `path`, not both")

    @property
    def text(self) -> str:
        """What to put in for it."""
        return self.path if self.value is None else self.value


class Output(Model):
    """Something that `${{outputs.NAME}}` stands for in the command."""

    type: Annotated[
        Text, Field(description="Kind of the output in Azure ML.", examples=["uri_folder"])
    ] = ""
    path: Annotated[
        Text, Field(description="Where it goes; none given: a folder of the run.", examples=["out"])
    ] = ""
    mode: Annotated[Text, Field(description="How Azure ML takes it.", examples=["rw_mount"])] = ""


# Bounded, so that a text full of beginnings is not searched to its end from each of them.
_REFERENCE = re.compile(r"\$\{\{([^{}]{0,200})\}\}")


def references_in(text: Any) -> list[str]:
    """Give what stands in `${{…}}` in a text."""
    return [found.strip() for found in _REFERENCE.findall(text)] if isinstance(text, str) else []


def unknown_references(
    text: Any, path: tuple[str, ...], known: Mapping[str, Iterable[str]]
) -> Iterator[Clash]:
    """Find each `${{inputs.NAME}}` in a text for which there is no such input."""
    for reference in references_in(text):
        kind, _, name = reference.partition(".")
        shown = code("${{" + reference + "}}")
        if kind not in known:
            kinds = " or ".join(f"`${{{{{each}.NAME}}}}`" for each in known)
            yield Clash(path, f"{shown} is unknown; there is {kinds}")
        elif name not in known[kind]:
            meant = nearest(name, known[kind])
            remedy = f"did you mean {code(meant)}?" if meant else f"add it to `{kind}`"
            yield Clash(path, f"{shown}: `{kind}` has no {code(name)}; {remedy}")
