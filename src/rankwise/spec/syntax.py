"""Say in plain words what a YAML parser could not read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ruamel.yaml.error import MarkedYAMLError

from rankwise.spec.composer import Unreadable
from rankwise.spec.mistakes import Position, clipped

# What the parser says (a pattern) and what it means to whoever wrote the document. `{opened}` is
# the place where that began which the parser was in the middle of.
_MEANINGS = {
    r"mapping values are not allowed": (
        "this `:` is unexpected: check the indentation, or put the text in quotes"
    ),
    r"sequence entries are not allowed": (
        "a list cannot begin here: put its first `-` on a line of its own"
    ),
    r"found character '\\t'": "a tab is not allowed here: use spaces, or put the text in quotes",
    r"found character '`'": "a text that begins with a backtick needs quotes",
    r"found character '(?P<letter>.)' that cannot start": (
        "a text that begins with `{letter}` needs quotes"
    ),
    r"but found '<block (mapping|sequence) start>'": (
        "this line is indented differently from those that it belongs to"
    ),
    r"<block end>, but found '<scalar>'": (
        "there is text after the end of a value: put the whole value in quotes"
    ),
    r"<block end>, but found '[-?]'": (
        "a list and `name: value` lines are mixed here: check the indentation"
    ),
    r"<block end>": "this does not belong to what began in {opened}: check the indentation",
    r"unexpected (end of stream|document separator)": (
        "the quote that was opened in {opened} is never closed"
    ),
    r"expected ',' or '(?P<letter>[\]}])'": (
        "a `,` is missing here, or the `{letter}` for what was opened in {opened}"
    ),
    r"could not find expected ':'": (
        "this line is neither `name: value` nor part of the text above: check the indentation"
    ),
    r"unknown escape character|expected escape sequence|chr\(\)": (
        r"this `\` means nothing in double quotes: write `\\`, or use single quotes"
    ),
    r"expected alphabetic or numeric character": (
        "a text that begins with `&` or `*` needs quotes"
    ),
    r"the node content, but found '(?P<letter>[^'<])'": (
        "a text that begins with `{letter}` needs quotes"
    ),
    r"the node content": "a value is missing here",
    r"<document start>": "there is something after the end of the document",
    r"incompatible YAML": "this version of YAML is unknown: leave the `%YAML` line out",
    r"chomping or indentation": (
        "after `|` or `>` only `-`, `+` or a digit may follow: put the text on the lines below"
    ),
    r"tag|URI": "a text that begins with `!` needs quotes",
}


def explained(error: Exception, lines: Sequence[str], reached: Position) -> Unreadable:
    """Make a mistake of a parser's error; `reached` is how far it came."""
    if not isinstance(error, MarkedYAMLError):
        # On some texts the parser itself fails, in ways that it does not announce.
        return Unreadable(reached, _meaning(str(error), "the document"))
    mark = error.problem_mark or error.context_mark
    at = Position(mark.line + 1, mark.column + 1) if mark else reached
    line = lines[at.line - 1] if at.line <= len(lines) else ""
    if tab := re.match(r" *\t", line):
        return Unreadable(Position(at.line, tab.end()), "a tab; YAML is indented with spaces")
    opened = f"line {error.context_mark.line + 1}" if error.context_mark else "the document"
    return Unreadable(at, _meaning(f"{error.context}: {error.problem}", opened))


def _meaning(problem: str, opened: str) -> str:
    for pattern, meaning in _MEANINGS.items():
        if found := re.search(pattern, problem):
            letter = found.groupdict().get("letter") or ""
            return meaning.replace("{opened}", opened).replace("{letter}", clipped(letter))
    return f"this is not YAML: {clipped(problem)}"
