"""The steps of pipelines that rankwise brings along: checkout, runtime, deploy and the like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema

from rankwise.spec.base import Clash, Model
from rankwise.spec.mistakes import quoted
from rankwise.spec.values import Count, Seconds, Text, wrong
from rankwise.spec.written import Scalar


def _flag(value: Any) -> bool:
    found = value.value if isinstance(value, Scalar) else value
    if not isinstance(found, bool):
        raise wrong(f"must be `true` or `false`, not {quoted(value)}")
    return found


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Flag = Annotated[bool, BeforeValidator(_flag), WithJsonSchema({"type": "boolean"})]
Texts = Annotated[
    tuple[Text, ...],
    BeforeValidator(_as_list),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
"""One text, or a list of them."""


class Checkout(Model):
    """Gets a repository of git. A text alone is the repository."""

    short_form: ClassVar[str] = "repository"
    hints: ClassVar[Mapping[str, str]] = {
        "url": "did you mean `repository`?",
        "branch": "did you mean `ref`?",
        "tag": "did you mean `ref`?",
        "path": "did you mean `into`?",
    }

    repository: Annotated[
        Text,
        Field(
            description="Its address, or a folder.", examples=["https://github.com/mpi4py/mpi4py"]
        ),
    ]
    ref: Annotated[
        Text,
        Field(
            description="Branch, tag or commit; none given: what the repository says.",
            examples=["4.0.1"],
        ),
    ] = ""
    into: Annotated[
        Text,
        Field(
            description="Folder in the workspace; none given: the repository's name.",
            examples=["mpi4py"],
        ),
    ] = ""
    clean: Annotated[
        Flag,
        Field(
            description=(
                "Whether to throw away what was changed there by hand or built. Otherwise a "
                "changed file is a mistake, and what is not in git stays."
            )
        ),
    ] = False


class MakeRuntime(Model):
    """Makes a virtual environment, which all later stages work in. A text alone is the folder."""

    short_form: ClassVar[str] = "into"

    into: Annotated[Text, Field(description="Folder in the workspace.", examples=[".venv"])] = (
        ".venv"
    )
    python: Annotated[
        Text,
        Field(
            description="The Python to make it from; none given: that of rankwise.",
            examples=["/opt/cray/pe/python/3.11/bin/python3", "python3.12"],
        ),
    ] = ""
    packages: Annotated[
        Texts, Field(description="What to install.", examples=[["cython", "numpy>=2"]])
    ] = ()
    requirements: Annotated[
        Texts,
        Field(description="Files that say what to install.", examples=["requirements.txt"]),
    ] = ()
    site_packages: Annotated[
        Flag,
        Field(description="Whether packages of that Python are seen, such as the site's numpy."),
    ] = False


class Deploy(Model):
    """Copies a build to where it stays, all of it or nothing."""

    hints: ClassVar[Mapping[str, str]] = {
        "source": "did you mean `from`?",
        "target": "did you mean `to`?",
    }

    source: Annotated[
        Text, Field(alias="from", description="Folder of the build.", examples=["build/venv"])
    ]
    to: Annotated[
        Text,
        Field(
            description="Folder of the releases; `current` in it leads to the newest one.",
            examples=["$RELEASE_ROOT"],
        ),
    ]
    name: Annotated[
        Text,
        Field(
            description="Name of the release; none given: the run's id.",
            examples=["4.0.1", "$VERSION"],
        ),
    ] = ""
    keep: Annotated[
        Count, Field(description="How many releases stay; older ones are removed.", examples=[5])
    ] = 3


class Report(Model):
    """Writes down how the run stands. A text alone is the file."""

    short_form: ClassVar[str] = "to"

    to: Annotated[
        Text,
        Field(
            description=(
                "The file. Its ending says what it gets: `.html`, `.pdf`, `.json`, else Markdown."
            ),
            examples=["summary.md", "report.html"],
        ),
    ]


class Notify(Model):
    """Tells somebody how the run stands. A text alone is a command."""

    short_form: ClassVar[str] = "run"

    to: Annotated[
        Texts,
        Field(
            description="Whom to tell by mail or in a chat: names in rankwise.toml.",
            examples=["team"],
        ),
    ] = ()
    run: Annotated[
        Text,
        Field(
            description="A line for the shell, which has the message as its input.",
            examples=["mail -s 'nightly build' me@example.org"],
        ),
    ] = ""
    file: Annotated[
        Text, Field(description="A file to which the message is added.", examples=["news.txt"])
    ] = ""

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        if all(contents.get(name) is None for name in ("to", "run", "file")):
            yield Clash((), "somebody must be told: give a `to`, a `run` or a `file`")


class Wait(Model):
    """Submits something to a batch system that rankwise does not know, and waits for its end."""

    submit: Annotated[
        Text,
        Field(description="The line that submits it.", examples=["qsub -A proj sanity.sh"]),
    ]
    state: Annotated[
        Text,
        Field(
            description="The line that tells its state; $JOB is its number.",
            examples=["qstat --header State $JOB"],
        ),
    ]
    job: Annotated[
        Text,
        Field(
            description="Where in what `submit` says the number is; a group in it counts alone.",
            examples=["[0-9]+"],
        ),
    ] = "[0-9]+"
    done: Annotated[
        Text, Field(description="What its state looks like when all is well.", examples=["exiting"])
    ]
    failed: Annotated[
        Text, Field(description="What it looks like when it has failed.", examples=["FAILED"])
    ] = ""
    gone: Annotated[
        Flag,
        Field(description="Whether a state that cannot be told any more means that it is done."),
    ] = False
    cancel: Annotated[
        Text,
        Field(description="The line that ends it when the stage is ended.", examples=["qdel $JOB"]),
    ] = ""
    interval: Annotated[
        Seconds,
        Field(description="How long to wait between two looks at first; it grows to ten times."),
    ] = 5.0


class Cache(Model):
    """Folders that are kept from run to run."""

    key: Annotated[
        Texts,
        Field(
            description="Files whose contents say which version is wanted.",
            examples=[["pyproject.toml", "requirements*.txt"]],
        ),
    ]
    paths: Annotated[
        Texts,
        Field(description="What is put back before, and kept afterwards.", examples=[[".venv"]]),
    ]
