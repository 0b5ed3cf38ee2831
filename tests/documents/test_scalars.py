"""What words without quotes stand for."""

from __future__ import annotations

import math

import pytest

from rankwise.documents.written import Scalar, resolve


@pytest.mark.parametrize("text", ["", "~", "null", "Null", "NULL"])
def test_nothing_is_nothing(text: str) -> None:
    assert resolve(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("True", True),
        ("FALSE", False),
        ("4", 4),
        ("-3", -3),
        ("+3", 3),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("1.10", 1.1),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("-.inf", -math.inf),
    ],
)
def test_numbers_and_truth_values_keep_how_they_were_written(text: str, value: object) -> None:
    found = resolve(text)
    assert isinstance(found, Scalar)
    assert (found, found.value, type(found.value)) == (text, value, type(value))


def test_what_is_no_number_is_a_scalar_too() -> None:
    found = resolve(".nan")
    assert isinstance(found, Scalar)
    assert math.isnan(found.value)


@pytest.mark.parametrize(
    "text",
    [
        # Truth values and numbers of YAML 1.1, and a date.
        *("yes", "no", "on", "off", "y", "1:30", "1_000", "0b11", "2024-01-01"),
        *("tRUE", "nan", "inf", "1.2.3", "0x", "٣", "9" * 101),
    ],
)
def test_all_else_is_text(text: str) -> None:
    found = resolve(text)
    assert found == text
    assert type(found) is str
