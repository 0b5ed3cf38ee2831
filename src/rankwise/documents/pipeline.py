"""The model of a pipeline and its stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from rankwise.documents import values
from rankwise.documents.checks import CheckSpec
from rankwise.documents.common import Conflict, ImageSource, Model, unknown_references
from rankwise.documents.jobs import DocumentModel
from rankwise.documents.steps import Cache, Checkout, Deploy, MakeRuntime, Notify, Report, Wait
from rankwise.documents.suite import two_runtimes
from rankwise.documents.values import number_in
from rankwise.documents.written import given_in, mapping_in
from rankwise.wording import alternatives, code, hint

PROGRAMS = ("checkout", "runtime", "deploy", "report", "notify", "wait")
"""Steps that are programs of rankwise."""
INCLUDED = ("job", "suite", "sweep")
"""Steps that are other documents."""
STEPS = ("run", *PROGRAMS, *INCLUDED)
# Included documents say these themselves, and rankwise's own steps are one process here.
_OF_SCRIPTS = ("ranks", "nodes", "environment", "artifacts", "cache", "checks")
_DETACHED = ("run", *INCLUDED)
# What the client looks at before the stage starts or when it is over: it knows the plan, and no
# run, artifacts or variables of the stage.
_OF_CLIENT = (*INCLUDED, "on", "environment", "folder", "inputs", "outputs", "checks")


class Stage(Model):
    """One step of a pipeline. A text alone is what it runs."""

    short_form: ClassVar[str] = "run"

    run: values.Text = Field(default="", examples=["python setup.py build"])
    """Lines for bash; the first that fails ends them."""
    checkout: Checkout | None = None
    """Get a repository of git."""
    runtime: MakeRuntime | None = None
    """Make a virtual environment."""
    deploy: Deploy | None = None
    """Copy a build to where it stays."""
    report: Report | None = None
    """Write a report of the run up to here."""
    notify: Notify | None = None
    """Send a message with the state of the run."""
    wait: Wait | None = None
    """Submit to another batch system, and wait for the end."""
    job: values.Text = Field(default="", examples=["train.yaml"])
    """A document of a job."""
    suite: values.Text = Field(default="", examples=["t.yaml"])
    """A document of a suite."""
    sweep: values.Text = Field(default="", examples=["osu.yaml"])
    """A document of a sweep."""

    needs: values.Texts = Field(default=(), examples=["build", ["build", "docs"]])
    """Stages that must be over before; if no stage says so, each needs the one before."""
    when: Literal["passed", "failed", "always"] = "passed"
    """What must have become of those."""
    on: values.Text = Field(default="", examples=["cluster"])
    """Name of a compute in rankwise.toml."""
    ranks: values.PositiveInt | None = Field(default=None, examples=[4])
    """Run it on so many MPI ranks."""
    nodes: values.PositiveInt | None = Field(default=None, examples=[2])
    """On so many nodes."""
    cores: values.Cores | None = Field(default=None, examples=[4])
    """Cores that it needs."""
    environment: values.Text = Field(default="", examples=["gcc-12"])
    """Name of a runtime in rankwise.toml."""
    env: values.Variables = Field(default={}, examples=[{"CC": "mpicc"}])
    """Environment variables."""
    secrets: values.Secrets = Field(default=(), examples=[["TOKEN"]])
    """Names of variables that are passed on; their values are kept nowhere."""
    folder: values.Text = Field(default="", examples=["mpi4py"])
    """Where to work, from the workspace."""
    matrix: dict[values.Variable, tuple[values.Written, ...]] = Field(
        default={}, examples=[{"python": [3.11, 3.12]}]
    )
    """The stage once for each combination; `${{matrix.NAME}}` is the value."""
    retries: values.NonNegativeInt = Field(default=0, examples=[2])
    """How often to try again after a failure."""
    timeout: values.Seconds | None = Field(default=None, examples=["30m"])
    """Longest time of one try."""
    checks: tuple[CheckSpec, ...] = Field(default=(), examples=[["all tests passed"]])
    """What must be true when it has run."""
    inputs: values.Patterns | None = Field(default=None, examples=[["src/**/*.c", "Makefile"]])
    """All files that it depends on, as patterns; `[]`: none. If neither they nor what it needs has
    changed since it passed, it is not run again.
    """
    outputs: values.Patterns = Field(default=(), examples=["build/lib.so"])
    """What it leaves in the workspace; if that is not there, it runs again."""
    artifacts: values.Patterns = Field(default=(), examples=["dist/*.whl"])
    """Files to keep with the run; `${{artifacts.STAGE}}` is their folder."""
    cache: Cache | None = None
    """Folders to keep from run to run."""
    detach: values.Bool = False
    """Whether it is only submitted, as a run of its own that goes on by itself."""
    description: str = ""
    """A note for people."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        given = given_in(contents, STEPS)
        yield from cls.exactly_one(contents, STEPS, "a stage")
        # What else is wrong depends on the step, which is unclear then.
        if len(given) != 1:
            return
        yield from _misplaced(contents, given[0])
        for axis, given in mapping_in(contents, "matrix").items():
            if isinstance(given, list) and not given:
                yield Conflict(("matrix", axis), f"`{axis}` has no values")

    @property
    def step(self) -> str:
        """Name the step that it is."""
        return next(step for step in STEPS if getattr(self, step))


