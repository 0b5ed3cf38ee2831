from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.launch.rewriting import NAMES, in_shell, names_in, substitute
from rankwise.plan import later
from tests.launch.test_command import LINES

VALUES = {"NODE_RANK": "3", "MASTER_ADDR": later("address:0"), "MASTER_PORT": later("port:m@0")}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a --node_rank NODE_RANK b", "a --node_rank 3 b"),
        ("a --node_rank=NODE_RANK", "a --node_rank=3"),
        ("a -r=NODE_RANK", "a -r=3"),
        ("python train.py NODE_RANK", "python train.py 3"),
        ("cd x && a NODE_RANK | b NODE_RANK", "cd x && a 3 | b 3"),
        ("a   NODE_RANK \\\n  NODE_RANK", "a   3 \\\n  3"),
    ],
)
def test_names_written_as_words_become_values(line: str, expected: str) -> None:
    assert substitute(line, VALUES) == expected


@pytest.mark.parametrize(
    "line",
    [
        "a $NODE_RANK ${NODE_RANK}",
        'a "NODE_RANK"',
        "a 'NODE_RANK'",
        "python -c \"print('NODE_RANK')\"",
        "a MY_NODE_RANK NODE_RANK_2 node_rank xNODE_RANK",
        "A=NODE_RANK a",
        "mpirun -x NODE_RANK ./a",
        "mpirun -genv NODE_RANK 5 ./a",
        "mpirun --genvlist NODE_RANK ./a",
        "env -u NODE_RANK ./a",
        "export NODE_RANK; unset NODE_RANK; printenv NODE_RANK",
        "a RANK LOCAL_RANK",
        "a NODE_RANK 'open",
        "a NODE_RANK:unknown",
        "a # NODE_RANK",
    ],
)
def test_what_is_no_plain_word_is_left_to_the_shell(line: str) -> None:
    assert substitute(line, VALUES) == line


def test_only_names_on_the_list_are_replaced() -> None:
    assert substitute("a HOME NODE_RANK", {"HOME": "/root", "NODE_RANK": "1"}) == "a HOME 1"
    assert "HOME" not in NAMES


def test_names_may_be_joined_by_colons() -> None:
    line = "torchrun --rdzv_endpoint MASTER_ADDR:MASTER_PORT a.py"
    expected = f"torchrun --rdzv_endpoint {later('address:0')}:{later('port:m@0')} a.py"
    assert substitute(line, VALUES) == expected


def test_values_are_quoted_where_the_shell_would_break_them() -> None:
    folder = later("folder") + "/hostfile"
    assert in_shell("3") == "3"
    assert in_shell(later("address:0")) == later("address:0")
    assert in_shell(folder) == f"'{folder}'"
    assert substitute("a TF_CONFIG", {"TF_CONFIG": '{"a": 1}'}) == "a '{\"a\": 1}'"


def test_the_names_that_stand_in_a_line_are_told() -> None:
    assert names_in("a MASTER_ADDR:MASTER_PORT $NODE_RANK", VALUES) == [
        "MASTER_ADDR",
        "MASTER_PORT",
    ]


@settings(deadline=None)
@given(
    LINES, st.dictionaries(st.sampled_from(sorted(NAMES)), st.from_regex(r"\A[a-z0-9 '$]{0,6}\Z"))
)
def test_substitution_is_idempotent_and_never_raises(line: str, values: dict[str, str]) -> None:
    once = substitute(line, values)
    assert substitute(once, values) == once


@settings(deadline=None)
@given(LINES)
def test_without_variables_nothing_changes(line: str) -> None:
    assert substitute(line, {}) == line
