"""A stage of a pipeline: one step, when it runs, and what it leaves to others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rankwise.spec.base import Clash, Model, mapping_in
from rankwise.spec.checks import Check
from rankwise.spec.mistakes import listed
from rankwise.spec.parts import Variables
from rankwise.spec.steps import (
    Cache,
    Checkout,
    Deploy,
    Flag,
    MakeRuntime,
    Notify,
    Report,
    Texts,
    Wait,
)
from rankwise.spec.values import (
    Amount,
    Cores,
    Count,
    Seconds,
    Secrets,
    Text,
    Variable,
    Written,
    number_in,
)

PROGRAMS = ("checkout", "runtime", "deploy", "report", "notify", "wait")
"""Steps that rankwise brings along."""
INCLUDED = ("job", "suite", "sweep")
"""Steps that are documents of their own."""
STEPS = ("run", *PROGRAMS, *INCLUDED)
_OF_SCRIPTS = ("ranks", "nodes", "environment", "artifacts", "cache", "checks")
_DETACHED = ("run", *INCLUDED)


class Stage(Model):
    """One step of a pipeline. A text alone is what it runs."""

    short_form: ClassVar[str] = "run"
    hints: ClassVar[Mapping[str, str]] = {
        "script": "did you mean `run`?",
        "command": "did you mean `run`?",
        "steps": "did you mean `run`? A stage has one step, which may have many lines",
        "depends_on": "did you mean `needs`?",
        "environment_variables": "did you mean `env`?",
        "variables": "did you mean `env`?",
        "if": "did you mean `when`?",
        "compute": "did you mean `on`?",
        "name": "the name of a stage stands before it",
        "retry": "did you mean `retries`?",
    }

    run: Annotated[
        Text,
        Field(
            description="Lines for bash; the first that fails ends them.",
            examples=["python setup.py build"],
        ),
    ] = ""
    checkout: Annotated[Checkout | None, Field(description="Get a repository of git.")] = None
    runtime: Annotated[MakeRuntime | None, Field(description="Make a virtual environment.")] = None
    deploy: Annotated[Deploy | None, Field(description="Copy a build to where it stays.")] = None
    report: Annotated[Report | None, Field(description="Write down how the run stands.")] = None
    notify: Annotated[Notify | None, Field(description="Tell somebody how the run stands.")] = None
    wait: Annotated[
        Wait | None, Field(description="Submit to another batch system, and wait for the end.")
    ] = None
    job: Annotated[Text, Field(description="A document of a job.", examples=["train.yaml"])] = ""
    suite: Annotated[Text, Field(description="A document of a suite.", examples=["t.yaml"])] = ""
    sweep: Annotated[Text, Field(description="A document of a sweep.", examples=["osu.yaml"])] = ""

    needs: Annotated[
        Texts,
        Field(
            description=(
                "Stages that must be over before; if no stage says so, each needs the one before."
            ),
            examples=["build", ["build", "docs"]],
        ),
    ] = ()
    when: Annotated[
        Literal["passed", "failed", "always"],
        Field(description="What must have become of those."),
    ] = "passed"
    on: Annotated[
        Text, Field(description="Name of a compute in rankwise.toml.", examples=["cluster"])
    ] = ""
    ranks: Annotated[
        Count | None, Field(description="Run it on so many MPI ranks.", examples=[4])
    ] = None
    nodes: Annotated[Count | None, Field(description="On so many nodes.", examples=[2])] = None
    cores: Annotated[Cores | None, Field(description="Cores that it needs.", examples=[4])] = None
    environment: Annotated[
        Text, Field(description="Name of a runtime in rankwise.toml.", examples=["gcc-12"])
    ] = ""
    env: Annotated[
        Variables, Field(description="Environment variables.", examples=[{"CC": "mpicc"}])
    ] = Field(default_factory=dict)
    secrets: Annotated[
        Secrets,
        Field(
            description="Names of variables that are passed on; their values are kept nowhere.",
            examples=[["TOKEN"]],
        ),
    ] = ()
    folder: Annotated[
        Text, Field(description="Where to work, from the workspace.", examples=["mpi4py"])
    ] = ""
    matrix: Annotated[
        dict[Variable, tuple[Written, ...]],
        Field(
            description="The stage once for each combination; `${{matrix.NAME}}` is the value.",
            examples=[{"python": [3.11, 3.12]}],
        ),
    ] = Field(default_factory=dict)
    retries: Annotated[
        Amount, Field(description="How often to try again after a failure.", examples=[2])
    ] = 0
    timeout: Annotated[
        Seconds | None, Field(description="Longest time of one try.", examples=["30m"])
    ] = None
    checks: Annotated[
        tuple[Check, ...],
        Field(description="What must be true when it has run.", examples=[["all tests passed"]]),
    ] = ()
    inputs: Annotated[
        Texts | None,
        Field(
            description=(
                "All files that it depends on, as patterns; `[]`: none. If neither they nor what "
                "it needs has changed since it passed, it is not run again."
            ),
            examples=[["src/**/*.c", "Makefile"]],
        ),
    ] = None
    outputs: Annotated[
        Texts,
        Field(
            description="What it leaves in the workspace; if that is not there, it runs again.",
            examples=["build/lib.so"],
        ),
    ] = ()
    artifacts: Annotated[
        Texts,
        Field(
            description="Files to keep with the run; `${{artifacts.STAGE}}` is their folder.",
            examples=["dist/*.whl"],
        ),
    ] = ()
    cache: Annotated[Cache | None, Field(description="Folders to keep from run to run.")] = None
    detach: Annotated[
        Flag,
        Field(
            description="Whether it is only submitted, as a run of its own that goes on by itself."
        ),
    ] = False
    description: Annotated[str, Field(description="A note for people.")] = ""

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        given = [step for step in STEPS if contents.get(step) is not None]
        if len(given) != 1:
            if len(given) > 1:
                yield Clash((given[1],), f"a stage is `{given[0]}` or `{given[1]}`, not both")
            elif not set(contents) & set(cls.hints):
                names = listed([f"`{step}`" for step in STEPS])
                yield Clash((), f"a stage needs one of {names}")
            return
        yield from _misplaced(contents, given[0])
        for axis, values in mapping_in(contents, "matrix").items():
            if isinstance(values, list) and not values:
                yield Clash(("matrix", axis), f"`{axis}` has no values")

    @property
    def step(self) -> str:
        """Name the step that it is."""
        return next(step for step in STEPS if getattr(self, step))


def _misplaced(contents: Mapping[str, Any], step: str) -> Iterator[Clash]:
    """Find fields that do not go with a step, or with each other."""
    for name in _OF_SCRIPTS:
        if step != "run" and contents.get(name) is not None and name not in _also(step):
            yield Clash((name,), f"`{name}` goes with `run`, not with `{step}`")
    ranks, nodes = (number_in(contents.get(name)) for name in ("ranks", "nodes"))
    if nodes is not None and ranks is None and step == "run":
        yield Clash(("nodes",), "`nodes` needs `ranks`, which says how many processes there are")
    if ranks is not None and nodes and ranks % nodes:
        yield Clash(("ranks",), f"{ranks} ranks cannot be shared evenly by {nodes} nodes")
    if ranks is not None:
        for name in ("cache", "artifacts"):
            if contents.get(name) is not None:
                yield Clash((name,), f"`{name}` is not for ranks; put it into a stage of its own")
    if contents.get("outputs") is not None and contents.get("inputs") is None:
        yield Clash(("outputs",), "`outputs` goes with `inputs`: without them it always runs")
    detach = contents.get("detach")
    if detach is not None and str(detach) == "true":
        if step not in _DETACHED:
            names = listed([f"`{each}`" for each in _DETACHED])
            yield Clash(("detach",), f"`detach` goes with {names}, not with `{step}`")
        for name in ("artifacts", "inputs", "outputs"):
            if contents.get(name) is not None:
                yield Clash((name,), f"`{name}` does not go with `detach`: nobody waits for it")


def _also(step: str) -> tuple[str, ...]:
    return ("checks",) if step in PROGRAMS else ()
