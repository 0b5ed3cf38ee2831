"""Tables of the documentation that are made from the program when the site is built.

    python scripts/doc_tables.py NAME    print one of them

A line `<!-- table: NAME -->` in a page of docs/ stands for one of these:

    documents         every type of document, and every field of each
    site              the tables and keys of rankwise.toml
    commands          every command of `rankwise`, with its arguments and options
    pytest options    the options that the plugin adds to pytest
    pytest settings   its settings for pytest.ini

Needs rankwise and pytest in the environment; the tests check that everything is in them.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import typer

from rankwise.cli.main import VERBS
from rankwise.cli.options import make_app
from rankwise.documents.load import TYPES, model_of
from rankwise.documents.schema import json_schema, site_schema
from rankwise.pytest_plugin import plugin
from rankwise.wording import alternatives

MARKER = re.compile(r"^<!-- table: (?P<name>[a-z ]+) -->$", re.MULTILINE)


def fill(page: str) -> str:
    """Return the page with a table in the place of each marker; raises KeyError."""
    return MARKER.sub(lambda marker: TABLES[marker["name"]](), page)


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        cells = (" ".join(cell.split()).replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |"
    yield ""


# Documents and the site file: from the JSON Schema of the models.


class Fields:
    """Sections of Markdown for the parts of a JSON Schema."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = parts

    def section(self, name: str, *, title: str = "") -> Iterator[str]:
        """Write a heading, what the part is, and a table of its fields."""
        schema = self._parts[name]
        mapping = _mapping_of(schema)
        yield from (f"### {title or name}", "", schema.get("description", ""), "")
        yield from _table(("field", "value", "meaning", "default"), self._rows(mapping))

    def others(self, but: set[str]) -> Iterator[str]:
        """Write a section for each other part that has fields."""
        for name in sorted(self._parts.keys() - but):
            if _mapping_of(self._parts[name]):
                yield from self.section(name)

    def _rows(self, mapping: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
        required = mapping.get("required", ())
        for field, schema in mapping["properties"].items():
            shown = f"**`{field}`**" if field in required else f"`{field}`"
            yield shown, self._value(schema), schema.get("description", ""), _default(schema)

    def _value(self, schema: Mapping[str, Any]) -> str:
        examples = [f"`{_flow(each)}`" for each in schema.get("examples", ())]
        words = self._words(schema)
        return f"{words}, such as {alternatives(examples)}" if examples else words

    def _words(self, schema: Mapping[str, Any]) -> str:
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            part = self._parts[name]
            return f"[{name}](#{name.lower()})" if _mapping_of(part) else self._words(part)
        if "const" in schema:
            return f"`{schema['const']}`"
        if "enum" in schema:
            return alternatives([f"`{each}`" if each else '`""`' for each in schema["enum"]])
        if choices := schema.get("anyOf") or schema.get("oneOf"):
            found = [self._words(each) for each in choices if each.get("type") != "null"]
            return alternatives(list(dict.fromkeys(found)))
        return self._words_for_type(schema)

    def _words_for_type(self, schema: Mapping[str, Any]) -> str:
        match schema.get("type"):
            case "integer":
                lower = f" from {schema['minimum']}" if "minimum" in schema else ""
                upper = f" to {schema['maximum']}" if "maximum" in schema else ""
                return f"whole number{lower}{upper}"
            case "array":
                return f"list: {self._words(schema['items'])}"
            case "object":
                values = schema.get("additionalProperties")
                for each in schema.get("patternProperties", {}).values():
                    values = each
                if isinstance(values, dict) and values:
                    return f"names, each with {self._words(values)}"
                return "mapping"
            case list():
                return "text or number"
            case kind:
                names = {"number": "number", "string": "text", "boolean": "`true` or `false`"}
                return names.get(str(kind), "anything")


def _mapping_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Find the description of a mapping's fields, which may stand beside that of a short form."""
    for each in (schema, *schema.get("anyOf", ())):
        if "properties" in each:
            return dict(each)
    return {}


def _default(schema: Mapping[str, Any]) -> str:
    default = schema.get("default")
    return f"`{_flow(default)}`" if isinstance(default, str | int | float) and default != "" else ""


def _flow(value: object) -> str:
    """Write a value as YAML does on one line."""
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_flow, value)) + "]"
    return str(value)


