"""Sections of a CI's log that open when somebody wants to read them, and text that stays text.

A log is also how a CI is told what to do: GitHub obeys lines that begin with `::`, and words such
as `##[...]` anywhere in a line. Whatever processes write is therefore shown between two lines
that tell GitHub not to listen; what ends that is a word that they cannot know.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TextIO

from rankwise.report.terminal import clean

_LONGEST_TITLE = 160
# What a line is erased with, before and after GitLab's own words: they are not to be seen.
_ERASED = "\x1b[0K"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_.-]+")


class Sections(Protocol):
    """How a log is divided."""

    are_folded: bool
    """Whether what is in a section is out of the way of those who do not want to read it."""

    def inert(self) -> AbstractContextManager[None]:
        """Have the CI take what is written meanwhile for text."""

    def section(self, title: str) -> AbstractContextManager[None]:
        """Put what is written meanwhile under a title; it is taken for text."""


class OneText:
    """A log that nobody folds: a terminal, a file, another CI."""

    are_folded = False

    def inert(self) -> AbstractContextManager[None]:
        """Change nothing."""
        return contextlib.nullcontext()

    def section(self, title: str) -> AbstractContextManager[None]:
        """Change nothing."""
        del title
        return contextlib.nullcontext()


class GitHubSections:
    """Groups in the log of GitHub Actions."""

    are_folded = True

    def __init__(
        self, stream: TextIO, *, new_token: Callable[[], str] = secrets.token_urlsafe
    ) -> None:
        self._stream = stream
        self._new_token = new_token

    @contextlib.contextmanager
    def inert(self) -> Iterator[None]:
        """Have GitHub obey nothing until a word comes that nobody else knows."""
        token = f"rankwise-{self._new_token()}"
        self._say(f"::stop-commands::{token}")
        try:
            yield
        finally:
            self._say(f"::{token}::")

    @contextlib.contextmanager
    def section(self, title: str) -> Iterator[None]:
        """Make a group."""
        self._say(f"::group::{github_title(title)}")
        try:
            with self.inert():
                yield
        finally:
            self._say("::endgroup::")

    def _say(self, line: str) -> None:
        _write(self._stream, f"{line}\n")


class GitLabSections:
    """Collapsed sections in the log of GitLab CI."""

    are_folded = True

    def __init__(
        self,
        stream: TextIO,
        *,
        clock: Callable[[], float] = time.time,
        new_token: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._prefix = f"rankwise_{new_token()}"
        self._count = 0

    def inert(self) -> AbstractContextManager[None]:
        """Change nothing: what GitLab obeys needs characters that are never shown."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def section(self, title: str) -> Iterator[None]:
        """Make a section; its name is not used twice in a job."""
        self._count += 1
        name = _NOT_IN_NAMES.sub("_", f"{self._prefix}_{self._count}")
        self._say(f"section_start:{int(self._clock())}:{name}[collapsed=true]", plain_title(title))
        try:
            yield
        finally:
            self._say(f"section_end:{int(self._clock())}:{name}", "")

    def _say(self, words: str, title: str) -> None:
        _write(self._stream, f"{_ERASED}{words}\r{_ERASED}{title}\n")


def sections_for(stream: TextIO, environment: Mapping[str, str]) -> Sections:
    """Give what the CI understands that reads a stream; a terminal is read by a person."""
    if stream.isatty():
        return OneText()
    if environment.get("GITHUB_ACTIONS") == "true":
        return GitHubSections(stream)
    if environment.get("GITLAB_CI") == "true":
        return GitLabSections(stream)
    return OneText()


def _write(stream: TextIO, text: str) -> None:
    """Write, unless nobody reads any more: whoever writes the next line hears of that."""
    with contextlib.suppress(OSError):
        stream.write(text)
        stream.flush()


def plain_title(text: str) -> str:
    """Make one line of a text, without anything that a terminal or a CI would obey."""
    line = " ".join(clean(text.replace("\r", "\n"), keep_colours=False).split())
    line = line.replace("##[", "## [")
    return line if len(line) <= _LONGEST_TITLE else f"{line[: _LONGEST_TITLE - 1]}…"


def github_title(text: str) -> str:
    """Make a title that GitHub, which reads %0A as the end of a line, shows as it is."""
    return plain_title(text).replace("%", "%25")
