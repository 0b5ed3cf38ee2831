"""The model of a matrix: runtimes, machines and tests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from rankwise.documents import common, values
from rankwise.documents.common import Conflict, Exclusion, Model, Setting
from rankwise.documents.jobs import DocumentModel
from rankwise.documents.suite import Requirements, SuiteTest, repeated_names, two_folders
from rankwise.documents.values import check_that, listed_schema, one_or_more
from rankwise.documents.written import entries_in, given_in, mapping_in, plain_data
from rankwise.plan import LOOK
from rankwise.wording import code, hint

AMOUNTS = ("mem", "cores", "gpus")
"""What may be compared with a number; `mem` is in GB."""
_RESERVED = "`environment` is the name of rankwise's own task in each cell: use another name"
# Such as `gpu`, `sse4.2` or `infiniband-hdr`; a minus in front means that it must not be there.
_WORD = r"[A-Za-z][\w.+]*(-[\w.+]+)*"
FEATURE = re.compile(rf"(?P<minus>-?)(?P<word>{_WORD})")
COMPARISON = re.compile(
    rf"(?P<name>{'|'.join(AMOUNTS)})\s*(?P<sign>>=|<=|==|=|>|<)\s*(?P<number>\d+(\.\d+)?)"
)


def _is_feature(value: str) -> bool:
    return bool(FEATURE.fullmatch(value) or COMPARISON.fullmatch(value))


_FEATURES = "must be a word such as gpu or -avx512, or such as mem>=64, cores>=8, gpus>=2"
_Feature = Annotated[str, check_that(_is_feature, _FEATURES)]
Features = Annotated[
    tuple[_Feature, ...], BeforeValidator(one_or_more), listed_schema({"type": "string"})
]


class NotebookSettings(Model):
    """How notebooks are run."""

    cell_timeout: values.Seconds | None = Field(default=None, examples=["60s"])
    """Longest time of a cell."""
    parameters: dict[values.Variable, Annotated[Any, BeforeValidator(plain_data)]] = Field(
        default={}, examples=[{"epochs": 1}]
    )
    """Values for the cell tagged `parameters`."""
    as_script: values.Bool = False
    """Run it as a `.py` as well, if it has no magics."""
    compare: Literal["tagged", "all", "none"] = "tagged"
    """Which cells must have the output that the notebook has stored."""
    pdf: values.Bool = False
    """Write a PDF beside the HTML."""


class MatrixTest(SuiteTest):
    """One test of each cell, or those that are found. A text alone is `run`."""

    kinds: ClassVar[tuple[str, ...]] = ("run", "files", "pytest", "suite")

    suite: values.Text = Field(default="", examples=["suite.yaml"])
    """A document of type `Suite`: its tests are run in each cell."""
    runtimes: values.Texts = Field(default=(), examples=[["torch-*"]])
    """Names or patterns of the runtimes that have it; none given: all."""
    machines: values.Texts = ()
    """Names or patterns of the machines that have it; none given: all."""
    needs: Features = Field(default=(), examples=[["gpu", "-avx512", "mem>=64"]])
    """What a machine must have, or with `-` must not; else it is skipped there."""
    notebooks: NotebookSettings | None = None
    """How its notebooks are run; what is not said here is as for all."""
    soft_fail: values.Bool = False
    """Whether the run may pass though it has failed."""
    skip: values.Text = Field(default="", examples=["until the data are back"])
    """Why it is not run."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from super().conflicts(contents)
        if contents.get("suite") is not None:
            own = ("ranks", "nodes", "launcher", "checks", "restart", "requires", "cases")
            for name in given_in(contents, own):
                yield Conflict((name,), f"`{name}` goes with the tests in the suite itself")


WAYS = ("runtime", "requirements", "lock", "image", "modules")
"""What says what a runtime is; only one may."""


def _words(given: Any) -> Any:
    return given.split() if isinstance(given, str) else given


