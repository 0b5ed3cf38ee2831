"""Consoles: colours, width and room, tables, and sections that CI services fold."""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TextIO

from rankwise.safe_text import clean, clip

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

# Nobody wraps lines for a file or a pipe.
_UNLIMITED_WIDTH = 10_000
_NARROW = 60


def has_colours(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that shows colours, and the user wants them."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def make_console(*, to_stderr: bool = False) -> Console:
    """Return a console for texts that hold people's own words: no markup, no highlighting."""
    from rich.console import Console
    from rich.segment import Segment

    class OpenConsole(Console):
        """Shows only text, and says that nobody reads any more where rich would leave."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            # What processes wrote is in reasons and names, too; rich lets escape codes through.
            for segment in super().render(renderable, options):
                text, style, control = segment
                is_safe = control or text.strip("\n").isprintable()
                yield segment if is_safe else Segment(clean(text, keep_colours=False), style)

    stream = sys.stderr if to_stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _UNLIMITED_WIDTH
    return OpenConsole(
        file=stream,
        width=width,
        # Rich takes CI services and FORCE_COLOR for terminals. Who wants no colours gets no escape
        # codes at all: no bold letters, and no line that is written over.
        force_terminal=has_colours(stream),
        markup=False,
        emoji=False,
        highlight=False,
    )


def is_narrow(console: Console) -> bool:
    """Return whether there is no room for tables."""
    return console.width < _NARROW


_LONGEST_TITLE = 160
# What a line is erased with, before and after GitLab's own words: they are not to be seen.
_ERASED = "\x1b[0K"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_.-]+")


class Sections:
    """How a log is divided; not at all where nobody folds it: a terminal, a file, another CI."""

    are_folded = False
    """Whether what is in a section is out of the way of those who do not want to read it."""

    def inert(self) -> AbstractContextManager[None]:
        """Have the CI take what is written meanwhile for text."""
        return contextlib.nullcontext()

    def section(self, title: str) -> AbstractContextManager[None]:
        """Put what is written meanwhile under a title; it is taken for text."""
        del title
        return contextlib.nullcontext()


class GitHubSections(Sections):
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


class GitLabSections(Sections):
    """Collapsed sections in the log of GitLab CI, which obeys only what cannot be shown."""

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
    """Return what the CI understands that reads a stream; terminals and files are for people."""
    if not stream.isatty() and not _is_file(stream):
        if environment.get("GITHUB_ACTIONS") == "true":
            return GitHubSections(stream)
        if environment.get("GITLAB_CI") == "true":
            return GitLabSections(stream)
    return Sections()


def _is_file(stream: TextIO) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False  # It is no file of the system's.


def _write(stream: TextIO, text: str) -> None:
    """Write, unless nobody reads any more: whoever writes the next line hears of that."""
    with contextlib.suppress(OSError):
        stream.write(text)
        stream.flush()


def plain_title(text: str) -> str:
    """Make one line of a text, without anything that a terminal or a CI would obey."""
    line = " ".join(clean(text.replace("\r", "\n"), keep_colours=False).split())
    return clip(line.replace("##[", "## ["), _LONGEST_TITLE)


def github_title(text: str) -> str:
    """Make a title that GitHub, which reads %0A as the end of a line, shows as it is."""
    return plain_title(text).replace("%", "%25")


def inert_output() -> AbstractContextManager[None]:
    """Have the CI take for text what is written to stdout meanwhile."""
    return sections_for(sys.stdout, os.environ).inert()


# Where there is no window: files and pipes are read by people whose windows have so many.
_USUAL_LINES = 24
# In a window that is lower than this, something scrolls away whatever is done.
_LEAST_LINES = 12


def room_on(console: Console) -> int:
    """Return how many lines can be read at once: those of the window, but for the prompt's."""
    has_window = console.is_terminal or console.file.isatty()
    lines = console.height if has_window else _USUAL_LINES
    return max(_LEAST_LINES, lines) - 1


def height_of(console: Console, show: Callable[[], None]) -> int:
    """Return how many lines of the window it takes to show something; nothing is shown."""
    from rich.cells import cell_len

    with console.capture() as captured:
        show()
    lines = [clean(line, keep_colours=False) for line in captured.get().splitlines()]
    return sum(max(1, math.ceil(cell_len(line) / console.width)) for line in lines)


Cell = tuple[str, str]
"""A text and its style."""


def show_rows(
    console: Console,
    rows: Sequence[Sequence[Cell]],
    *,
    is_indented: bool = True,
    is_cut: bool = False,
) -> None:
    """Show rows in columns; where the window is narrow, what comes last on a line of its own.

    What is too long is continued on lines below, or cut.
    """
    if is_narrow(console):
        for row in rows:
            _show_narrow(console, row, 2 * is_indented, is_cut=is_cut)
    elif rows:
        console.print(_table(rows, is_indented=is_indented, is_cut=is_cut))


def _table(rows: Sequence[Sequence[Cell]], *, is_indented: bool, is_cut: bool) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=is_indented, padding=(0, 0, 0, 2))
    used = [number for number in range(len(rows[0])) if any(row[number][0] for row in rows)]
    if is_cut:
        # The last one has what can be done without: it is the only one that gets narrower.
        for number in used:
            table.add_column(no_wrap=number != used[-1])
    for row in rows:
        cells = [styled(row[number]) for number in used]
        if is_cut:
            cells[-1].no_wrap, cells[-1].overflow = True, "ellipsis"
        table.add_row(*cells)
    return table


def _show_narrow(console: Console, row: Sequence[Cell], indent: int, *, is_cut: bool) -> None:
    from rich.padding import Padding

    cells = [styled(cell) for cell in row if cell[0]]
    for texts, more in ((cells[:3], 0), (cells[3:], 2)):
        if texts:
            line = styled("  ").join(texts)
            if is_cut:
                line.no_wrap, line.overflow = True, "ellipsis"
            console.print(Padding(line, (0, 0, 0, indent + more)))


def styled(*parts: str | Cell) -> Text:
    """Put texts together, those in pairs with their style."""
    # Late: rich takes longer to load than most commands take.
    from rich.text import Text

    return Text.assemble(*parts)


def show_notices(console: Console, notices: Iterable[str]) -> None:
    """Show what people must know, before anything starts."""
    for notice in notices:
        console.print(styled(("note: ", "yellow"), notice))


def show_next(console: Console, steps: Mapping[str, str]) -> None:
    """Show commands to go on with."""
    width = max(map(len, steps), default=0)
    for what, command in steps.items():
        console.print(f"  {what:{width}}  {command}", soft_wrap=True, style="dim")
