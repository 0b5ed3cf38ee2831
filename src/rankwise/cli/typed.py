"""What has been typed so far, as shells tell it to those who complete it; loads next to nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from rankwise.cli.verbs import VERBS

ASKED = "_RANKWISE_COMPLETE"
_OF_BASH = "complete_bash"
_OPTIONS = ("--help", "--version", "--install-completion", "--show-completion")


def verb_typed(environment: Mapping[str, str] = os.environ) -> str | None:
    """Give the verb whose arguments are being typed; None: it is not there yet."""
    words, _ = _words(environment)
    return words[0] if words and words[0] in VERBS else None


def first_words(environment: Mapping[str, str] = os.environ) -> Sequence[str] | None:
    """Give what may be typed where the verb is; None: there is one, or it is not for bash.

    To bash names are enough. Others also show what they are about, each in its own way.
    """
    if environment.get(ASKED) != _OF_BASH:
        return None
    words, incomplete = _words(environment)
    if words and words[0] in VERBS:
        return None
    if words not in ([], ["help"]):
        return []
    offered = (*VERBS, *(("help", *_OPTIONS) if not words else ()))
    is_option = incomplete.startswith("-")
    return [
        word
        for word in offered
        if word.startswith(incomplete) and word.startswith("-") is is_option
    ]


def _words(environment: Mapping[str, str]) -> tuple[list[str], str]:
    """Give the words between the program and the cursor, and the one that is not complete."""
    if "COMP_WORDS" in environment:
        words = environment["COMP_WORDS"].split()
        number = environment.get("COMP_CWORD", "")
        at = int(number) if number.isdigit() else len(words)
        return words[1:at], words[at] if at < len(words) else ""
    typed = environment.get("_TYPER_COMPLETE_ARGS", "")
    words = typed.split()[1:]
    if words and not typed[-1].isspace():
        return words[:-1], words[-1]
    return words, ""
