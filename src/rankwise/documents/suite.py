"""The suite: scripts and commands that are tests, each by itself or under a launcher."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rankwise.documents import common, values
from rankwise.documents.checks import CheckSpec
from rankwise.documents.common import Conflict, Model, RestartPolicy, TestCode, TestFolder
from rankwise.documents.jobs import DocumentModel
from rankwise.documents.values import number_in
from rankwise.documents.written import entries_in, given_in, mapping_in
from rankwise.wording import code

KINDS = ("run", "files", "pytest")


class Requirements(Model):
    """What there must be for a test to run, and what it has to itself while it does."""

    gpus: values.NonNegativeInt = Field(default=0, examples=[2])
    """Number of GPUs."""
    cores: values.Cores | None = Field(default=None, examples=[4])
    """Cores; none given: one for each rank."""
    memory: values.Bytes | None = Field(default=None, examples=["2Gi"])
    """Memory: bytes, or with a unit."""


class SuiteTest(Model):
    """One test, or those that are found. A text alone is `run`."""

    short_form: ClassVar[str] = "run"
    kinds: ClassVar[tuple[str, ...]] = KINDS
    """What says what a test is; only one may."""

    run: values.Text = Field(
        default="", examples=["checkpoint_test.py", "python train.py --epochs 1"]
    )
    """A script, or a line for the shell."""
    files: values.Text = Field(default="", examples=["tests/*_test.py"])
    """A pattern: each script that it finds is a test."""
    pytest: values.Text = Field(default="", examples=["tests/ --n-workers=4"])
    """Arguments of pytest, whose tests show one by one in the report."""
    cases: values.Text = Field(default="", examples=["Running:"])
    """What the test prints before the name of each of its cases, which then show one by one."""
    name: values.Name = ""
    """What it is called; none given: made from the script or the command."""
    ranks: values.Ranks | None = Field(default=None, examples=[4])
    """As how many ranks it runs; none given: as one process. `gpus`: one for each GPU."""
    nodes: values.PositiveInt | None = Field(default=None, examples=[2])
    """On how many nodes; `ranks` must be a multiple."""
    launcher: Literal["mpi", "pytorch"] = "mpi"
    """What makes ranks of it: `mpi` is mpiexec, `pytorch` sets RANK, WORLD_SIZE and the like."""
    requires: Requirements = Field(default_factory=Requirements)
    """What there must be; otherwise it is not run."""
    optional: values.Bool = False
    """Whether the suite may pass without it having run."""
    timeout: values.Seconds | None = Field(default=None, examples=["60s"])
    """Longest run time; none given: that of the suite."""
    environment_variables: values.Variables = Field(default={}, examples=[{"NCCL_DEBUG": "INFO"}])
    """For this test."""
    checks: tuple[CheckSpec, ...] = ()
    """What must be true when it has run, beside the exit code."""
    restart: RestartPolicy | None = None
    """When to try again; none given: never."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from cls.exactly_one(contents, cls.kinds, "a test")
        if contents.get("cases") is not None and contents.get("pytest") is not None:
            yield Conflict(("cases",), "tests of pytest are shown one by one without it")
        # One entry can find many tests, and a name must be unique.
        if contents.get("name") is not None and contents.get("files") is not None:
            yield Conflict(("name",), "tests that are found are named after their files")
        ranks, nodes = number_in(contents.get("ranks")), number_in(contents.get("nodes"))
        if contents.get("ranks") == values.GPUS:
            return
        if isinstance(nodes, int) and nodes > 1 and (ranks is None or ranks % nodes):
            yield Conflict(("nodes",), f"`ranks` must be a multiple of `nodes` ({nodes})")


class Header(Model):
    """What a script says of itself: `# rankwise: ranks=4 gpus=2 timeout=60`."""

    ranks: values.Ranks | None = None
    nodes: values.PositiveInt | None = None
    launcher: Literal["mpi", "pytorch"] | None = None
    gpus: values.NonNegativeInt | None = None
    cores: values.Cores | None = None
    memory: values.Bytes | None = None
    timeout: values.Seconds | None = None
    optional: values.Bool | None = None
    name: values.Name | None = None


def repeated_names(contents: Any, path: tuple[str, ...], seen: set[str]) -> Iterator[Conflict]:
    """Find tests whose names are taken by those that were seen, and add theirs."""
    for index, test in enumerate(entries_in(contents, "tests")):
        name = mapping_in(test).get("name")
        if isinstance(name, str):
            if name in seen:
                why = f"a test is called {code(name)} already"
                yield Conflict((*path, "tests", index, "name"), why)
            seen.add(name)


def two_folders(contents: Mapping[str, Any]) -> Iterator[Conflict]:
    """Find out whether tests are to run in two folders."""
    if contents.get("code") is not None and contents.get("folder") is not None:
        yield Conflict(("folder",), "tests run in `folder` or in a copy of `code`, not both")
    if contents.get("repository") is not None:
        for name in given_in(contents, ("code", "folder")):
            why = f"tests run in a clone of `repository` or in `{name}`, not both"
            yield Conflict((name,), why)


def two_runtimes(contents: Mapping[str, Any]) -> Iterator[Conflict]:
    """Find out whether commands are to run in an environment and in an image."""
    if contents.get("image") is not None and contents.get("environment") is not None:
        yield Conflict(("image",), "commands run in `environment` or in `image`, not both")


class Suite(DocumentModel):
    """Tests, each a script or a command that runs by itself or under a launcher."""

    type: Literal["Suite"]
    """Says that this is a suite of tests."""
    tests: tuple[SuiteTest, ...]
    """The tests, in their order."""
    folder: TestFolder = "."
    code: TestCode = ""
    repository: common.Repository | None = None
    """A repository instead, of which each test gets a clone to work in."""
    outputs: common.OutputPlace | None = None
    """Where notebooks and pages are copied to that tests leave in $RANKWISE_FOLDER."""
    compute: values.Target = Field(default="", examples=["local", "gpu-cluster"])
    """Name of a compute in rankwise.toml; `local` is this machine. None given: that of `[defaults]`
    there, or this machine.
    """
    environment: values.Text = Field(default="", examples=["pytorch"])
    """Name of what tests run in, which rankwise.toml maps to a Python, a virtual environment or a
    container; none given: the Python of rankwise.
    """
    image: common.ImageSource | None = Field(default=None, examples=[{"build": "Dockerfile"}])
    """A container image instead, or what it is built from."""
    environment_variables: values.Variables = Field(default={}, examples=[{"OMP_NUM_THREADS": 1}])
    """For all tests."""
    secrets: values.Secrets = Field(default=(), examples=[["HF_TOKEN"]])
    """Names of environment variables that are passed on from where `rankwise` is started. Their
    values are kept nowhere.
    """
    timeout: values.Seconds | None = Field(default=None, examples=["10m"])
    """Longest run time of each test that has none itself; none: no limit."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        if contents.get("tests") == []:
            yield Conflict(("tests",), "a suite needs at least one test")
        yield from repeated_names(contents, (), set())
        yield from two_folders(contents)
        yield from two_runtimes(contents)