def _misplaced(contents: Mapping[str, Any], step: str) -> Iterator[Conflict]:
    """Find fields that do not go with a step, or with each other."""
    if step != "run":
        # What a program of rankwise's leaves behind can be checked like the output of a script.
        misplaced = set(_OF_SCRIPTS) - {"checks" if step in PROGRAMS else ""}
        for name in given_in(contents, sorted(misplaced)):
            yield Conflict((name,), f"`{name}` goes with `run`, not with `{step}`")
    ranks, nodes = (number_in(contents.get(name)) for name in ("ranks", "nodes"))
    if nodes is not None and ranks is None and step == "run":
        yield Conflict(("nodes",), "`nodes` needs `ranks`, which says how many processes there are")
    if ranks is not None and nodes and ranks % nodes:
        yield Conflict(("ranks",), f"{ranks} ranks cannot be shared evenly by {nodes} nodes")
    if ranks is not None:
        for name in given_in(contents, ("cache", "artifacts")):
            yield Conflict((name,), f"`{name}` is not for ranks; put it into a stage of its own")
    if contents.get("outputs") is not None and contents.get("inputs") is None:
        yield Conflict(("outputs",), "`outputs` goes with `inputs`: without them it always runs")
    # The value is not validated yet: `True` in YAML is true as well.
    if str(contents.get("detach")).lower() == "true":
        if step not in _DETACHED:
            names = alternatives([f"`{each}`" for each in _DETACHED])
            yield Conflict(("detach",), f"`detach` goes with {names}, not with `{step}`")
        for name in given_in(contents, ("artifacts", "inputs", "outputs")):
            why = f"`{name}` does not go with `detach`: the pipeline does not wait for it"
            yield Conflict((name,), why)


class Pipeline(DocumentModel):
    """Stages, run in the order that `needs` gives: build, test, deploy."""

    type: Literal["Pipeline"]
    """Says that this is a pipeline."""
    stages: dict[values.Name, Stage] = Field(examples=[{"build": "make", "test": "make check"}])
    """The stages, each with its name."""
    workspace: values.Text = Field(default="", examples=["/scratch/build"])
    """The folder in which stages work; none given: that of the document."""
    env: values.Variables = Field(default={}, examples=[{"CC": "mpicc"}])
    """Environment variables of all stages."""
    secrets: values.Secrets = Field(default=(), examples=[["TOKEN"]])
    """Names of variables that are passed on to all stages."""
    on: values.Text = Field(default="", examples=["cluster"])
    """Compute of the stages that name none; none given: this machine."""
    environment: values.Text = Field(default="", examples=["gcc-12"])
    """Runtime of the stages that name none."""
    image: ImageSource | None = Field(default=None, examples=[{"build": "Dockerfile"}])
    """A container image instead, or what it is built from."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        stages = mapping_in(contents, "stages")
        if contents.get("stages") is not None and not stages:
            yield Conflict(("stages",), "`stages` must be names, each with a stage")
        for name in stages:
            # In the key of a task, a dot comes between the stage and its cell: `test.3.11`.
            if "." in name:
                yield Conflict(("stages", name), "the name of a stage has no `.`")
        yield from two_runtimes(contents)
        yield from _unknown_needs(stages)
        yield from _cycles(stages)
        for name, stage in stages.items():
            yield from _references(name, stage, stages)


def needs_of(stages: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what each stage needs; if no stage has `needs`, each needs the one before it.

    A stage that runs after failures, or always, may end well though the stage before has failed:
    so what comes after it needs the last ordinary stage as well.
    """
    said = {name: _needs(stage) for name, stage in stages.items()}
    if any(said.values()):
        return said
    names = list(stages)
    ordinary = [_when(stage) == "passed" for stage in stages.values()]
    found = {}
    for at, name in enumerate(names):
        # The last ordinary stage before this one, and all stages since.
        first = max((before for before in range(at) if ordinary[before]), default=0)
        found[name] = names[first:at]
    return found


