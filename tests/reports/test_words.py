"""Times, sizes, names and ends in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.wording import counted, duration, ending, fold, label, listed, short_path, size


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("worker-2", "worker 2"),
        ("launcher", "launcher"),
        ("parameter-server-10", "parameter-server 10"),
    ],
)
def test_a_process_is_called_by_its_role_and_number(name: str, expected: str) -> None:
    assert label(name) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        (["rank-0"], "rank 0"),
        (["rank-2", "rank-0", "rank-1"], "rank 0-2"),
        (["rank-0", "rank-1", "rank-7"], "rank 0-1, 7"),
        (["launcher", "rank-3"], "launcher and rank 3"),
        (["ps-0", "worker-0", "worker-1", "chief"], "ps 0, worker 0-1 and chief"),
    ],
)
def test_many_processes_are_named_shortly(names: list[str], expected: str) -> None:
    assert fold(names) == expected


def test_long_lists_are_cut() -> None:
    assert listed([]) == ""
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(["a", "b", "c"], most=3) == "a, b and c"
    assert listed(["a", "b", "c", "d"], most=2) == "a, b and 2 more"


def test_nouns_have_their_plurals() -> None:
    assert counted(1, "process") == "1 process"
    assert counted(4, "process") == "4 processes"
    assert counted(0, "task") == "0 tasks"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-0.1, "0 ms"),
        (0.0123, "12 ms"),
        (0.9999, "1.0 s"),
        (1.25, "1.2 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (90000, "1 d 01 h"),
    ],
)
def test_durations_are_as_exact_as_they_need_to_be(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (2048, "2 KiB"), (3 << 30, "3 GiB"), (5 << 50, "5120 TiB")],
)
def test_sizes_have_units(number: int, expected: str) -> None:
    assert size(number) == expected


def test_signals_have_names() -> None:
    assert ending(7, None) == "exit code 7"
    assert ending(None, 11) == "signal 11 (SIGSEGV)"
    assert ending(None, 63) == "signal 63"
    assert ending(None, None) == "an unknown end"


def test_paths_are_shortened_where_they_are_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_path(f"{tmp_path}/runs/job-1") == "runs/job-1"
    assert short_path("/usr/bin") == "/usr/bin"
    assert short_path("") == ""
