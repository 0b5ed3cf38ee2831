"""The base class of all models, and parts that several documents share."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import pydantic
from pydantic import Field
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from rankwise.documents import values, written
from rankwise.documents.values import check_that, listed_schema, one_or_more, wrong
from rankwise.documents.written import LocatedMapping, Location, Problem, given_in, mapping_in
from rankwise.plan import RuntimeChoice
from rankwise.wording import alternatives, code, hint, nearest


class Conflict(NamedTuple):
    """Something that a field cannot see for itself: a part that does not go with another one."""

    path: tuple[int | str, ...]
    """From the model in which it was noticed."""
    message: str


@dataclass(slots=True)
class ValidationContext:
    """What comes to light while a document is checked, beside the errors of single fields."""

    folder: Path = field(default_factory=Path)
    """The folder that paths are relative to."""
    mapping: str = "a mapping of `name: value` lines"
    """What the language of the document has for mappings."""
    problems: list[Problem] = field(default_factory=list)
    # By the id of the mapping: mappings have no hash, and the document keeps them alive.
    _models: dict[int, type[Model]] = field(default_factory=dict)

    def see(self, model: type[Model], contents: LocatedMapping) -> None:
        """Take note of which model a part of the document was taken for, and of its conflicts."""
        self._models[id(contents)] = model
        self.problems += [
            Problem(Location(contents, conflict.path).key_at, conflict.message)
            for conflict in model.conflicts(contents)
        ]

    def model_of(self, contents: object) -> type[Model] | None:
        """Return which model a part of the document was taken for."""
        return self._models.get(id(contents))


def field_docstrings(described: type) -> dict[str, str]:
    """Return the texts that stand below the fields of a class in its source."""
    return _docstrings_in(described.__module__).get(described.__name__, {})


@cache
def _docstrings_in(module: str) -> dict[str, dict[str, str]]:
    # Texts below fields are no attributes: only the source has them.
    source = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        one.name: {
            field.target.id: " ".join(str(text.value.value).split())
            for field, text in pairwise(one.body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        }
        for one in source.body
        if isinstance(one, ast.ClassDef)
    }


@cache
def _remedies() -> dict[str, dict[str, str]]:
    # A file of data, which is read only when there is an error to explain.
    return tomllib.loads(Path(__file__).with_name("hints.toml").read_text(encoding="utf-8"))


class Model(pydantic.BaseModel):
    """A mapping with known fields. A field that is there but empty counts as left out."""

    # Built when they are used: a command needs one type of document, or none.
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, defer_build=True)

    short_form: ClassVar[str] = ""
    """The field that is meant if there is only a text instead of a mapping."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        """Find what does not go together in contents that may be wrong in any other way, too."""
        yield from ()

    @classmethod
    def fields(cls) -> tuple[str, ...]:
        """Name all fields as documents write them."""
        return tuple(field.alias or name for name, field in cls.model_fields.items())

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """Return the texts below the fields, which are read only when a schema is made."""
        found: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            if issubclass(base, Model):
                found |= field_docstrings(base)
        return found

    @classmethod
    def has_misspelt(cls, contents: Mapping[str, Any], names: Iterable[str]) -> bool:
        """Return whether one of some fields is there under a wrong name, which is told already."""
        names = tuple(names)
        unknown = [name for name in contents if name not in cls.fields()]
        return any(cls.hint_for(name) or nearest(name, names) for name in unknown)

    @classmethod
    def hint_for(cls, name: str) -> str:
        """Return the remedy for a field that does not exist; empty if it is not a known mistake."""
        tables = (_remedies().get(base.__name__, {}) for base in cls.__mro__)
        known = (one for table in tables for one in table.items())
        return next((remedy for names, remedy in known if name in names.split()), "")

    @classmethod
    def exactly_one(
        cls, contents: Mapping[str, Any], names: Sequence[str], what: str
    ) -> Iterator[Conflict]:
        """Find out whether exactly one of some fields is given; `what` is such as "a check"."""
        given = given_in(contents, names)
        if len(given) > 1:
            yield Conflict((given[1],), f"{what} has `{given[0]}` or `{given[1]}`, not both")
        elif not given and not cls.has_misspelt(contents, names):
            one_of = "one of " if len(names) > 2 else ""
            why = f"{what} needs {one_of}{alternatives([code(name) for name in names])}"
            yield Conflict((), why)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _look_over(cls, contents: Any, info: pydantic.ValidationInfo) -> Any:
        if cls.short_form and isinstance(contents, str):
            return {cls.short_form: contents}
        if not isinstance(contents, Mapping):
            return contents
        # With a context, all conflicts become problems with their places. Without one, as when a
        # model is made in a test, the first is an error like that of a field.
        if isinstance(info.context, ValidationContext) and isinstance(contents, LocatedMapping):
            info.context.see(cls, contents)
        else:
            for conflict in cls.conflicts(contents):
                raise wrong(conflict.message)
        # `field:` without a value counts as left out, so its default applies; a required field
        # stays, and pydantic says that it is empty.
        optional = {
            field.alias or name
            for name, field in cls.model_fields.items()
            if not field.is_required()
        }
        return {
            name: value
            for name, value in contents.items()
            if value is not None or name not in optional
        }

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        # The schema may be a `$ref`: the definition behind it is what has the fields.
        whole = handler.resolve_ref_schema(schema)
        described = cls.descriptions()
        for name, known in cls.model_fields.items():
            if name in described:
                whole["properties"][known.alias or name]["description"] = described[name]
        if not cls.short_form:
            return schema
        # A model with a short form takes either the text or the mapping.
        text = {**whole["properties"][cls.short_form]}
        text.pop("default", None)
        mapping = {**whole}
        # In place, because other parts of the schema refer to this very definition.
        whole.clear()
        whole.update(
            title=mapping.pop("title"),
            description=mapping.pop("description", ""),
            anyOf=[text, mapping],
        )
        return schema


_FOLDER = "Where tests run, from the folder of the document; none given: there."
TestFolder = Annotated[values.Text, Field(description=_FOLDER, examples=["../tests"])]
_CODE = "A folder instead, of which each test gets a copy to work in."
TestCode = Annotated[values.Text, Field(description=_CODE, examples=["./src"])]


_PASSWORD = re.compile(r"://[^/?#@]*:[^$/?#@][^/?#@]*@")
_Address = Annotated[
    values.Text,
    check_that(
        lambda value: not (value.startswith("-") or _PASSWORD.search(value)),
        "must not begin with `-` or have a password in it, which would be kept in the store: use a "
        "key, or in `repository` $NAME, with NAME in `secrets`",
    ),
]


class Repository(Model):
    """A repository of git, cloned where tests run. A text alone is the address."""

    short_form: ClassVar[str] = "url"

    url: _Address = Field(examples=["https://git.example.org/tests.git"])
    """Its address, or a path from the folder of the document. `$NAME` is a variable of the
    environment, such as one of `secrets`.
    """
    ref: _Address = Field(default="", examples=["main", "v1.2", "$WORKSPACE_REF"])
    """A branch, a tag or a commit; none given: the default branch."""


class OutputPlace(Model):
    """Where executed notebooks are copied to. A text alone is the address."""

    short_form: ClassVar[str] = "to"

    to: _Address = Field(examples=["s3://results/nightly", "ssh://me@host/results", "results"])
    """An address that fsspec knows, or a folder, from that of the document. Each task has a folder
    there, with its executed notebooks, their pages and pictures. A copy that fails is a failure.
    """


class ComputeRef(Model):
    """Where to run, and on how many nodes. A text alone is the target."""

    short_form: ClassVar[str] = "target"

    target: values.Target = Field(default="", examples=["local", "gpu-cluster"])
    """Name of a compute in rankwise.toml; `local` is this machine. None given: that of `[defaults]`
    there, or this machine.
    """
    instance_count: values.PositiveInt | None = Field(default=None, examples=[4])
    """Number of nodes. On `local` they are virtual ones."""
    type: values.Text = Field(default="", examples=["AmlCompute", "AksCompute"])
    """Kind of the compute in Azure ML. `target` decides; where no site file has it, `AksCompute`
    and `AksCluster` mean the only Kubernetes cluster there.
    """


class RestartPolicy(Model):
    """When to start again after a failure."""

    max: values.NonNegativeInt = Field(examples=[2])
    """Most restarts, beside the first start."""
    on_exit_codes: tuple[values.ExitCode, ...] = Field(default=(), examples=[[75, 137]])
    """Exit codes after which to start again; none given: after every failure."""
    scope: Literal["gang"] = "gang"
    """What is started again: all processes together."""


Wanted = Annotated[
    tuple[values.Written, ...],
    pydantic.BeforeValidator(one_or_more),
    listed_schema({"type": ["string", "number", "boolean"]}),
]
Condition = dict[values.Name, Wanted]


class Exclusion(Model):
    """What is left out, and why."""

    when: Condition = Field(examples=[{"runtime": "torch-*", "machine": ["old-gpu", "tiny"]}])
    """Which: names with a value, one of a list, a pattern, or in sweeps a comparison."""
    reason: values.Text = Field(examples=["needs a newer driver"])
    """Why, for the report."""


class Setting(Model):
    """What is different for some."""

    when: Condition = Field(examples=[{"machine": "tiny"}, {"nodes": ">= 4"}])
    """For which, as in `exclude`."""
    timeout: values.Seconds | None = Field(default=None, examples=["10m"])
    """Their time limit."""
    environment_variables: values.Variables = Field(default={}, examples=[{"UCX_TLS": "tcp"}])
    """More variables."""


class Input(Model):
    """Something that `${{inputs.NAME}}` stands for in commands. A value alone is the value."""

    short_form: ClassVar[str] = "value"

    value: values.Written | None = Field(default=None, examples=[0.01])
    """The value itself, put in as it is written."""
    path: values.Text = Field(default="", examples=["./data", "https://example.org/iris.csv"])
    """A file or a folder, from that of the document, or an address in the web, which is fetched
    once. Names of Azure ML stand in `[inputs]` of rankwise.toml.
    """
    type: values.Text = Field(default="", examples=["uri_folder"])
    """Kind of the input in Azure ML; `uri_folder`: a folder, also around what is fetched."""
    mode: values.Text = Field(default="", examples=["ro_mount", "download"])
    """How Azure ML brings it in."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from cls.exactly_one(contents, ("value", "path"), "an input")

    @property
    def text(self) -> str:
        """What to put in for it."""
        return self.path if self.value is None else self.value


