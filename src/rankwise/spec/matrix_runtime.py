"""What the tests of a matrix run in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from rankwise.spec.base import Clash, Model
from rankwise.spec.matrix_tests import Features, MatrixTest, Patterns
from rankwise.spec.mistakes import code
from rankwise.spec.parts import Variables
from rankwise.spec.values import Text, Truth, Written

WAYS = ("runtime", "requirements", "lock", "image", "modules")
"""What says what a runtime is; only one may."""
VERSION = re.compile(r"\d+(\.\d+){0,2}t?")
_LISTED = "runtime, python, requirements, lock, image or modules"


def _words(given: Any) -> Any:
    return given.split() if isinstance(given, str) else given


class MatrixRuntime(Model):
    """A Python with its packages, an image or modules. A text alone is a name of rankwise.toml."""

    short_form: ClassVar[str] = "runtime"
    hints: ClassVar[Mapping[str, str]] = {
        "environment": "did you mean `runtime`?",
        "packages": "did you mean `requirements`?",
        "requirements_file": "did you mean `lock`?",
        "container": "did you mean `image`?",
        "env": "did you mean `environment_variables`?",
        "features": "did you mean `needs`?",
    }

    runtime: Annotated[
        Text,
        Field(
            description="Name of a runtime in rankwise.toml; `current` is the Python of rankwise.",
            examples=["current"],
        ),
    ] = ""
    python: Annotated[
        Written,
        Field(
            description="Version of Python, beside `requirements` or `lock`; alone: an interpreter "
            "or the folder of a virtual environment.",
            examples=["3.12", "./venv"],
        ),
    ] = ""
    requirements: Annotated[
        tuple[Text, ...],
        Field(description="Packages to install, as for pip.", examples=[["numpy==1.26.4"]]),
    ] = ()
    lock: Annotated[
        Text,
        Field(
            description="A file with them: pip's requirements, or a pylock.toml. What is in it "
            "counts, not what it is called.",
            examples=["requirements.lock"],
        ),
    ] = ""
    image: Annotated[
        Text, Field(description="A container image.", examples=["docker.io/library/python:3.12"])
    ] = ""
    engine: Annotated[
        Literal["docker", "podman", "apptainer", ""],
        Field(description="What runs the image; none given: what is there."),
    ] = ""
    modules: Annotated[
        tuple[Text, ...],
        BeforeValidator(_words),
        WithJsonSchema(
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
        ),
        Field(description="Environment modules to load.", examples=[["gcc/13", "python/3.12"]]),
    ] = ()
    tests: Annotated[
        tuple[MatrixTest, ...],
        Field(description="Tests of this runtime alone, after those of all."),
    ] = ()
    needs: Annotated[
        Features,
        Field(
            description="What a machine must have for it, or with `-` must not.",
            examples=[["gpu"]],
        ),
    ] = ()
    machines: Annotated[
        Patterns,
        Field(description="Names or patterns of the machines for it; none given: all."),
    ] = ()
    environment_variables: Annotated[
        Variables, Field(description="For all tests in it.", examples=[{"MPLBACKEND": "agg"}])
    ] = Field(default_factory=dict)
    soft_fail: Annotated[
        Truth, Field(description="Whether the run may pass though tests have failed in it.")
    ] = False
    skip: Annotated[
        Text, Field(description="Why nothing is run in it.", examples=["not built yet"])
    ] = ""

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        given = [way for way in WAYS if contents.get(way) is not None]
        if contents.get("python") is not None and not set(given) & {"requirements", "lock"}:
            given.insert(0, "python")
        if not given:
            yield Clash((), f"a runtime needs one of {_LISTED}")
        if len(given) > 1:
            yield Clash((given[1],), f"a runtime has {code(given[0])} or {code(given[1])}")
        if contents.get("engine") is not None and contents.get("image") is None:
            yield Clash(("engine",), "`engine` goes with `image` only")
        yield from _python(contents, is_path="python" in given)
        yield from _requirements(contents.get("requirements"))


def _python(contents: Mapping[str, Any], *, is_path: bool) -> Iterator[Clash]:
    python = contents.get("python")
    if not isinstance(python, str):
        return
    if is_path and VERSION.fullmatch(python):
        yield Clash(
            ("python",), "a version alone is no runtime: add `requirements: []`, or name a path"
        )
    elif not is_path and not VERSION.fullmatch(python):
        yield Clash(("python",), f"must be a version such as 3.12 here, not {code(python)}")


def _requirements(listed: Any) -> Iterator[Clash]:
    for index, one in enumerate(listed if isinstance(listed, list) else ()):
        if not isinstance(one, str):
            continue
        if one.startswith("-"):
            yield Clash(
                ("requirements", index), f"{code(one)} is an option: put it into a file, as `lock`"
            )
        elif one.startswith((".", "/", "~")):
            # What is made of it is kept, and would not follow the changes in the folder.
            yield Clash(
                ("requirements", index),
                f"{code(one)} is a path: make an environment for it, and give its `python`",
            )
