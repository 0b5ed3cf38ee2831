"""The reference is what the models say."""

from __future__ import annotations

from pathlib import Path

from document_reference import reference

from rankwise.documents.load import TYPES, model_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spec-reference.md"


def test_the_page_is_current() -> None:
    remedy = "run: python scripts/document_reference.py > docs/spec-reference.md"
    assert PAGE.read_text(encoding="utf-8") == reference(), remedy


def test_every_field_of_every_type_is_in_its_section() -> None:
    sections = {part.split("\n", 1)[0]: part for part in reference().split("\n## ")}
    for model in map(model_of, TYPES):
        section = sections[model.__name__]
        assert [field for field in model.fields() if f"`{field}`" not in section] == []


def test_fields_that_must_be_there_are_bold() -> None:
    text = reference()
    assert "| **`launcher`** | [Single](#single) |" in text
    assert "| `timeout` | number or text, such as `1h30m` or `90` |" in text