def documents() -> str:
    """Write every type of document, then the parts that they share."""
    fields = Fields(json_schema()["$defs"])
    names = {name: model_of(name).__name__ for name in TYPES}
    lines = ["## Types", ""]
    for title, name in names.items():
        lines += fields.section(name, title=title)
    lines += ["## Parts", "", *fields.others({*names.values()})]
    return "\n".join(lines)


SITE_TABLES: Mapping[str, str] = {
    "Defaults": "[defaults]",
    "LocalTable": '[compute.NAME] with backend = "local"',
    "SlurmTable": '[compute.NAME] with backend = "slurm"',
    "GridEngineTable": '[compute.NAME] with backend = "gridengine"',
    "PbsTable": '[compute.NAME] with backend = "pbs"',
    "KubernetesTable": '[compute.NAME] with backend = "kubernetes"',
    "SshTable": '[compute.NAME] with backend = "ssh"',
    "CommandTable": '[compute.NAME] with backend = "command"',
    "RuntimeTable": "[runtime.NAME]",
    "MailTable": '[notify.NAME] with kind = "mail"',
    "WebhookTable": '[notify.NAME] with kind = "webhook"',
}


def site() -> str:
    """Write every table of the site file."""
    parts = site_schema()["$defs"]
    fields = Fields(parts)
    lines: list[str] = []
    for name, title in SITE_TABLES.items():
        lines += fields.section(name, title=f"`{title}`")
    return "\n".join([*lines, *fields.others({*SITE_TABLES, "NotifierTable"})])


# The command line


@cache
def _application() -> Any:
    # Where the class of commands is, changes from one typer to the next.
    return typer.main.get_command(make_app(VERBS))


def commands() -> str:
    """Write every command, with its arguments and options."""
    lines = []
    for name, command in _application().commands.items():
        lines += [f"### {name}", ""]
        for paragraph in (command.help or "").split("\n\n"):
            # click's mark for a paragraph that keeps its lines: the examples.
            is_example = "\b" in paragraph or paragraph.startswith("For example")
            text = paragraph.replace("\b", "").strip("\n")
            lines += ["```sh", *text.splitlines()[1:], "```", ""] if is_example else [text, ""]
        lines += _table(("argument, option", "meaning"), _parameters(command))
    return "\n".join(lines)


def _parameters(command: Any) -> Iterator[tuple[str, str]]:
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        names = [*parameter.opts, *parameter.secondary_opts]
        value = parameter.metavar or parameter.name.upper()
        if not any(name.startswith("-") for name in names):
            shown = f"`{value}`"
        elif getattr(parameter, "is_flag", False):
            shown = ", ".join(f"`{name}`" for name in names)
        else:
            shown = ", ".join(f"`{name} {value}`" for name in names)
        yield shown, parameter.help or ""


# pytest


class _Settings:
    """Takes the place of pytest's parser: it notes what the plugin adds."""

    def __init__(self) -> None:
        self.parser = pytest.Parser(_ispytest=True)
        plugin.pytest_addoption(self.parser)


def pytest_options() -> str:
    """Write the options that the plugin adds to pytest."""

    def rows() -> Iterator[tuple[str, ...]]:
        for group in _Settings().parser._groups:
            for option in group.options:
                given = option.attrs()
                if given.get("help") in (None, "==SUPPRESS=="):
                    continue
                value = given.get("metavar") or ("/".join(map(str, given.get("choices") or ())))
                names = [f"`{name}{f'={value}' if value else ''}`" for name in option.names()]
                yield ", ".join(names), str(given["help"]).replace("%%", "%")

    return "\n".join(_table(("option", "meaning"), rows()))


def pytest_settings() -> str:
    """Write the plugin's settings for pytest.ini."""
    settings = _Settings().parser._inidict.items()
    rows = ((f"`{name}`", str(described[0])) for name, described in settings)
    return "\n".join(_table(("setting", "meaning"), rows))


TABLES: Mapping[str, Callable[[], str]] = {
    "documents": documents,
    "site": site,
    "commands": commands,
    "pytest options": pytest_options,
    "pytest settings": pytest_settings,
}


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in TABLES:
        sys.exit(f"usage: doc_tables.py {'|'.join(TABLES)}")
    print(TABLES[sys.argv[1]]())
