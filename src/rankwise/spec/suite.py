"""The suite: scripts and commands that are tests, each by itself or under a launcher."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rankwise.spec.base import Clash, Model
from rankwise.spec.checks import Check
from rankwise.spec.mistakes import code, listed, nearest
from rankwise.spec.models import DocumentModel
from rankwise.spec.parts import Restart, TestCode, TestFolder, Variables
from rankwise.spec.values import (
    Amount,
    Bytes,
    Cores,
    Count,
    Name,
    Seconds,
    Secrets,
    Target,
    Text,
    Truth,
    number_in,
)

KINDS = ("run", "files", "pytest")


class Launcher(StrEnum):
    """What makes ranks of a command."""

    MPI = "mpi"
    PYTORCH = "pytorch"


class Requirements(Model):
    """What there must be for a test to run, and what it has to itself while it does."""

    hints: ClassVar[Mapping[str, str]] = {
        "gpu": "did you mean `gpus`?",
        "cpu": "did you mean `cores`?",
        "cpus": "did you mean `cores`?",
        "ranks": "it is beside `requires`, not in it",
    }

    gpus: Annotated[Amount, Field(description="Number of GPUs.", examples=[2])] = 0
    cores: Annotated[
        Cores | None,
        Field(description="Cores; none given: one for each rank.", examples=[4]),
    ] = None
    memory: Annotated[
        Bytes | None, Field(description="Memory: bytes, or with a unit.", examples=["2Gi"])
    ] = None


class SuiteTest(Model):
    """One test, or those that are found. A text alone is `run`."""

    short_form: ClassVar[str] = "run"
    kinds: ClassVar[tuple[str, ...]] = KINDS
    """What says what a test is; only one may."""
    hints: ClassVar[Mapping[str, str]] = {
        "command": "did you mean `run`?",
        "script": "did you mean `run`?",
        "pattern": "did you mean `files`?",
        "glob": "did you mean `files`?",
        "env": "did you mean `environment_variables`?",
        "gpus": "put it into `requires`",
        "cores": "put it into `requires`",
        "memory": "put it into `requires`",
        "np": "did you mean `ranks`?",
        "retries": "did you mean `restart`?",
    }

    run: Annotated[
        Text,
        Field(
            description="A script, or a line for the shell.",
            examples=["checkpoint_test.py", "python train.py --epochs 1"],
        ),
    ] = ""
    files: Annotated[
        Text,
        Field(
            description="A pattern: each script that it finds is a test.",
            examples=["tests/*_test.py"],
        ),
    ] = ""
    pytest: Annotated[
        Text,
        Field(
            description="Arguments of pytest, whose tests show one by one in the report.",
            examples=["tests/ --n-workers=4"],
        ),
    ] = ""
    name: Annotated[
        Name,
        Field(description="What it is called; none given: made from the script or the command."),
    ] = ""
    ranks: Annotated[
        Count | None,
        Field(description="As how many ranks it runs; none given: as one process.", examples=[4]),
    ] = None
    nodes: Annotated[
        Count | None,
        Field(description="On how many nodes; `ranks` must be a multiple.", examples=[2]),
    ] = None
    launcher: Annotated[
        Launcher,
        Field(
            description="What makes ranks of it: `mpi` is mpiexec, `pytorch` sets RANK, WORLD_SIZE "
            "and the like."
        ),
    ] = Launcher.MPI
    requires: Annotated[
        Requirements, Field(description="What there must be; otherwise it is not run.")
    ] = Field(default_factory=Requirements)
    optional: Annotated[
        Truth, Field(description="Whether the suite may pass without it having run.")
    ] = False
    timeout: Annotated[
        Seconds | None,
        Field(description="Longest run time; none given: that of the suite.", examples=["60s"]),
    ] = None
    environment_variables: Annotated[
        Variables, Field(description="For this test.", examples=[{"NCCL_DEBUG": "INFO"}])
    ] = Field(default_factory=dict)
    checks: Annotated[
        tuple[Check, ...],
        Field(description="What must be true when it has run, beside the exit code."),
    ] = ()
    restart: Annotated[
        Restart | None, Field(description="When to try again; none given: never.")
    ] = None

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        given = [kind for kind in cls.kinds if contents.get(kind) is not None]
        if not given:
            unknown = [name for name in contents if name not in cls.fields()]
            if not any(name in cls.hints or nearest(name, cls.kinds) for name in unknown):
                kinds = listed([f"`{kind}`" for kind in cls.kinds])
                yield Clash((), f"a test needs one of {kinds}")
        if len(given) > 1:
            yield Clash((given[1],), f"a test has `{given[0]}` or `{given[1]}`, not both")
        if contents.get("name") is not None and contents.get("files") is not None:
            yield Clash(("name",), "tests that are found are named after their files")
        ranks, nodes = number_in(contents.get("ranks")), number_in(contents.get("nodes"))
        if isinstance(nodes, int) and nodes > 1 and (ranks is None or ranks % nodes):
            yield Clash(("nodes",), f"`ranks` must be a multiple of `nodes` ({nodes})")


class Header(Model):
    """What a script says of itself: `# rankwise: ranks=4 gpus=2 timeout=60`."""

    ranks: Count | None = None
    nodes: Count | None = None
    launcher: Launcher | None = None
    gpus: Amount | None = None
    cores: Cores | None = None
    memory: Bytes | None = None
    timeout: Seconds | None = None
    optional: Truth | None = None
    name: Name | None = None


class Suite(DocumentModel):
    """Tests, each a script or a command that runs by itself or under a launcher."""

    hints: ClassVar[Mapping[str, str]] = {
        "env": "did you mean `environment_variables`?",
        "test": "did you mean `tests`?",
    }

    type: Annotated[Literal["Suite"], Field(description="Says that this is a suite of tests.")]
    tests: Annotated[tuple[SuiteTest, ...], Field(description="The tests, in their order.")]
    folder: TestFolder = "."
    code: TestCode = ""
    compute: Annotated[
        Target,
        Field(
            description="Name of a compute in rankwise.toml; `local` is this machine.",
            examples=["local", "gpu-cluster"],
        ),
    ] = "local"
    environment: Annotated[
        Text,
        Field(
            description="Name of what tests run in, which rankwise.toml maps to a Python, a "
            "virtual environment or a container; none given: the Python of rankwise.",
            examples=["pytorch"],
        ),
    ] = ""
    environment_variables: Annotated[
        Variables, Field(description="For all tests.", examples=[{"OMP_NUM_THREADS": 1}])
    ] = Field(default_factory=dict)
    secrets: Annotated[
        Secrets,
        Field(
            description="Names of environment variables that are passed on from where `rankwise` "
            "is started. Their values are kept nowhere.",
            examples=[["HF_TOKEN"]],
        ),
    ] = ()
    timeout: Annotated[
        Seconds | None,
        Field(
            description="Longest run time of each test that has none itself; none: no limit.",
            examples=["10m"],
        ),
    ] = None

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        tests = contents.get("tests")
        if isinstance(tests, list) and not tests:
            yield Clash(("tests",), "a suite needs a test at least")
        seen: set[str] = set()
        for index, test in enumerate(tests if isinstance(tests, list) else ()):
            name = test.get("name") if isinstance(test, Mapping) else None
            if isinstance(name, str):
                if name in seen:
                    yield Clash(("tests", index, "name"), f"a test is called {code(name)} already")
                seen.add(name)
        if contents.get("code") is not None and contents.get("folder") is not None:
            yield Clash(("folder",), "tests run in `folder` or in a copy of `code`, not both")
