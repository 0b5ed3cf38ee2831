"""Any file is a document, or an InputError that says where it is wrong."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from rankwise.documents.jobs import DocumentModel
from rankwise.documents.load import TYPES, load, parse, starter
from rankwise.documents.yaml_reader import read_text
from rankwise.errors import InputError
from tests.documents.conftest import SEEDS, yaml_of

TEXTS = [path.read_text() for path in SEEDS] + [starter(name) for name in TYPES]
# What has a meaning in YAML, in documents or in neither but looks like it.
SPICES = [
    *("\t", "\n", "\n  ", ": ", "- ", "? ", "---\n", "...\n", "#", "&a ", "*a", "<<: *a", "!!int "),
    *("!x ", "|\n", ">\n", "'", '"', "[", "]", "{", "}", ",", "%YAML 1.1\n", "\\", "\\x", "\0"),
    *("\ufeff", "\x85", "\u2028", "é", "\U0001f600", "\ue000", "~", "null", "true", "1e999", "010"),
    *(".inf", ".nan", "0x1F", "9" * 5000, "-1", "${{inputs.x}}", "${{", "500m", "2Gi", "1h30m"),
]
WORDS = [
    *("type", "name", "launcher", "worker", "spec", "command", "compute", "instance_count", "code"),
    *(
        "target",
        "secrets",
        "inputs",
        "restart",
        "max",
        "on_exit_codes",
        "distribution",
        "resources",
    ),
    *("timeout", "limits", "environment_variables", "tags", "success", "num_replicas", "outputs"),
    *("chief", "resource_limits", "cpu", "memory", "gpu", "$schema", "path", "value", "<<", "mpi"),
    *("pytorch", "tensorflow", "scope", "gang", "all", *TYPES),
]

fuzz = settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))


def check(text: str) -> None:
    expect_a_document_or_complaints(lambda: parse(read_text(text, "job.yaml")))


def expect_a_document_or_complaints(attempt: Callable[[], DocumentModel]) -> None:
    try:
        model = attempt()
    except InputError as error:
        lines = str(error).split("\n")
        assert lines
        for line in lines:
            assert re.match(r"\S+(:[1-9]\d*:[1-9]\d*)?: .", line), line
            assert line.isprintable(), line
            assert "Input should" not in line
            assert "pydantic" not in line
            # Words of last resort, for an error that has none of its own.
            assert "is not valid: " not in line
    else:
        assert isinstance(model, DocumentModel)
        # A plan is written as JSON, and its strings go to the system.
        model.model_dump_json()


@fuzz
@given(st.binary(max_size=300))
@example(b"\xff\xfet\0y\0p\0e\0")
@example(b"type: MpiJob\nname: \xe9\n")
def test_any_bytes_are_a_document_or_complaints(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        path.write_bytes(content)
        expect_a_document_or_complaints(lambda: load(path).model)


@fuzz
@given(st.text(max_size=300))
def test_any_text_is_a_document_or_complaints(text: str) -> None:
    check(text)


@fuzz
@given(st.lists(st.sampled_from([*SPICES, *WORDS, " ", "  "]), max_size=60).map("".join))
@example("%YAML 1.1\n---\na: yes\n")
@example('"\\U00110000"')
@example("!<%FF> x")
@example("a: &a [*a]")
@example("? [a]\n: b\n")
def test_any_mixture_of_signs_is_a_document_or_complaints(text: str) -> None:
    check(text)


@fuzz
@given(st.data())
def test_a_document_that_was_disturbed_is_a_document_or_complaints(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(TEXTS))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 12)))
        text = text[:start] + data.draw(st.sampled_from([*SPICES, *WORDS, ""])) + text[end:]
    check(text)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from([*WORDS, *SPICES]),
)
STRUCTURES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(WORDS), st.text(max_size=5)), inner, max_size=6),
    ),
    max_leaves=25,
)


@fuzz
@given(
    st.sampled_from(list(TYPES)),
    st.dictionaries(st.sampled_from(WORDS), STRUCTURES, max_size=8),
)
def test_any_contents_are_a_document_or_complaints(name: str, contents: dict[str, Any]) -> None:
    check(yaml_of({"type": name, **contents}))


@fuzz
@given(st.data())
def test_a_document_with_one_value_changed_is_a_document_or_complaints(
    data: st.DataObject,
) -> None:
    contents = read_text(data.draw(st.sampled_from(TEXTS)), "job.yaml").contents
    here: Any = contents
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        assume(keys)
        key = data.draw(st.sampled_from(keys))
        if not isinstance(here[key], (dict, list)) or data.draw(st.booleans()):
            break
        here = here[key]
    here[key] = data.draw(STRUCTURES)
    check(yaml_of(contents))


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_every_beginning_of_a_document_is_a_document_or_complaints(path: Path) -> None:
    text = path.read_text()
    for end in range(0, len(text), 3):
        check(text[:end])
