"""The matrix: the same tests in many runtimes on many machines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from rankwise.spec.base import Clash, Model, mapping_in
from rankwise.spec.matrix_runtime import MatrixRuntime
from rankwise.spec.matrix_tests import (
    NOT_RUN_BY_HAND,
    Features,
    MatrixTest,
    NotebookWish,
    Patterns,
)
from rankwise.spec.mistakes import code, nearest
from rankwise.spec.models import DocumentModel
from rankwise.spec.parts import TestCode, TestFolder, Variables
from rankwise.spec.suite import Requirements
from rankwise.spec.values import (
    Count,
    Name,
    Seconds,
    Secrets,
    Target,
    Text,
    Truth,
    one_or_more,
)

AXES = ("runtime", "machine", "test")
"""What `when` may ask for."""
ENVIRONMENT = "environment"
"""The name of the task that says what a cell has around it."""
_PATTERN = re.compile(r"[*?\[]")
_WORDS: dict[str, Any] = {"type": ["string", "number", "boolean"]}
_Wanted = Annotated[
    tuple[str, ...],
    BeforeValidator(one_or_more),
    WithJsonSchema({"anyOf": [_WORDS, {"type": "array", "items": _WORDS}]}),
]


class MatrixMachine(Model):
    """A place to run, and what it has. A text alone is the compute."""

    short_form: ClassVar[str] = "compute"
    hints: ClassVar[Mapping[str, str]] = {
        "target": "did you mean `compute`?",
        "needs": "did you mean `features`, which is what it has?",
        "gpus": "put it into `resources`, or into `features` as `gpus>=1`",
        "memory": "put it into `resources`, or into `features` as `mem>=64`",
        "parallel": "did you mean `max_parallel`?",
    }

    compute: Annotated[
        Target,
        Field(
            description="Name of a compute in rankwise.toml; `local` is this machine.",
            examples=["local", "gpu-cluster"],
        ),
    ] = "local"
    features: Annotated[
        Features,
        Field(
            description="What it has: `gpu`, `avx512`, `mem>=64` (GB), or any word. On this "
            "machine, what can be looked for is: without it, nothing is run there.",
            examples=[["gpu", "mem>=64"]],
        ),
    ] = ()
    resources: Annotated[
        Requirements, Field(description="What each test has to itself there, if it says nothing.")
    ] = Field(default_factory=Requirements)
    max_parallel: Annotated[
        Count | None,
        Field(description="How many tests run there at a time; none given: as many as fit."),
    ] = None
    environment_variables: Annotated[
        Variables, Field(description="For all tests there.", examples=[{"OMP_NUM_THREADS": 1}])
    ] = Field(default_factory=dict)
    soft_fail: Annotated[
        Truth, Field(description="Whether the run may pass though tests have failed there.")
    ] = False
    skip: Annotated[
        Text, Field(description="Why nothing is run there.", examples=["being repaired"])
    ] = ""


class MatrixExclusion(Model):
    """What is left out, and why."""

    when: Annotated[
        dict[Name, _Wanted],
        Field(
            description="Names of `runtime`, `machine` and `test`: one, one of a list, a pattern.",
            examples=[{"runtime": "torch-*", "machine": ["old-gpu", "tiny"]}],
        ),
    ]
    reason: Annotated[
        Text, Field(description="Why, for the report.", examples=["needs a newer driver"])
    ]


class MatrixAddition(Model):
    """A cell that would not be there otherwise."""

    runtime: Annotated[Name, Field(description="Its runtime.", examples=["torch-2.13"])]
    machine: Annotated[Name, Field(description="Its machine.", examples=["old-gpu"])]
    tests: Annotated[
        Patterns, Field(description="Which tests, by their names; none given: all of its runtime.")
    ] = ()


class MatrixSetting(Model):
    """What is different in some cells, or for some tests in them."""

    when: Annotated[
        dict[Name, _Wanted],
        Field(
            description="Names of `runtime`, `machine` and `test`.", examples=[{"machine": "tiny"}]
        ),
    ]
    timeout: Annotated[Seconds | None, Field(description="Their time limit.", examples=["10m"])] = (
        None
    )
    environment_variables: Annotated[
        Variables, Field(description="More variables.", examples=[{"OMP_NUM_THREADS": 1}])
    ] = Field(default_factory=dict)
    soft_fail: Annotated[
        Truth | None, Field(description="Whether the run may pass though they have failed.")
    ] = None
    skip: Annotated[
        Text, Field(description="Why they are not run.", examples=["takes an hour there"])
    ] = ""


class Matrix(DocumentModel):
    """The same tests in several runtimes, on several machines: a cell for each combination."""

    hints: ClassVar[Mapping[str, str]] = {
        "env": "did you mean `environment_variables`?",
        "include": "did you mean `add` (a cell more) or `set` (what is different in some)?",
        "environments": "did you mean `runtimes`?",
        "computes": "did you mean `machines`?",
    }

    type: Annotated[Literal["Matrix"], Field(description="Says that this is a matrix.")]
    runtimes: Annotated[
        dict[Name, MatrixRuntime],
        Field(
            description="What tests run in, by their names.",
            examples=[{"numpy-1.26": {"requirements": ["numpy==1.26.4"]}}],
        ),
    ]
    machines: Annotated[
        dict[Name, MatrixMachine],
        Field(
            description="Where tests run, by their names; none given: here.",
            examples=[{"laptop": "local", "cluster": {"compute": "gpu-cluster"}}],
        ),
    ] = Field(default_factory=lambda: {"local": MatrixMachine()})
    tests: Annotated[
        tuple[MatrixTest, ...],
        Field(description="The tests of every cell.", examples=[["hello.sh", "plots.ipynb"]]),
    ] = ()
    exclude: Annotated[
        tuple[MatrixExclusion, ...],
        Field(description="Cells, or tests in them, to leave out, each with a reason."),
    ] = ()
    add: Annotated[
        tuple[MatrixAddition, ...],
        Field(description="Cells more: such as `exclude` or a runtime's `machines` leave out."),
    ] = ()
    set: Annotated[
        tuple[MatrixSetting, ...], Field(description="What is different in some cells.")
    ] = ()
    notebooks: Annotated[NotebookWish, Field(description="How all notebooks are run.")] = Field(
        default_factory=NotebookWish
    )
    folder: TestFolder = "."
    code: TestCode = ""
    environment_variables: Annotated[
        Variables, Field(description="For all tests.", examples=[{"MPLBACKEND": "agg"}])
    ] = Field(default_factory=dict)
    secrets: Annotated[
        Secrets, Field(description="Names of variables that are passed on.", examples=[["TOKEN"]])
    ] = ()
    timeout: Annotated[
        Seconds | None,
        Field(description="Longest time of each test that has none itself.", examples=["10m"]),
    ] = None
    report: Annotated[
        Literal["when-complete", ""],
        Field(description="`when-complete`: write a report when the last cell is in."),
    ] = ""

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        yield from super().clashes(contents)
        runtimes, machines = mapping_in(contents, "runtimes"), mapping_in(contents, "machines")
        if isinstance(contents.get("runtimes"), Mapping) and not runtimes:
            yield Clash(("runtimes",), "a matrix needs a runtime at least")
        if isinstance(contents.get("machines"), Mapping) and not machines:
            yield Clash(("machines",), "a matrix needs a machine at least")
        own = [mapping_in(runtimes, name).get("tests") for name in runtimes]
        if not contents.get("tests") and not any(own):
            yield Clash(("tests",), "a matrix needs a test at least")
        yield from _twice(contents, runtimes)
        known = {"runtime": [*runtimes], "machine": [*machines] or ["local"]}
        for key in ("exclude", "set"):
            yield from _conditions(key, contents.get(key), known)
        yield from _additions(contents.get("add"), known)
        yield from _unknown_patterns(contents, runtimes, known)
        if contents.get("code") is not None and contents.get("folder") is not None:
            yield Clash(("folder",), "tests run in `folder` or in a copy of `code`, not both")


def _twice(contents: Mapping[str, Any], runtimes: Mapping[str, Any]) -> Iterator[Clash]:
    """Find names of tests that are taken."""
    places: list[tuple[tuple[str, ...], Any]] = [(("tests",), contents.get("tests"))]
    places += [
        (("runtimes", name, "tests"), mapping_in(runtimes, name).get("tests")) for name in runtimes
    ]
    generic: set[str] = set()
    for path, tests in places:
        seen = set(generic)
        for index, test in enumerate(tests if isinstance(tests, list) else ()):
            name = test.get("name") if isinstance(test, Mapping) else None
            if not isinstance(name, str):
                continue
            if name == ENVIRONMENT:
                yield Clash((*path, index, "name"), NOT_RUN_BY_HAND)
            elif name in seen:
                yield Clash((*path, index, "name"), f"a test is called {code(name)} already")
            seen.add(name)
        if path == ("tests",):
            generic = seen


def _conditions(key: str, entries: Any, known: Mapping[str, Sequence[str]]) -> Iterator[Clash]:
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        condition = mapping_in(entry, "when")
        if isinstance(mapping_in({"e": entry}, "e").get("when"), Mapping) and not condition:
            yield Clash((key, index, "when"), "`when` must ask for something")
        for axis, wanted in condition.items():
            path = (key, index, "when", axis)
            if axis not in AXES:
                meant = nearest(axis, AXES)
                hint = f"did you mean {code(meant)}?" if meant else f"there are {', '.join(AXES)}"
                yield Clash(path, f"{code(axis)} is nothing that a cell has: {hint}")
            else:
                yield from _unknown(path, axis, one_or_more(wanted), known)


def _additions(entries: Any, known: Mapping[str, Sequence[str]]) -> Iterator[Clash]:
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        for axis, names in known.items():
            name = mapping_in({"e": entry}, "e").get(axis)
            if isinstance(name, str) and name not in names:
                yield Clash(("add", index, axis), _no_such(axis, name, names))


def _unknown_patterns(
    contents: Mapping[str, Any], runtimes: Mapping[str, Any], known: Mapping[str, Sequence[str]]
) -> Iterator[Clash]:
    for name in runtimes:
        wanted = mapping_in(runtimes, name).get("machines")
        if wanted is not None:
            yield from _unknown(
                ("runtimes", name, "machines"), "machine", one_or_more(wanted), known
            )
    tests = contents.get("tests")
    for index, test in enumerate(tests if isinstance(tests, list) else ()):
        for axis, names in known.items():
            wanted = mapping_in({"t": test}, "t").get(f"{axis}s")
            if wanted is not None:
                path = ("tests", index, f"{axis}s")
                yield from _unknown(path, axis, one_or_more(wanted), {axis: names})


def _unknown(
    path: tuple[int | str, ...], axis: str, wanted: Any, known: Mapping[str, Sequence[str]]
) -> Iterator[Clash]:
    """Find plain names that nothing has; a pattern may fit nothing."""
    for name in wanted if isinstance(wanted, list | tuple) else ():
        is_plain = isinstance(name, str) and not _PATTERN.search(name)
        if is_plain and name not in known.get(axis, [name]):
            yield Clash(path, _no_such(axis, name, known[axis]))


def _no_such(axis: str, name: str, names: Sequence[str]) -> str:
    meant = nearest(name, names)
    hint = f"did you mean {code(meant)}?" if meant else f"there are {', '.join(names)}"
    return f"there is no {axis} {code(name)}: {hint}"
