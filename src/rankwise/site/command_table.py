"""`[compute.NAME]` of instances that a provider's own command line makes and deletes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from rankwise.checks.json_path import steps_of
from rankwise.site.choices import CommandChoice
from rankwise.site.page import Key, Page, did_you_mean
from rankwise.site.values import read_number, read_text, read_truth, read_words, written

TEMPLATES = ("create", "ready", "run", "send", "fetch", "delete", "list")
_NEEDED = ("create", "run", "delete")
COMMAND_KEYS = (
    *TEMPLATES,
    *("capture", "instances", "reuse", "folder", "python", "init", "patience"),
    *("create_seconds", "ready_seconds", "look_seconds"),
)
_NAME = re.compile(r"\$\{\{\s*([^{}]*?)\s*\}\}")
_GIVEN = {
    "create": ("name",),
    "ready": ("name",),
    "run": ("name", "command"),
    "send": ("name", "source", "target"),
    "fetch": ("name", "source", "target"),
    "delete": ("name",),
    "list": ("name",),
}
_MUST_HAVE = {"run": ("command",), "send": ("source", "target"), "fetch": ("source", "target")}


def read_command(at: Key, table: Mapping[str, Any], page: Page) -> CommandChoice:
    """Read what only a provider has."""
    for name in _NEEDED:
        if name not in table:
            page.complain(at, f"[{page.header(at)}] does not say how to {name} an instance")
    captured = _captures((*at, "capture"), table, page)
    templates: dict[str, Any] = {
        name: _words((*at, name), table, page) for name in TEMPLATES if name in table
    }
    for name, words in templates.items():
        # What is made is known by what `create` has said, and not before that.
        more = () if name in ("create", "list") else tuple(captured)
        _check((*at, name), words, (*_GIVEN[name], *more), page)
    texts: dict[str, Any] = {
        name: read_text((*at, name), table, page) for name in ("folder", "python") if name in table
    }
    seconds: dict[str, Any] = {}
    for name in ("create_seconds", "ready_seconds", "look_seconds", "patience"):
        value = read_number((*at, name), table, page, least=0.1)
        if value is not None:
            seconds[name] = value
    instances = read_number((*at, "instances"), table, page, least=1, is_whole=True)
    return CommandChoice(
        **templates,
        **texts,
        **seconds,
        capture=tuple(captured.items()),
        instances=int(instances or 1),
        reuse=read_truth((*at, "reuse"), table, page) if "reuse" in table else True,
        init=read_words((*at, "init"), table, page),
    )


def _words(at: Key, table: Mapping[str, Any], page: Page) -> tuple[str, ...]:
    """Read a command line: its words, or one text that is split as a shell would."""
    value = table[at[-1]]
    if isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError as error:
            page.complain(at, f"{at[-1]} is no command line: {error}")
            return ()
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return tuple(value)
    page.complain(at, f'{at[-1]} must be a command line such as ["cloud", "create"]')
    return ()


def _check(at: Key, words: tuple[str, ...], known: tuple[str, ...], page: Page) -> None:
    used = {name for word in words for name in _NAME.findall(word)}
    for name in sorted(used - set(known)):
        hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
        page.complain(at, f"{at[-1]} has ${{{{{name}}}}}, which is not known{hint}")
    for name in _MUST_HAVE.get(at[-1], ()):
        if words and name not in used:
            page.complain(at, f"{at[-1]} must have ${{{{{name}}}}} in it")


def _captures(at: Key, table: Mapping[str, Any], page: Page) -> dict[str, str]:
    """Read what to find in the output of `create`: paths into JSON, or patterns with a group."""
    value = table.get("capture", {})
    if isinstance(value, str):
        value = {"id": value}
    if not isinstance(value, dict):
        page.complain(at, f'capture must be like {{ id = "$.id" }}, not {written(value)}')
        return {}
    found = {}
    for name, rule in value.items():
        if not isinstance(rule, str) or not name.isidentifier() or name in ("name", "command"):
            page.complain(at, f"{name} = {written(rule)} is nothing to capture")
            continue
        try:
            if is_path(rule):
                steps_of(rule)
            elif re.compile(rule).groups != 1:
                raise ValueError("must have one group, which is the value")
        except (ValueError, re.error) as error:
            page.complain(at, f"{name} = {written(rule)}: {error}")
            continue
        found[name] = rule
    return found


def is_path(rule: str) -> bool:
    """Tell whether what to capture is a path into JSON, and no pattern."""
    return rule.startswith("$") and not rule.startswith("${{")
