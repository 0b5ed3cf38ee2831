"""What may stand before a program in a command: `env A=b`, `exec`, `time`, `uv run`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from rankwise.launch.shell import Word

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")

# Their options that take the next word as an argument, and how many words come before the program.
_WRAPPERS: Mapping[str, tuple[frozenset[str], int]] = {
    **dict.fromkeys(("command", "then", "do", "else", "{", "!"), (frozenset[str](), 0)),
    "env": (frozenset({"-u", "--unset", "-C", "--chdir"}), 0),
    "exec": (frozenset({"-a"}), 0),
    "nice": (frozenset({"-n", "--adjustment"}), 0),
    "nohup": (frozenset(), 0),
    "setsid": (frozenset(), 0),
    "stdbuf": (frozenset({"-i", "-o", "-e", "--input", "--output", "--error"}), 0),
    "time": (frozenset({"-f", "--format", "-o", "--output"}), 0),
    "timeout": (frozenset({"-k", "--kill-after", "-s", "--signal"}), 1),
}
# Programs that run another in an environment, and have too many options to know them all.
_ENVIRONMENTS = frozenset(
    {"conda", "hatch", "mamba", "micromamba", "pdm", "pipenv", "pixi", "poetry", "uv"}
)


def skip_prefixes(words: Sequence[Word]) -> Iterator[int]:
    """Give the places where the program may stand, the likeliest first."""
    at = 0
    while at < len(words):
        name = PurePosixPath(words[at].text or "").name
        if _ASSIGNMENT.match(words[at].raw):
            at += 1
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
    """Give every word that is no option, and no argument of one as far as can be seen."""
    for at in range(start, len(words)):
        is_option = words[at].raw.startswith("-")
        if not is_option and words[at].text is not None:
            yield at
