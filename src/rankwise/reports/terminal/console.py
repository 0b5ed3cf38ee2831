"""Consoles: colours, width and room, tables, and sections that CI services fold."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TextIO

from rankwise.safe_text import clean, clip, clip_apart

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

# Lines are not wrapped for a file or a pipe.
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
        """Shows only text, and raises at the end of a pipe, where rich would end the process."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            # What processes wrote is in reasons and names, too; rich lets escape codes through.
            for segment in super().render(renderable, options):
                text, style, control = segment
                is_safe = control or text.strip("\n").isprintable()
                yield segment if is_safe else Segment(clean(text), style)

    stream = sys.stderr if to_stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _UNLIMITED_WIDTH
    return OpenConsole(
        file=stream,
        width=width,
        # Rich takes CI services and FORCE_COLOR for terminals. Without colours there are no escape
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


class Sections:
    """How a log is divided; not at all where it is not folded: a terminal, a file, another CI."""

    are_folded = False
    """Whether what is in a section is hidden until a reader opens it."""

    def inert(self) -> AbstractContextManager[None]:
        """Have the CI take what is written meanwhile for text."""
        return contextlib.nullcontext()

    def section(self, title: str) -> AbstractContextManager[None]:
        """Put what is written meanwhile under a title; it is taken for text."""
        del title
        return contextlib.nullcontext()


class _FoldedSections(Sections):
    are_folded = True

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def _write(self, line: str) -> None:
        """Write, unless the reader is gone: the writer of the next line is told."""
        with contextlib.suppress(OSError):
            self._stream.write(f"{line}\n")
            self._stream.flush()


class GitHubSections(_FoldedSections):
    """Groups in the log of GitHub Actions."""

    @contextlib.contextmanager
    def inert(self) -> Iterator[None]:
        """Have GitHub obey nothing until a word comes that the output cannot know."""
        token = f"rankwise-{secrets.token_urlsafe()}"
        self._write(f"::stop-commands::{token}")
        try:
            yield
        finally:
            self._write(f"::{token}::")

    @contextlib.contextmanager
    def section(self, title: str) -> Iterator[None]:
        """Make a group."""
        self._write(f"::group::{github_title(title)}")
        try:
            with self.inert():
                yield
        finally:
            # Also after an error: what follows is in no group.
            self._write("::endgroup::")


class GitLabSections(_FoldedSections):
    """Collapsed sections in the log of GitLab CI, which obeys only what cannot be shown."""

    @contextlib.contextmanager
    def section(self, title: str) -> Iterator[None]:
        """Make a section; its name is not used twice in a job."""
        # GitLab tells sections apart by their names alone.
        name = f"rankwise_{secrets.token_hex(8)}"
        self._say(f"section_start:{int(time.time())}:{name}[collapsed=true]", plain_title(title))
        try:
            yield
        finally:
            self._say(f"section_end:{int(time.time())}:{name}", "")

    def _say(self, words: str, title: str) -> None:
        self._write(f"{_ERASED}{words}\r{_ERASED}{title}")


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


def plain_title(text: str) -> str:
    """Make one line of a text, without anything that a terminal or a CI would obey."""
    line = " ".join(clean(text.replace("\r", "\n")).split())
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
    lines = [clean(line) for line in captured.get().splitlines()]
    return sum(max(1, math.ceil(cell_len(line) / console.width)) for line in lines)


Cell = tuple[str, str]
"""A text and its style."""
# The last column keeps so much before others are cut.
_LEAST_LETTERS = 16


def show_rows(
    console: Console,
    rows: Sequence[Sequence[Cell]],
    *,
    is_indented: bool = True,
    is_cut: bool = False,
) -> None:
    """Show rows in columns, none wider than the window.

    Where there is no room, cells are cut, or else what comes last is on a line of its own.
    """
    from rich.cells import cell_len
    from rich.padding import Padding

    columns = [column for column in zip(*rows, strict=True) if any(text for text, _ in column)]
    widths = [max(cell_len(text) for text, _ in column) for column in columns]
    indent = 2 * is_indented
    room = console.width - indent - 2 * (len(widths) - 1)
    if is_cut and not is_narrow(console):
        columns = _cut_columns(columns, widths, room)
    # So many columns are beside each other: all of them, or as many of the first as fit.
    counts = [3, 2, 1] if is_narrow(console) else [len(columns), 3, 2, 1]
    first = next((count for count in counts if sum(widths[:count]) <= room), 1 if not is_cut else 3)
    is_aligned = sum(widths[:first]) <= room
    for row in zip(*columns, strict=True):
        line = styled()
        for (text, style), width in zip(row[:first], widths, strict=False):
            gap = 2 + (width - cell_len(text)) * is_aligned
            line.append(text, style).append(" " * gap * bool(text or is_aligned))
        line.rstrip()
        below = styled("  ").join(styled(cell) for cell in row[first:] if cell[0])
        for one, left in ((line, indent), (below, indent + 2)):
            if one:
                one.no_wrap, one.overflow = is_cut, "ellipsis" if is_cut else None
                console.print(Padding(one, (0, 0, 0, left), expand=False))


def _cut_columns(
    columns: Sequence[tuple[Cell, ...]], widths: list[int], room: int
) -> list[tuple[Cell, ...]]:
    """Cut cells so that columns fit; the last one has what can be done without."""
    if sum(widths) <= room:
        return list(columns)
    widths[-1] = min(widths[-1], max(_LEAST_LETTERS, widths[-1] + room - sum(widths)))
    while sum(widths) > room:
        widths[widths.index(max(widths))] -= 1
    cut = []
    for column, width in zip(columns, widths, strict=True):
        texts = list(dict.fromkeys(text for text, _ in column))
        shown = dict(zip(texts, clip_apart(texts, width), strict=True))
        cut.append(tuple((shown[text], style) for text, style in column))
    return cut


def first_line(reason: str) -> str:
    """Return the first line of a reason, for a row; `explain` has the rest."""
    line, _, more = clean(reason).partition("\n")
    # Before what it quotes, it ends with a colon.
    return line.rstrip(":") if more else line


def styled(*parts: str | Cell) -> Text:
    """Put texts together, those in pairs with their style."""
    # Late: rich takes longer to load than most commands take.
    from rich.text import Text

    return Text.assemble(*parts)


def show_notices(console: Console, notices: Iterable[str]) -> None:
    """Show what people must know, before anything starts."""
    for notice in notices:
        console.print(styled(("note: ", "yellow"), notice))


def show_sentence(console: Console, start: str, words: str) -> None:
    """Show words behind the start of a line; lines of a window end between words."""
    import textwrap

    blank = " " * len(start)
    width = max(console.width, 2 * len(start))
    room = width - len(start)
    lines = textwrap.wrap(words, room, break_long_words=False, break_on_hyphens=False)
    for number, line in enumerate(lines or [""]):
        console.print(f"{blank if number else start}{line}", soft_wrap=True)


def show_next(console: Console, steps: Mapping[str, str]) -> None:
    """Show commands to go on with."""
    width = max(map(len, steps), default=0)
    for what, command in steps.items():
        console.print(f"  {what:{width}}  {command}", soft_wrap=True, style="dim")
