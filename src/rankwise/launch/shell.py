"""Lines for the shell, read in place: words, commands, and what stands before a program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

_OPERATOR = re.compile(r"<<<|<<|>>|<&|>&|<>|>\||&>>|&>|&&|\|\||\|&|;;|[\n;&|()<>]")
_ORDINARY = re.compile(r"[^ \t\n'\"\\$`;&|()<>]+")
_BLANKS = re.compile(r"(?:[ \t]|\\\n)+")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9?#@*!$-])", re.ASCII)
# With one of these, which commands run and how often is known only to a shell.
_RESERVED = frozenset(
    {
        *("if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done"),
        *("case", "esac", "select", "function", "coproc", "{", "}", "!", "[["),
    }
)
# Deeper than any real line, and far less than Python's own limit of recursion.
_DEEPEST = 40


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a line, from `start` to `end` of its text."""

    start: int
    end: int
    raw: str
    """As it is written."""
    text: str | None
    """What the program gets; None: only the shell can tell."""
    is_plain: bool
    """Whether it is written without quotes, backslashes and expansions."""
    may_split: bool = False
    """Whether the shell may make several words of it, or none."""


@dataclass(frozen=True, slots=True)
class Simple:
    """One command with its arguments; redirections are not among them."""

    words: tuple[Word, ...]
    after: str = ""
    """The operator that ends it."""


@dataclass(frozen=True, slots=True)
class ShellLine:
    """A line in its parts."""

    commands: tuple[Simple, ...]
    is_redirected: bool = False
    """Whether any output goes into a file, or a group of commands is handled as one."""
    is_compound: bool = False
    """Whether it has loops, conditions or functions: how often a command runs is then not known."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Text that goes in the place of what stands from `start` to `end`."""

    start: int
    end: int
    text: str = ""


def apply(line: str, edits: Iterable[Edit]) -> str:
    """Make the changes, and no other; one within the place of another is left out."""
    parts, done = [], 0
    # Insertions come before replacements at the same place, and longer replacements before others.
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end > edit.start, -edit.end)):
        if edit.start >= done:
            parts += [line[done : edit.start], edit.text]
            done = edit.end
    return "".join([*parts, line[done:]])


def remove(line: str, start: int, end: int) -> Edit:
    """Take something out, with the blanks after it."""
    blanks = _BLANKS.match(line, end)
    return Edit(start, blanks.end() if blanks else end)


def in_short(text: str, most: int = 70) -> str:
    """Show a piece of a line within a sentence."""
    joined = " ".join(text.replace("\\\n", " ").split())
    return joined if len(joined) <= most else f"{joined[: most - 1]}…"


def read(line: str) -> ShellLine | None:
    """Take a line apart; None if it is beyond this reader (here-documents, open quotes)."""
    try:
        return _Reader(line).line()
    except _Unreadable:
        return None


class _Unreadable(Exception):
    """The line cannot be taken apart."""


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def line(self) -> ShellLine:
        commands: list[Simple] = []
        words: list[Word] = []
        is_redirected = False
        while (token := self._next()) is not None:
            if isinstance(token, Word):
                words.append(token)
            elif "<" in token or ">" in token:
                is_redirected |= ">" in token
                # Text that follows on other lines, or a command as a file.
                is_beyond = token == "<<" or self._text.startswith("(", self._at)
                if is_beyond or not isinstance(self._next(), Word):
                    raise _Unreadable
            else:
                is_redirected |= token in ("(", ")")
                commands.append(Simple(tuple(words), token))
                words = []
        commands.append(Simple(tuple(words)))
        commands = [command for command in commands if command.words]
        # Reserved words have their meaning only where a command begins.
        firsts = (command.words[0].raw for command in commands)
        return ShellLine(tuple(commands), is_redirected, any(raw in _RESERVED for raw in firsts))

    def _next(self) -> Word | str | None:
        """Return the next word or operator; None at the end."""
        if blanks := _BLANKS.match(self._text, self._at):
            self._at = blanks.end()
        # A comment begins only where a word could: `a#b` has come as one word.
        if self._text.startswith("#", self._at):
            end = self._text.find("\n", self._at)
            self._at = len(self._text) if end < 0 else end
        if self._at == len(self._text):
            return None
        if operator := _OPERATOR.match(self._text, self._at):
            self._at = operator.end()
            return operator[0]
        word = self._word()
        # The number of what is redirected, as in `2>`, is no word.
        if word.raw.isdecimal() and self._text.startswith(("<", ">"), self._at):
            return self._next()
        return word

    def _word(self) -> Word:
        start = self._at
        text: str | None = ""
        is_plain, may_split = True, False
        while self._at < len(self._text):
            if ordinary := _ORDINARY.match(self._text, self._at):
                piece: str | None = ordinary[0]
                self._at = ordinary.end()
            elif self._text[self._at] in " \t\n;&|()<>":
                break
            else:
                is_plain = False
                may_split |= self._text[self._at] in "$`"
                piece = self._marked()
            # One part that only the shell can tell makes the whole word unknown.
            text = None if text is None or piece is None else text + piece
        return Word(start, self._at, self._text[start : self._at], text, is_plain, may_split)

    def _marked(self) -> str | None:
        """Take what begins with a quote, a backslash, a dollar or a backtick."""
        start = self._at
        match self._text[start]:
            case "'":
                self._at = self._after_single(start + 1)
                return self._text[start + 1 : self._at - 1]
            case '"':
                self._at = self._after(start + 1, '"', 0)
                return _inside_double(self._text[start + 1 : self._at - 1])
            case "\\":
                self._at = start + 2
                if self._at > len(self._text):
                    raise _Unreadable
                escaped = self._text[start + 1]
                return "" if escaped == "\n" else escaped
        self._at = self._after_expansion(start, 0)
        return None

    def _after_single(self, at: int) -> int:
        end = self._text.find("'", at)
        if end < 0:
            raise _Unreadable
        return end + 1

    def _after_expansion(self, at: int, depth: int) -> int:
        """Find the end of what begins with a dollar or a backtick."""
        # In the quotes of $'…' other rules hold, and not in every shell.
        if depth > _DEEPEST or self._text.startswith("$'", at):
            raise _Unreadable
        if self._text.startswith("$(", at):
            return self._after(at + 2, ")", depth)
        if self._text.startswith("${", at):
            return self._after(at + 2, "}", depth)
        if self._text[at] == "`":
            return self._after(at + 1, "`", depth)
        variable = _VARIABLE.match(self._text, at)
        return variable.end() if variable else at + 1

    def _after(self, at: int, closing: str, depth: int) -> int:
        """Find the end of what double quotes, brackets or backticks enclose."""
        if depth > _DEEPEST:
            raise _Unreadable
        while at < len(self._text):
            character = self._text[at]
            if character == closing:
                return at + 1
            if character == "\\":  # Whatever it is, what follows has no meaning.
                at += 2
            elif character in "$`":
                at = self._after_expansion(at, depth + (closing != '"'))
            elif closing == '"':
                at += 1
            elif character == "'":
                at = self._after_single(at + 1)
            elif character == '"':
                at = self._after(at + 1, '"', depth + 1)
            elif character == "(" and closing == ")":
                at = self._after(at + 1, ")", depth + 1)
            else:
                at += 1
        raise _Unreadable


