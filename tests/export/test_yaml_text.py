"""What is written is read back, by readers of both versions of YAML."""

from __future__ import annotations

from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.export.base import to_yaml
from tests.export.exporting import read_back
from tests.lengths import part

# Surrogates are no characters: nothing that was read from a file has them.
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text(
    "ab: #-'\"|>\n\t\\{}[]$&*!%@`~=,?"
)
VALUES = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=part(120, 3000), deadline=None)
@given(st.lists(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4), min_size=1, max_size=2))
def test_whatever_is_written_is_read_back_the_same(documents: list[dict[str, Any]]) -> None:
    text = to_yaml(documents)
    assert read_back(text) == documents
    assert list(yaml.safe_load_all(text)) == documents


@pytest.mark.parametrize(
    "text",
    [
        *("on", "Off", "yes", "NO", "y", "n", "true", "null", "~", "", "None", ".nan", "nan"),
        *("1", "010", "0o7", "0x1f", "1e3", "1_000", "12:30", "1:30:00", "-1", "+1", ".5", "1."),
        *(
            "2026-01-02",
            "<<",
            "=",
            "a: b",
            "a #b",
            "- a",
            "? a",
            "a:",
            " a",
            "a ",
            "&a",
            "*a",
            "!a",
        ),
        *("%a", "@a", "`a`", "a\\b", "'a'", '"a"', "---", "...", "a\nb", "a\n", "\na", " a\nb\n\n"),
        *("a\r\nb", "a\x85b", "a\u2028b", "\ufeffa", "\x00", "\x7f", "a\tb", "ä", "\U0001f600"),
    ],
)
def test_a_text_stays_a_text(text: str) -> None:
    shown = to_yaml([{"key": text, text: [text]}])
    for found in (read_back(shown), list(yaml.safe_load_all(shown))):
        assert found == [{"key": text, text: [text]}]


def test_people_can_read_it() -> None:
    data = {"kind": "Job", "spec": {"args": ["a", {"b": 1, "c": []}], "run": "one\n  two\n"}}
    assert to_yaml([data, {"a": "azureml:x:1"}]) == (
        "kind: Job\nspec:\n  args:\n    - a\n    - b: 1\n      c: []\n"
        "  run: |\n    one\n      two\n---\na: azureml:x:1\n"
    )