class JobOutput(Model):
    """A folder that `${{outputs.NAME}}` stands for in the command. A text alone is the path."""

    # Azure ML also has a name and a version by which it keeps it.
    model_config = pydantic.ConfigDict(extra="allow")
    short_form: ClassVar[str] = "path"

    type: values.Text = Field(default="", examples=["uri_folder"])
    """Kind of the output in Azure ML; `uri_file`: a file."""
    path: values.Text = Field(default="", examples=["out"])
    """Where it goes; none given, or an address in Azure: a folder of the run."""
    mode: values.Text = Field(default="", examples=["rw_mount"])
    """How Azure ML takes it."""


JobOutputs = dict[
    values.Variable,
    # An output may be a name alone, `model:`, which YAML takes for None.
    Annotated[JobOutput, pydantic.BeforeValidator(lambda given: {} if given is None else given)],
]


# Bounded, so that a text full of beginnings is not searched to its end from each of them.
_REFERENCE = re.compile(r"\$\{\{([^{}]{0,200})\}\}")


def references_in(text: Any) -> list[str]:
    """Return what stands in `${{…}}` in a text."""
    return [found.strip() for found in _REFERENCE.findall(text)] if isinstance(text, str) else []


def unknown_references(
    text: Any, path: tuple[str, ...], known: Mapping[str, Iterable[str]]
) -> Iterator[Conflict]:
    """Find each `${{inputs.NAME}}` in a text for which there is no such input."""
    for reference in references_in(text):
        kind, _, name = reference.partition(".")
        shown = code("${{" + reference + "}}")
        if kind not in known:
            kinds = " or ".join(f"`${{{{{each}.NAME}}}}`" for each in known)
            yield Conflict(path, f"{shown} is unknown here; there is {kinds}")
        elif name not in known[kind]:
            remedy = hint(name, known[kind], f"add it to `{kind}`")
            yield Conflict(path, f"{shown}: `{kind}` has no {code(name)}; {remedy}")