def _inside_double(text: str) -> str | None:
    """Return what stands between double quotes means; None if there are expansions in it."""
    plain = re.sub(r'\\([$`"\\\n])', "", text)
    if "`" in plain or re.search(r"\$[A-Za-z_0-9({?#@*!$-]", plain):
        return None
    return re.sub(r'\\([$`"\\\n])', lambda found: found[1].strip("\n"), text)


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")

# Their options that take the next word as an argument, and how many words come before the program.
_WRAPPERS: Mapping[str, tuple[frozenset[str], int]] = {
    **dict.fromkeys(
        ("command", "nohup", "setsid", "then", "do", "else", "{", "!"), (frozenset[str](), 0)
    ),
    "env": (frozenset({"-u", "--unset", "-C", "--chdir"}), 0),
    "exec": (frozenset({"-a"}), 0),
    "nice": (frozenset({"-n", "--adjustment"}), 0),
    "stdbuf": (frozenset({"-i", "-o", "-e", "--input", "--output", "--error"}), 0),
    "time": (frozenset({"-f", "--format", "-o", "--output"}), 0),
    "timeout": (frozenset({"-k", "--kill-after", "-s", "--signal"}), 1),
}
# Programs that run another in an environment. They have too many options to list them here, so
# that each word after them may be the program.
_ENVIRONMENTS = frozenset(
    {"conda", "hatch", "mamba", "micromamba", "pdm", "pipenv", "pixi", "poetry", "uv"}
)


def skip_prefixes(words: Sequence[Word]) -> Iterator[int]:
    """Return the places where the program may stand, the likeliest first."""
    at = 0
    while at < len(words):
        name = PurePosixPath(words[at].text or "").name
        if _ASSIGNMENT.match(words[at].raw):
            at += 1
        # `timeout 60 env A=b mpirun …`: one wrapper may follow another.
        elif name in _WRAPPERS:
            at = _after_wrapper(words, at, name)
        else:
            break
    if at < len(words):
        yield at
        if PurePosixPath(words[at].text or "").name in _ENVIRONMENTS:
            yield from _after_options(words, at + 1)


def _after_wrapper(words: Sequence[Word], at: int, name: str) -> int:
    with_argument, more = _WRAPPERS[name]
    at += 1
    while at < len(words) and words[at].raw.startswith("-"):
        if words[at].raw == "--":
            at += 1
            break
        # `env -S "A=b program"`: the program is within a word.
        if name == "env" and words[at].raw.startswith(("-S", "--split")):
            return len(words)
        at += 2 if words[at].raw in with_argument else 1
    return at + more


def _after_options(words: Sequence[Word], start: int) -> Iterator[int]:
    """Return every word that is no option, and no argument of one as far as can be seen."""
    for at in range(start, len(words)):
        is_option = words[at].raw.startswith("-")
        if not is_option and words[at].text is not None:
            yield at
