"""Command lines with names in them, and what is found in what they write."""

from __future__ import annotations

import json

import pytest

from rankwise.backends.cloud import capture, fill, names_in


def test_a_value_stays_within_its_word() -> None:
    words = ["cloud", "run", "${{id}}", "--line=${{ command }}"]
    values = {"id": "i 1; rm -rf /", "command": "echo '${{id}}' $HOME"}
    filled = fill(words, values)
    assert filled == ["cloud", "run", "i 1; rm -rf /", "--line=echo '${{id}}' $HOME"]
    assert names_in(words) == {"id", "command"}


@pytest.mark.parametrize(
    ("rules", "output", "found"),
    [
        ({"id": "$.id"}, '{"id": "i-1"}', {"id": "i-1"}),
        ({"id": "$.id"}, 'Creating …\n{"id": 17}\n', {"id": "17"}),
        ({"id": "$.id"}, '[1/2] working\n{"id": "i-1"}', {"id": "i-1"}),
        ({"ip": "$.net[0].ip"}, '{"net": [{"ip": "10.0.0.1"}]}', {"ip": "10.0.0.1"}),
        ({"id": r"^created (\S+)"}, "hello\ncreated i-9 now", {"id": "i-9"}),
        ({"id": r"${{name}}\s+(\S+)"}, "a.b x\naxb y", {"id": "x"}),
        ({"id": "$.id"}, '{"id": null}', None),
        ({"id": "$.id"}, "no such zone", None),
        ({"id": "$.id", "ip": "$.ip"}, '{"id": "i-1"}', None),
        ({}, "whatever", {}),
    ],
)
def test_values_are_found_or_it_is_said_that_they_are_not(
    rules: dict[str, str], output: str, found: dict[str, str] | None
) -> None:
    assert capture(rules, output, "a.b") == found


def test_of_a_list_the_entry_with_the_name_counts() -> None:
    entries = [{"id": "other", "tags": ["rankwise-2"]}, {"id": "ours", "tags": ["rankwise-1"]}]
    assert capture({"id": "$.id"}, json.dumps(entries), "rankwise-1") == {"id": "ours"}
    assert capture({"id": "$.id"}, json.dumps(entries), "rankwise-3") is None
