"""Command lines with `${{NAME}}` in them, and what is found in what they write. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rankwise.checks.json_path import find
from rankwise.site.command_table import is_path

_NAME = re.compile(r"\$\{\{\s*(\w+)\s*\}\}")


def names_in(words: Sequence[str]) -> set[str]:
    """Name what a command line has to be told."""
    return {name for word in words for name in _NAME.findall(word)}


def fill(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Put values in their places; each stays within its word, whatever it has in it.

    LookupError: there is no value of that name.
    """
    return [_NAME.sub(lambda found: values[found[1]], word) for word in words]


def capture(rules: Mapping[str, str], output: str, name: str) -> dict[str, str] | None:
    """Find the values in what a command has written; None: one of them is not there.

    A rule that begins with `$` is a path into JSON; of a list, the entry counts that has the name
    in it. Others are patterns with a group, in which `${{name}}` stands for the name.
    """
    found = {}
    for key, rule in rules.items():
        read = _in_json if is_path(rule) else _in_text
        value = read(rule, output, name)
        if value is None:
            return None
        found[key] = value
    return found


def _in_text(rule: str, output: str, name: str) -> str | None:
    pattern = _NAME.sub(lambda found: re.escape(name) if found[1] == "name" else found[0], rule)
    match = re.search(pattern, output, re.MULTILINE)
    return match[1] if match else None


def _in_json(rule: str, output: str, name: str) -> str | None:
    data = _json_in(output)
    if isinstance(data, list):
        own = [one for one in data if name in json.dumps(one)]
        data = own[0] if own else None
    values = find(data, rule) if data is not None else []
    value = values[0] if values else None
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        return None
    return str(value)


def _json_in(output: str) -> Any:
    """Read JSON that may have words before it, as progress and warnings are."""
    decoder = json.JSONDecoder()
    for found in re.finditer(r"^\s*([{\[])", output, re.MULTILINE):
        try:
            return decoder.raw_decode(output, found.start(1))[0]
        except ValueError:
            continue
    return None
