"""The tests of a matrix: those of suites, and notebooks and suites beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from rankwise.spec.base import Clash, Model
from rankwise.spec.suite import SuiteTest
from rankwise.spec.values import Seconds, Text, Truth, Variable, one_or_more, wrong
from rankwise.spec.written import Scalar

AMOUNTS = ("mem", "cores", "gpus")
"""What may be compared with a number; `mem` is in GB."""
NOT_RUN_BY_HAND = "`environment` is what rankwise itself looks at in each cell: take another name"
_WORD = r"[A-Za-z][\w.+]*(-[\w.+]+)*"
FEATURE = re.compile(rf"(?P<minus>-?)(?P<word>{_WORD})")
COMPARISON = re.compile(
    rf"(?P<name>{'|'.join(AMOUNTS)})\s*(?P<sign>>=|<=|==|=|>|<)\s*(?P<number>\d+(\.\d+)?)"
)


def _feature(value: str) -> str:
    if not FEATURE.fullmatch(value) and not COMPARISON.fullmatch(value):
        raise wrong(
            f"must be a word such as gpu or -avx512, or such as mem>=64, cores>=8, gpus>=2, "
            f"not {value!r}"
        )
    return value


def _plain(value: Any) -> Any:
    """Give numbers and truth values as such, wherever they stand."""
    if isinstance(value, Scalar):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


_TEXT_OR_LIST: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
}
Features = Annotated[
    tuple[Annotated[str, AfterValidator(_feature)], ...],
    BeforeValidator(one_or_more),
    WithJsonSchema(_TEXT_OR_LIST),
]
Patterns = Annotated[tuple[Text, ...], BeforeValidator(one_or_more), WithJsonSchema(_TEXT_OR_LIST)]


class NotebookWish(Model):
    """How notebooks are run."""

    cell_timeout: Annotated[
        Seconds | None, Field(description="Longest time of a cell.", examples=["60s"])
    ] = None
    parameters: Annotated[
        dict[Variable, Annotated[Any, BeforeValidator(_plain)]],
        Field(description="Values for the cell tagged `parameters`.", examples=[{"epochs": 1}]),
    ] = Field(default_factory=dict)
    as_script: Annotated[
        Truth, Field(description="Run it as a `.py` as well, if it has no magics.")
    ] = False
    compare: Annotated[
        Literal["tagged", "all", "none"],
        Field(description="Which cells must have the output that the notebook has stored."),
    ] = "tagged"
    pdf: Annotated[Truth, Field(description="Write a PDF beside the HTML.")] = False


class MatrixTest(SuiteTest):
    """One test of each cell, or those that are found. A text alone is `run`."""

    kinds: ClassVar[tuple[str, ...]] = ("run", "files", "pytest", "suite")
    hints: ClassVar[Mapping[str, str]] = {
        **SuiteTest.hints,
        "notebook": "did you mean `run`, which takes notebooks too, or `notebooks`, for options?",
        "reason": "did you mean `skip`?",
        "features": "did you mean `needs`?",
    }

    suite: Annotated[
        Text,
        Field(
            description="A document of type `Suite`: its tests are run in each cell.",
            examples=["suite.yaml"],
        ),
    ] = ""
    runtimes: Annotated[
        Patterns,
        Field(
            description="Names or patterns of the runtimes that have it; none given: all.",
            examples=[["torch-*"]],
        ),
    ] = ()
    machines: Annotated[
        Patterns,
        Field(description="Names or patterns of the machines that have it; none given: all."),
    ] = ()
    needs: Annotated[
        Features,
        Field(
            description="What a machine must have, or with `-` must not; else it is skipped there.",
            examples=[["gpu", "-avx512", "mem>=64"]],
        ),
    ] = ()
    notebooks: Annotated[
        NotebookWish | None,
        Field(description="How its notebooks are run; what is not said here is as for all."),
    ] = None
    soft_fail: Annotated[
        Truth, Field(description="Whether the run may pass though it has failed.")
    ] = False
    skip: Annotated[
        Text, Field(description="Why it is not run.", examples=["until the data are back"])
    ] = ""

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        yield from super().clashes(contents)
        if contents.get("suite") is not None:
            for name in ("ranks", "nodes", "launcher", "checks", "restart", "requires"):
                if contents.get(name) is not None:
                    yield Clash((name,), f"the tests of a suite say `{name}` themselves")
