"""Command lines with names in them, and what is found in what they write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankwise.backends.base import Unreachable
from rankwise.backends.cloud import ProviderConnection, capture, fill, names_in, series_in
from rankwise.backends.remote.tracked import Tracked
from rankwise.documents.site_models import CommandConfig


def test_a_value_in_a_command_line_stays_one_word() -> None:
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
def test_captured_values_are_all_found_or_none_is(
    rules: dict[str, str], output: str, found: dict[str, str] | None
) -> None:
    assert capture(rules, output, "a.b") == found


def test_values_are_captured_from_the_list_entry_with_the_name() -> None:
    entries = [{"id": "other", "tags": ["rankwise-2"]}, {"id": "ours", "tags": ["rankwise-1"]}]
    assert capture({"id": "$.id"}, json.dumps(entries), "rankwise-1") == {"id": "ours"}
    assert capture({"id": "$.id"}, json.dumps(entries), "rankwise-3") is None


AT = 1_700_000_000.0
AS_OF_GRADIENT = f"""
{{"gpu": {{"n1": [{{"time_stamp": {AT + 60}, "value": "97.5"}}, {{"time_stamp": {AT}, "value": "12"}}]}}}}
"""
HERE = {"gpu": [(AT, 12.0), (AT + 60, 97.5)]}


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (AS_OF_GRADIENT, HERE),
        (f'working …\n{{"gpu": [[{AT}, 12], [{AT + 60}, "97.5"]]}}', HERE),
        ("time,gpu\n2023-11-14 22:13:20,12\n2023-11-14T22:14:20Z,97.5\n", HERE),
        (
            f'{{"gpu": [[{AT}, 12], [{AT + 60}, null], ["x", 1], [{AT}, "NaN"]]}}',
            {"gpu": [(AT, 12)]},
        ),
        ("time,gpu,fan\n1700000000,12\n\n1700000060,97.5,\n", HERE),
        ("{}", {}),
    ],
)
def test_measurements_of_a_provider_are_read_as_json_or_csv(
    output: str, found: dict[str, list[tuple[float, float]]]
) -> None:
    assert series_in(output) == found


@pytest.mark.parametrize("output", ["", "no such notebook\n", "\x00"])
def test_what_is_no_measurement_is_named(output: str) -> None:
    with pytest.raises(ValueError, match="neither JSON nor CSV"):
        series_in(output)


# What a provider's own command line sends to an instance: no other user can read it, and it is soon removed

SECRET = b"Aj7-qqz-tell-nobody"
SEND = """\
#!/bin/sh
# Copies as tools do that have a mode of their own, and notes who can come to the file.
[ ! -e {here}/broken-send ] || {{ cp "$1" "$2"; chmod 644 "$2"; exit 1; }}
cp "$1" "$2" && chmod 644 "$2" && stat -c %a "$(dirname "$2")" >> {here}/modes
"""
RUN = """\
#!/bin/sh
[ ! -e {here}/broken-run ] || exit 255
exec /bin/sh -c "$1"
"""


@pytest.fixture
def line(tmp_path: Path) -> ProviderConnection:
    """Open a line to an instance that is a folder of this machine."""
    for name, text in (("send", SEND), ("run", RUN)):
        (tmp_path / name).write_text(text.format(here=tmp_path))
        (tmp_path / name).chmod(0o755)
    # Everybody may look into them: they were there before.
    tmp_path.chmod(0o755)
    (tmp_path / "there").mkdir(mode=0o755)
    command = CommandConfig(
        run=(str(tmp_path / "run"), "${{command}}"),
        send=(str(tmp_path / "send"), "${{source}}", "${{target}}"),
        folder=str(tmp_path / "there"),
    )
    return ProviderConnection("one", {"name": "one"}, command, Tracked(tmp_path / "ledger"))


def left_there(folder: Path) -> list[Path]:
    return [path for path in (folder / "there").rglob("*") if path.is_file()]


def test_sent_files_are_readable_by_their_owner_only_whatever_mode_the_tool_gives_them(
    line: ProviderConnection, tmp_path: Path
) -> None:
    said = line.call(f"cat; find {tmp_path}/there -type f", given=[SECRET])
    assert (said.exit_code, said.output) == (0, SECRET), "it is gone while the line still runs"
    assert (tmp_path / "modes").read_text() == "700\n"
    assert left_there(tmp_path) == []


def test_a_command_that_fails_leaves_no_sent_file(line: ProviderConnection, tmp_path: Path) -> None:
    assert line.call("cat; exit 3", given=[SECRET]).exit_code == 3
    assert left_there(tmp_path) == []


@pytest.mark.parametrize("broken", ["send", "run"])
def test_sent_files_that_could_not_be_removed_are_removed_by_the_next_call(
    line: ProviderConnection, tmp_path: Path, broken: str
) -> None:
    line.call("true", given=[b"x"])
    (tmp_path / f"broken-{broken}").touch()
    if broken == "send":
        with pytest.raises(Unreachable):
            line.call("cat", given=[SECRET])
    else:
        assert line.call("cat", given=[SECRET]).exit_code == 255
    assert [path.read_bytes() for path in left_there(tmp_path)] == [SECRET]
    (tmp_path / f"broken-{broken}").unlink()
    assert line.call("cat", given=[b"again"]).output == b"again"
    assert left_there(tmp_path) == []