def complete(path: str, folder: Path) -> str:
    """Make a path absolute that is relative to a folder.

    Links are followed in the folders above it only: a Python knows its environment by the link
    through which it is called.
    """
    complete = folder / written.expanded(path)
    try:
        return str(complete.parent.resolve() / complete.name)
    except (OSError, RuntimeError):  # links in a circle
        return path


class ImageSource(Model):
    """A container image, or how it is built. A text alone is the name of an image."""

    short_form: ClassVar[str] = "name"

    name: values.Image = Field(default="", examples=["docker.io/library/python:3.12"])
    """Name of an image, or a `.sif` file."""
    build: values.Text = Field(default="", examples=["Dockerfile"])
    """A Dockerfile instead. The image is built on this machine when it is first needed, and again
    when the Dockerfile, a file of its context or an argument has changed.
    """
    context: values.Text = Field(default="", examples=["docker"])
    """Folder with the files that the Dockerfile copies, without what `.rankwiseignore` in it names;
    none given: that of the Dockerfile.
    """
    args: values.Variables = Field(default={}, examples=[{"MPI": "openmpi"}])
    """Values of `ARG` in the Dockerfile."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from cls.exactly_one(contents, ("name", "build"), "an image")
        for name in given_in(contents, ("context", "args")):
            if contents.get("build") is None:
                yield Conflict((name,), f"`{name}` goes with `build` only")

    def choice(self, name: str, folder: Path, engine: str = "") -> RuntimeChoice:
        """Return it as a runtime of that name; paths are relative to a folder."""
        made = RuntimeChoice(name=name, kind="container", engine=engine)
        if self.build:
            file = complete(self.build, folder)
            context = complete(self.context, folder) if self.context else str(Path(file).parent)
            arguments = tuple(f"{name}={value}" for name, value in self.args.items())
            return dataclasses.replace(made, build=file, context=context, build_args=arguments)
        # A name such as `python:3.12` is one of a registry, and must not become a path.
        is_file = self.name.endswith(".sif") or self.name.startswith((".", "/", "~"))
        image = complete(self.name, folder) if is_file else self.name
        return dataclasses.replace(made, image=image)


def runtime_choice(said: Any, name: str, folder: Path) -> RuntimeChoice:
    """Return what a table or a part of a document means by `python`, `requirements` or `image`."""
    # What is given decides, not what has a value: `requirements: []` is an empty environment.
    given = said.model_fields_set
    if "requirements" in given:
        return RuntimeChoice(
            name=name, kind="uv", python=said.python, requirements=said.requirements
        )
    if "python" in given:
        return RuntimeChoice(name=name, kind="python", python=complete(said.python, folder))
    if "image" in given:
        image: ImageSource = said.image
        return image.choice(name, folder, said.engine)
    return RuntimeChoice(name=name)


VERSION = re.compile(r"\d+(\.\d+){0,2}t?")
"""A version of Python."""


def runtime_conflicts(
    model: type[Model], contents: Mapping[str, Any], ways: Sequence[str]
) -> Iterator[Conflict]:
    """Find out whether contents say exactly one runtime; beside packages, `python` is a version."""
    python = contents.get("python")
    packages = given_in(contents, ("requirements", "lock"))
    # Beside packages `python` is a version, which uv finds or installs; alone it is a path.
    is_alone = python is not None and not packages
    # Then it is one of the ways to say what the runtime is.
    others = ways if packages else ("python", *ways)
    yield from model.exactly_one(contents, others, "a runtime")
    if contents.get("engine") is not None and contents.get("image") is None:
        yield Conflict(("engine",), "`engine` goes with `image` only")
    if contents.get("engine") == "apptainer" and mapping_in(contents, "image").get("build"):
        yield Conflict(("engine",), "apptainer builds no image from a Dockerfile; podman does")
    if isinstance(python, str) and is_alone == bool(VERSION.fullmatch(python)):
        yield Conflict(
            ("python",),
            "a version alone is no runtime: add `requirements`, which may be empty, or name a path"
            if is_alone
            else f"`python` must be a version such as 3.12 here, not {code(python)}",
        )
    yield from _requirements(contents, has_lock="lock" in ways)


def _requirements(contents: Mapping[str, Any], *, has_lock: bool) -> Iterator[Conflict]:
    for index, one in enumerate(written.entries_in(contents, "requirements")):
        if not isinstance(one, str):
            continue
        path = ("requirements", index)
        if one.startswith("-") or "\n" in one:
            remedy = "put it into a file, as `lock`" if has_lock else "list packages only"
            yield Conflict(path, f"{code(one)} is an option: {remedy}")
        elif one.startswith((".", "/", "~")):
            # What is made of it is kept, and would not follow the changes in the folder.
            why = f"{code(one)} is a path: make an environment for it, and give its `python`"
            yield Conflict(path, why)
