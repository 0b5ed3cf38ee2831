"""The tables of the documentation have everything that there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import doc_tables
import pytest
import typer
from site_hooks import MOVED

from rankwise.cli.main import VERBS
from rankwise.cli.options import make_app
from rankwise.documents.load import TYPES, model_of
from rankwise.documents.schema import site_schema
from rankwise.documents.yaml_reader import DEEPEST, MOST_BYTES, MOST_VALUES
from rankwise.pytest_plugin import plugin

DOCS = Path(__file__).resolve().parents[1] / "docs"


def sections(text: str) -> dict[str, str]:
    return {part.split("\n", 1)[0]: part for part in text.split("\n### ")}


def test_every_field_of_every_type_is_in_its_section() -> None:
    found = sections(doc_tables.documents())
    for name in TYPES:
        assert [field for field in model_of(name).fields() if f"`{field}`" not in found[name]] == []


def test_required_fields_are_bold_and_defaults_are_shown() -> None:
    text = doc_tables.documents()
    assert "| **`launcher`** | [Single](#single) |" in text
    assert "| `timeout` | number or text, such as `1h30m` or `90` |" in text


def test_every_key_of_the_site_file_is_in_its_table() -> None:
    text = doc_tables.site()
    for part in site_schema()["$defs"].values():
        assert [key for key in part.get("properties", ()) if f"`{key}`" not in text] == []


def test_an_empty_text_among_the_values_is_shown_as_one() -> None:
    assert '`""`' in doc_tables.site()
    assert "``" not in doc_tables.site() + doc_tables.documents()


def test_every_command_has_a_section_with_its_options() -> None:
    found = {part.split("\n", 1)[0]: part for part in f"\n{doc_tables.commands()}".split("\n### ")}
    # Where the class of commands is, changes from one typer to the next.
    application: Any = typer.main.get_command(make_app(VERBS))
    assert VERBS.keys() <= found.keys()
    missing = [
        f"{name} {option}"
        for name, command in application.commands.items()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("-") and f"`{option}" not in found[name]
    ]
    assert missing == []


def test_every_option_of_pytest_has_a_line_that_explains_it() -> None:
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    names = [
        name for group in parser._groups for option in group.options for name in option.names()
    ]
    text = doc_tables.pytest_options()
    assert names
    assert [name for name in names if f"`{name}" not in text] == []
    assert [
        name for name in parser._inidict if f"`{name}`" not in doc_tables.pytest_settings()
    ] == []


def test_a_marker_in_a_page_becomes_its_table() -> None:
    page = doc_tables.fill("# Options\n\n<!-- table: pytest settings -->\n\nMore.\n")
    assert "| `test_timeout` |" in page
    assert page.startswith("# Options\n")
    assert page.endswith("More.\n")


@pytest.mark.parametrize("page", [path.name for path in DOCS.glob("*.md")])
def test_every_marker_of_a_page_is_known(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert {match["name"] for match in doc_tables.MARKER.finditer(text)} <= doc_tables.TABLES.keys()
    assert text.count("<!-- table:") == len(doc_tables.MARKER.findall(text))


def test_the_limits_of_documents_are_those_on_the_page() -> None:
    text = " ".join((DOCS / "document-reference.md").read_text(encoding="utf-8").split())
    assert (
        f"{MOST_BYTES:,} bytes, {MOST_VALUES:,} values (aliases filled in) and {DEEPEST} levels"
        in text
    )


def test_an_address_that_has_moved_is_no_page_of_today() -> None:
    pages = {path.stem for path in DOCS.glob("*.md")}
    assert MOVED.keys().isdisjoint(pages)
    assert set(MOVED.values()) <= pages