class MatrixRuntime(Model):
    """A Python with its packages, an image or modules. A text alone is a name of rankwise.toml."""

    short_form: ClassVar[str] = "runtime"

    runtime: values.Text = Field(default="", examples=["current"])
    """Name of a runtime in rankwise.toml; `current` is the Python of rankwise."""
    python: values.Written = Field(default="", examples=["3.12", "./venv"])
    """Version of Python, beside `requirements` or `lock`; alone: an interpreter or the folder of a
    virtual environment.
    """
    requirements: tuple[values.Text, ...] = Field(default=(), examples=[["numpy==1.26.4"]])
    """Packages to install, as for pip."""
    lock: values.Text = Field(default="", examples=["requirements.lock"])
    """A file with them: pip's requirements, or a pylock.toml. What is in it counts, not what it is
    called.
    """
    image: common.ImageSource | None = Field(
        default=None, examples=["docker.io/library/python:3.12", {"build": "Dockerfile"}]
    )
    """A container image, or what it is built from."""
    engine: Literal["docker", "podman", "apptainer", ""] = ""
    """What runs the image; none given: what is there."""
    modules: Annotated[
        tuple[values.Text, ...], BeforeValidator(_words), listed_schema({"type": "string"})
    ] = Field(default=(), examples=[["gcc/13", "python/3.12"]])
    """Environment modules to load."""
    tests: tuple[MatrixTest, ...] = ()
    """Tests of this runtime alone, after those of all."""
    needs: Features = Field(default=(), examples=[["gpu"]])
    """What a machine must have for it, or with `-` must not."""
    machines: values.Texts = ()
    """Names or patterns of the machines for it; none given: all."""
    environment_variables: values.Variables = Field(default={}, examples=[{"MPLBACKEND": "agg"}])
    """For all tests in it."""
    soft_fail: values.Bool = False
    """Whether the run may pass though tests have failed in it."""
    skip: values.Text = Field(default="", examples=["not built yet"])
    """Why nothing is run in it."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from common.runtime_conflicts(cls, contents, WAYS)


# What a condition may ask for, and each cell has.
AXES = ("runtime", "machine", "test")
# A name with one of these is a pattern of fnmatch.
_PATTERN = re.compile(r"[*?\[]")


class MatrixMachine(Model):
    """A place to run, and what it has. A text alone is the compute."""

    short_form: ClassVar[str] = "compute"

    compute: values.Target = Field(default="local", examples=["local", "gpu-cluster"])
    """Name of a compute in rankwise.toml; `local` is this machine."""
    features: Features = Field(default=(), examples=[["gpu", "mem>=64"]])
    """What it has: `gpu`, `avx512`, `mem>=64` (GB), or any word. On this machine, what can be
    looked for is: without it, nothing is run there.
    """
    resources: Requirements = Field(default_factory=Requirements)
    """What each test has to itself there, if it says nothing."""
    max_parallel: values.PositiveInt | None = None
    """How many tests run there at a time; none given: as many as fit."""
    environment_variables: values.Variables = Field(default={}, examples=[{"OMP_NUM_THREADS": 1}])
    """For all tests there."""
    soft_fail: values.Bool = False
    """Whether the run may pass though tests have failed there."""
    skip: values.Text = Field(default="", examples=["being repaired"])
    """Why nothing is run there."""


class MatrixAddition(Model):
    """A cell that would not be there otherwise."""

    runtime: values.Name = Field(examples=["torch-2.13"])
    """Its runtime."""
    machine: values.Name = Field(examples=["old-gpu"])
    """Its machine."""
    tests: values.Texts = ()
    """Which tests, by their names; none given: all of its runtime."""


class MatrixSetting(Setting):
    """What is different in some cells, or for some tests in them."""

    soft_fail: values.Bool | None = None
    """Whether the run may pass though they have failed."""
    skip: values.Text = Field(default="", examples=["takes an hour there"])
    """Why they are not run."""


class Matrix(DocumentModel):
    """The same tests in several runtimes, on several machines: a cell for each combination."""

    type: Literal["Matrix"]
    """Says that this is a matrix."""
    runtimes: dict[values.Name, MatrixRuntime] = Field(
        examples=[{"numpy-1.26": {"requirements": ["numpy==1.26.4"]}}]
    )
    """What tests run in, by their names."""
    machines: dict[values.Name, MatrixMachine] = Field(
        default_factory=lambda: {"local": MatrixMachine()},
        examples=[{"laptop": "local", "cluster": {"compute": "gpu-cluster"}}],
    )
    """Where tests run, by their names; none given: here."""
    tests: tuple[MatrixTest, ...] = Field(default=(), examples=[["hello.sh", "plots.ipynb"]])
    """The tests of every cell."""
    exclude: tuple[Exclusion, ...] = ()
    """Cells, or tests in them, to leave out, each with a reason."""
    add: tuple[MatrixAddition, ...] = ()
    """Cells more: such as `exclude` or a runtime's `machines` leave out."""
    set: tuple[MatrixSetting, ...] = ()
    """What is different in some cells."""
    notebooks: NotebookSettings = Field(default_factory=NotebookSettings)
    """How all notebooks are run."""
    folder: common.TestFolder = "."
    code: common.TestCode = ""
    repository: common.Repository | None = None
    """A repository instead, of which each test gets a clone to work in."""
    outputs: common.OutputPlace | None = None
    """Where executed notebooks are copied to, and what tests leave in $RANKWISE_FOLDER."""
    environment_variables: values.Variables = Field(default={}, examples=[{"MPLBACKEND": "agg"}])
    """For all tests."""
    secrets: values.Secrets = Field(default=(), examples=[["TOKEN"]])
    """Names of variables that are passed on."""
    timeout: values.Seconds | None = Field(default=None, examples=["10m"])
    """Longest time of each test that has none itself."""
    report: Literal["when-complete", ""] = ""
    """`when-complete`: write a report when the last cell is in."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from super().conflicts(contents)
        runtimes, machines = mapping_in(contents, "runtimes"), mapping_in(contents, "machines")
        for key in ("runtimes", "machines"):
            if contents.get(key) == {}:
                yield Conflict((key,), f"a matrix needs at least one {key[:-1]}")
        own = [mapping_in(runtimes, name).get("tests") for name in runtimes]
        if not contents.get("tests") and not any(own):
            yield Conflict(("tests",), "a matrix needs at least one test")
        yield from _twice(contents, runtimes)
        known = {"runtime": [*runtimes], "machine": [*machines] or ["local"]}
        for key in ("exclude", "set"):
            for index, entry in enumerate(entries_in(contents, key)):
                if mapping_in(entry).get("when") == {}:
                    yield Conflict((key, index, "when"), "`when` must ask for something")
        yield from _unknown_names(contents, runtimes, known)
        yield from two_folders(contents)


def _twice(contents: Mapping[str, Any], runtimes: Mapping[str, Any]) -> Iterator[Conflict]:
    """Find names of tests that are taken, also by rankwise itself."""
    # Tests of one runtime may be called like those of another, but not like those of all.
    generic: set[str] = set()
    places: list[tuple[Any, tuple[str, ...]]] = [(contents, ())]
    places += [(one, ("runtimes", name)) for name, one in runtimes.items()]
    for section, path in places:
        yield from repeated_names(section, path, set(generic) if path else generic)
        for index, test in enumerate(entries_in(section, "tests")):
            if mapping_in(test).get("name") == LOOK:
                yield Conflict((*path, "tests", index, "name"), _RESERVED)


def _unknown_names(
    contents: Mapping[str, Any], runtimes: Mapping[str, Any], known: Mapping[str, Sequence[str]]
) -> Iterator[Conflict]:
    """Find plain names of runtimes and machines that do not exist; a pattern may fit nothing."""
    for path, axis, wanted in _names_in(contents, runtimes):
        if axis not in AXES:
            remedy = hint(axis, AXES, f"there are {', '.join(AXES)}")
            yield Conflict(path, f"{code(axis)} is nothing that a cell has: {remedy}")
        for name in wanted if isinstance(wanted, list | tuple) else (wanted,):
            is_plain = isinstance(name, str) and not _PATTERN.search(name)
            # Names of tests are checked by the planner, which knows the files that patterns find.
            if is_plain and name not in known.get(axis, [name]):
                remedy = hint(name, known[axis], f"there are {', '.join(known[axis])}")
                yield Conflict(path, f"there is no {axis} {code(name)}: {remedy}")


def _names_in(
    contents: Mapping[str, Any], runtimes: Mapping[str, Any]
) -> Iterator[tuple[tuple[int | str, ...], str, Any]]:
    """Yield all places with names or patterns, as their path, axis and value."""
    for key in ("exclude", "set"):
        for index, entry in enumerate(entries_in(contents, key)):
            for axis, wanted in mapping_in(entry, "when").items():
                yield (key, index, "when", axis), axis, wanted
    for name in runtimes:
        yield ("runtimes", name, "machines"), "machine", mapping_in(runtimes, name).get("machines")
    for axis in ("runtime", "machine"):
        for index, entry in enumerate(entries_in(contents, "add")):
            yield ("add", index, axis), axis, mapping_in(entry).get(axis)
        for index, test in enumerate(entries_in(contents, "tests")):
            yield ("tests", index, f"{axis}s"), axis, mapping_in(test).get(f"{axis}s")
