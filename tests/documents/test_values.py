"""Counts, times, sizes and names."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from rankwise.documents.values import (
    Bytes,
    Cores,
    ExitCode,
    Name,
    NonNegativeInt,
    PositiveInt,
    Seconds,
    Secrets,
    Target,
    Text,
    Variable,
    Written,
    fit_name,
)
from rankwise.documents.written import resolve


def value_of(kind: Any, written: Any) -> Any:
    """Take what a document says without quotes, or the value itself, for a kind of value."""
    given = resolve(written) if isinstance(written, str) else written
    return TypeAdapter(kind).validate_python(given)


def error_for(kind: Any, written: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        value_of(kind, written)
    (error,) = caught.value.errors()
    assert error["type"] == "rankwise", error
    return error["msg"]


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (PositiveInt, "4", 4),
        (PositiveInt, 4, 4),
        (PositiveInt, "0x10", 16),
        (NonNegativeInt, "0", 0),
        (ExitCode, "255", 255),
        (Seconds, "90", 90.0),
        (Seconds, "0.5", 0.5),
        (Seconds, "90s", 90.0),
        (Seconds, "10m", 600.0),
        (Seconds, "1h30m", 5400.0),
        (Seconds, "1d2h3m4s", 93784.0),
        (Seconds, "1.5h", 5400.0),
        (Seconds, "365d", 31536000.0),
        (Bytes, "1000", 1000),
        (Bytes, "1e9", 10**9),
        (Bytes, "2Gi", 2 * 2**30),
        (Bytes, "500M", 500 * 10**6),
        (Bytes, "1.5Gi", 3 * 2**29),
        (Bytes, "64k", 64_000),
        (Bytes, "64K", 64_000),
        (Bytes, "64KiB", 64 * 1024),
        (Bytes, "2 GB", 2 * 10**9),
        (Cores, "1", 1.0),
        (Cores, "0.5", 0.5),
        (Cores, "500m", 0.5),
        (Text, "true", "true"),
        (Text, "1.10", "1.10"),
        (Written, "0080", "0080"),
        (Written, "no", "no"),
        (Name, "a", "a"),
        (Name, "2024", "2024"),
        (Name, "My-job_1.2", "My-job_1.2"),
        (Name, "x" * 100, "x" * 100),
        (Variable, "_A1", "_A1"),
        (Target, "azureml:gpu-cluster", "gpu-cluster"),
        (Target, "local", "local"),
        (Secrets, ["A", "B_2"], ("A", "B_2")),
    ],
)
def test_a_value_is_taken_as_it_is_meant(kind: Any, written: Any, value: Any) -> None:
    found = value_of(kind, written)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("kind", "written", "message"),
    [
        (PositiveInt, "four", "must be a whole number, not 'four'"),
        (PositiveInt, "4.0", "must be a whole number, not 4.0"),
        (PositiveInt, "true", "must be a whole number, not true"),
        (PositiveInt, True, "must be a whole number, not true"),
        (PositiveInt, ".inf", "must be a whole number, not .inf"),
        (PositiveInt, [], "must be a whole number, not a list"),
        (PositiveInt, "0", "must be at least 1, not 0"),
        (PositiveInt, "-3", "must be at least 1, not -3"),
        (PositiveInt, "010", "must be a whole number without leading zeros, not 010"),
        (NonNegativeInt, "-1", "must be at least 0, not -1"),
        (ExitCode, "256", "must be at most 255, not 256"),
        (Cores, "0", "must be more than 0 and at most 1000000, not 0"),
        (Cores, "many", "must be a number of cores, such as 4, 0.5 or 500m (thousandths), not 'many'"),
        (Cores, ".nan", "must be a number of cores, such as 4, 0.5 or 500m (thousandths), not .nan"),
        (Seconds, "0", "must be more than 0 and at most 365d, not 0"),
        (Seconds, "-1", "must be more than 0 and at most 365d, not -1"),
        (Seconds, "366d", "must be more than 0 and at most 365d, not '366d'"),
        (Seconds, "1:30", "must be a time: a number of seconds, or such as 90s, 10m, 1h30m, not '1:30'"),
        (Seconds, "30m1h", "must be a time: a number of seconds, or such as 90s, 10m, 1h30m, not '30m1h'"),
        (Seconds, "1.2.3s", "must be a time: a number of seconds, or such as 90s, 10m, 1h30m, not '1.2.3s'"),
        (Seconds, "true", "must be a time: a number of seconds, or such as 90s, 10m, 1h30m, not true"),
        (Seconds, math.inf, "must be a time: a number of seconds, or such as 90s, 10m, 1h30m, not inf"),
        (Bytes, "2gb", "must be a size: a number of bytes, or such as 500M, 2Gi (with a capital letter), not '2gb'"),
        (Bytes, "500m", "must be a size: a number of bytes, or such as 500M, 2Gi (with a capital letter), not '500m'"),
        (Bytes, "0", "must be at least 1 byte and at most 1Ei, not 0"),
        (Bytes, "9E", "must be at least 1 byte and at most 1Ei, not '9E'"),
        (Text, " ", "must not be empty"),
        (Target, "azureml:", "must not be empty"),
        (Name, "a b", "must be made of letters, digits, `.`, `_` and `-`, a letter or a digit first, not 'a b'"),
        (Name, "../up", "must be made of letters, digits, `.`, `_` and `-`, a letter or a digit first, not '../up'"),
        (Name, "-x", "must be made of letters, digits, `.`, `_` and `-`, a letter or a digit first, not '-x'"),
        (Name, "jöb", "must be made of letters, digits, `.`, `_` and `-`, a letter or a digit first, not 'jöb'"),
        (Name, "x\n", "must be made of letters, digits, `.`, `_` and `-`, a letter or a digit first, not 'x\\n'"),
        (Name, "x" * 101, "must have at most 100 characters, not 101"),
        (Variable, "2B", "must be a name of letters, digits and `_`, no digit first, not '2B'"),
        (Variable, "A=B", "must be a name of letters, digits and `_`, no digit first, not 'A=B'"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_what_it_must_be(kind: Any, written: Any, message: str) -> None:
    assert error_for(kind, written) == message


def test_a_number_in_quotes_has_its_remedy() -> None:
    with pytest.raises(ValidationError, match="not the text '4'; leave the quotes out"):
        TypeAdapter(PositiveInt).validate_python("4")


@pytest.mark.parametrize(
    "given", ["hunter2", ["TOKEN=hunter2"], {"TOKEN": "hunter2"}, ["hunter-2"]]
)
def test_what_may_be_a_secret_is_not_repeated(given: object) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Secrets).validate_python(given)
    (error,) = caught.value.errors()
    assert error["msg"] in (
        "must be a list of names of environment variables, such as `[HF_TOKEN]`",
        "must be the name of an environment variable, never what it holds",
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("train", "train"),
        ("my job (2)", "my-job-2"),
        (".hidden", "hidden"),
        ("größe", "gr-e"),
        ("日本", "document"),
        ("x" * 200, "x" * 100),
    ],
)
def test_a_name_is_made_of_any_text(text: str, name: str) -> None:
    assert fit_name(text) == name
    assert value_of(Name, name) == name