def _when(stage: Any) -> str:
    return str(getattr(stage, "when", None) or mapping_in(stage).get("when") or "passed")


def in_order(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return all stages so that each comes after what it needs, else in the order of the document.

    Stages that are part of a circle, or come after one, are left out.
    """
    left, ordered = dict(needs), dict[str, None]()
    while name := next((one for one in left if ordered.keys() >= {*left[one]}), ""):
        ordered[name] = None
        del left[name]
    return [*ordered]


def _needs(stage: Any) -> list[str]:
    given = getattr(stage, "needs", None) or mapping_in(stage).get("needs")
    if isinstance(given, str):
        return [given]
    is_list = isinstance(given, list | tuple)
    return [name for name in given if isinstance(name, str)] if is_list and given else []


def _unknown_needs(stages: Mapping[str, Any]) -> Iterator[Conflict]:
    for name, stage in stages.items():
        for at, need in enumerate(_needs(stage)):
            path = ("stages", name, "needs")
            # A single need stands at the key itself, not in a list.
            where = path if isinstance(mapping_in(stage).get("needs"), str) else (*path, at)
            if need not in stages:
                names = alternatives([code(each) for each in stages], "and")
                remedy = hint(need, [each for each in stages if each != name], f"there are {names}")
                yield Conflict(where, f"there is no stage {code(need)}; {remedy}")
    for name, stage in stages.items():
        when = _when(stage)
        if when in ("failed", "always") and not needs_of(stages)[name]:
            why = f"`when: {when}` needs stages to come after: `needs`"
            yield Conflict(("stages", name, "when"), why)


def _cycles(stages: Mapping[str, Any]) -> Iterator[Conflict]:
    needs = {
        name: [one for one in _needs(stage) if one in stages] for name, stage in stages.items()
    }
    left = {*needs} - {*in_order(needs)}
    while left:
        # From any of them: what cannot be ordered needs something that cannot be ordered.
        way = [next(name for name in needs if name in left)]
        while following := next((one for one in needs[way[-1]] if one in left), ""):
            if following in way:
                circle = [*way[way.index(following) :], following]
                shown = " needs ".join(map(code, circle))
                yield Conflict(("stages", following, "needs"), f"a circle: {shown}")
                break
            way.append(following)
        # Only what leads into a circle that was shown is left without a need.
        left -= {*way}


def _references(name: str, stage: Any, stages: Mapping[str, Any]) -> Iterator[Conflict]:
    """Find references to what is not there, in what a stage runs and in its variables."""
    known = {
        "matrix": list(mapping_in(stage, "matrix")),
        "artifacts": [each for each in stages if given_in(mapping_in(stages, each), ["artifacts"])],
        "run": ["id"],
    }
    planned = {"matrix": known["matrix"]}
    for path, text in _texts(stage, ("stages", name)):
        is_planned = path[2:3] and path[2] in _OF_CLIENT
        yield from unknown_references(text, path, planned if is_planned else known)


def _texts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts(each, (*path, key))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each, path)
    elif isinstance(value, str):
        yield path, value
