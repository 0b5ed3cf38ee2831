"""The steps of pipelines that rankwise brings along: checkout, runtime, deploy and the like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from rankwise.documents.common import Conflict, Model
from rankwise.documents.values import Bool, Patterns, PositiveInt, Seconds, Text, Texts
from rankwise.documents.written import given_in


class Checkout(Model):
    """Gets a repository of git. A text alone is the repository."""

    short_form: ClassVar[str] = "repository"

    repository: Text = Field(examples=["https://github.com/mpi4py/mpi4py"])
    """Its address, or a folder."""
    ref: Text = Field(default="", examples=["4.0.1"])
    """Branch, tag or commit; none given: what the repository says."""
    into: Text = Field(default="", examples=["mpi4py"])
    """Folder in the workspace; none given: the repository's name."""
    clean: Bool = False
    """Whether to throw away what was changed there by hand or built. Otherwise a changed file is an
    error, and files that are not in git stay.
    """


class MakeRuntime(Model):
    """Makes a virtual environment, which all later stages work in. A text alone is the folder."""

    short_form: ClassVar[str] = "into"

    into: Text = Field(default=".venv", examples=[".venv"])
    """Folder in the workspace."""
    python: Text = Field(
        default="", examples=["/opt/cray/pe/python/3.11/bin/python3", "python3.12"]
    )
    """The Python to make it from; none given: that of rankwise."""
    packages: Texts = Field(default=(), examples=[["cython", "numpy>=2"]])
    """What to install."""
    requirements: Texts = Field(default=(), examples=["requirements.txt"])
    """Files that say what to install."""
    site_packages: Bool = False
    """Whether packages of that Python are seen, such as the site's numpy."""


class Deploy(Model):
    """Copies a build to where it stays, all of it or nothing."""

    source: Text = Field(alias="from", examples=["build/venv"])
    """Folder of the build."""
    to: Text = Field(examples=["$RELEASE_ROOT"])
    """Folder of the releases; `current` in it leads to the newest one."""
    name: Text = Field(default="", examples=["4.0.1", "$VERSION"])
    """Name of the release; none given: the run's id."""
    keep: PositiveInt = Field(default=3, examples=[5])
    """How many releases stay; older ones are removed."""


class Report(Model):
    """Writes a report of the run up to here. A text alone is the file."""

    short_form: ClassVar[str] = "to"

    to: Text = Field(examples=["summary.md", "report.html"])
    """The file. Its ending says what it gets: `.html`, `.pdf`, `.json`, else Markdown."""


class Notify(Model):
    """Sends a message with the state of the run. A text alone is a command."""

    short_form: ClassVar[str] = "run"

    to: Texts = Field(default=(), examples=["team"])
    """Recipients of mail or of a chat: names in rankwise.toml."""
    run: Text = Field(default="", examples=["mail -s 'nightly build' me@example.org"])
    """A line for the shell, which has the message as its input."""
    file: Text = Field(default="", examples=["news.txt"])
    """A file to which the message is added."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        if not given_in(contents, ("to", "run", "file")):
            yield Conflict((), "no recipient: add `to`, `run` or `file`")


class Wait(Model):
    """Submits something to a batch system that rankwise does not know, and waits for its end."""

    submit: Text = Field(examples=["qsub -A proj sanity.sh"])
    """The line that submits it."""
    state: Text = Field(examples=["qstat --header State $JOB"])
    """The line that tells its state; $JOB is its number."""
    job: Text = Field(default="[0-9]+", examples=["[0-9]+"])
    """Where in what `submit` says the number is; a group in it counts alone."""
    done: Text = Field(examples=["exiting"])
    """What its state looks like after success."""
    failed: Text = Field(default="", examples=["FAILED"])
    """What it looks like when it has failed."""
    gone: Bool = False
    """Whether a job whose state is not known any more is done."""
    cancel: Text = Field(default="", examples=["qdel $JOB"])
    """The line that ends it when the stage is ended."""
    interval: Seconds = 5.0
    """How long to wait between two questions at first; it grows to ten times."""


class Cache(Model):
    """Folders that are kept from run to run."""

    key: Patterns = Field(examples=[["pyproject.toml", "requirements*.txt"]])
    """Files whose contents say which version is wanted."""
    paths: Texts = Field(examples=[[".venv"]])
    """What is put back before, and kept afterwards."""
