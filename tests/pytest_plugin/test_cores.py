"""Cores as the kernel lists them, and which of them the ranks of a world get."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.launch.cores import (
    available_cores,
    cores_for,
    does_yielding_starve,
    domains_of,
    parse_list,
)


def machine(folder: Path, *domains: str) -> Path:
    for number, cores in enumerate(domains):
        node = folder / f"node{number}"
        node.mkdir()
        (node / "cpulist").write_text(f"{cores}\n")
    return folder


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0", [0]),
        ("0-3", [0, 1, 2, 3]),
        ("0-1,8-9,12\n", [0, 1, 8, 9, 12]),
        ("", []),
        ("\n", []),
    ],
)
def test_a_list_of_cores_is_read_as_the_kernel_writes_it(text: str, cores: list[int]) -> None:
    assert parse_list(text) == cores


def test_the_cores_are_those_that_this_process_may_use() -> None:
    assert available_cores() == sorted(os.sched_getaffinity(0))


def test_each_core_has_its_domain(tmp_path: Path) -> None:
    nodes = machine(tmp_path, "0-1,4-5", "2-3,6-7")
    assert domains_of(range(8), nodes) == [0, 0, 1, 1, 0, 0, 1, 1]


def test_domains_are_counted_from_zero_without_gaps(tmp_path: Path) -> None:
    """A job may have cores of the second and the fourth domain only."""
    nodes = machine(tmp_path, "0-1", "2-3", "4-5", "6-7")
    assert domains_of([2, 3, 7], nodes) == [0, 0, 1]


def test_the_tenth_domain_comes_after_the_second(tmp_path: Path) -> None:
    nodes = machine(tmp_path, *(str(core) for core in range(12)))
    assert domains_of(range(12), nodes) == list(range(12))


def test_without_domains_all_cores_are_in_one(tmp_path: Path) -> None:
    assert domains_of([0, 5, 9], tmp_path / "nothing") == [0, 0, 0]
    assert domains_of([], tmp_path) == []


def test_what_is_no_domain_is_left_out(tmp_path: Path) -> None:
    """A domain may have memory and no cores; and a folder may be something else."""
    nodes = machine(tmp_path, "0-1", "")
    (tmp_path / "nodes_of_another_kind").mkdir()
    (tmp_path / "nodes_of_another_kind" / "cpulist").write_text("0-1")
    assert domains_of([0, 1], nodes) == [0, 0]


def test_ranks_get_the_cores_of_their_seats() -> None:
    assert cores_for((0, 1), 2, [4, 5, 6, 7]) == "4;5"
    assert cores_for((1, 3), 1, [4, 5, 6, 7]) == "5,7"
    assert cores_for((0, 1, 2, 3), 2, [4, 5, 6, 7]) == "4,5;6,7"


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_every_rank_has_as_many_cores_as_threads_and_shares_none(
    ranks: int, threads: int, offset: int
) -> None:
    slots = range(offset, offset + ranks * threads)
    cores = [10 + slot for slot in range(offset + ranks * threads)]
    groups = [parse_list(group) for group in cores_for(slots, ranks, cores).split(";")]
    assert [len(group) for group in groups] == [threads] * ranks
    assert len({core for group in groups for core in group}) == ranks * threads


@pytest.mark.parametrize("rank", [0, 1, 5])
def test_a_rank_stays_on_its_cores_and_one_that_has_none_is_left_alone(rank: int) -> None:
    """In a process of its own: this one goes on to use all of its cores."""
    cores = available_cores()
    text = f"{cores[0]};{cores[-1]}"
    code = "import os, sys; from rankwise.launch.cores import bind_to; bind_to(sys.argv[1], int(sys.argv[2])); print(*sorted(os.sched_getaffinity(0)))"
    found = subprocess.run(
        [sys.executable, "-c", code, text, str(rank)],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    expected = {0: cores[:1], 1: cores[-1:]}.get(rank, cores)
    assert [int(core) for core in found.stdout.split()] == expected


@pytest.mark.parametrize(
    ("release", "starves"),
    [
        ("5.10.0-30-amd64", False),
        ("6.12.62", False),
        ("6.12.63+deb13-amd64", True),
        ("6.13.1", False),
        ("6.17.12", False),
        ("6.17.13-zen1", True),
        ("6.18.44-fc-v490", True),
        ("7.1", True),
        ("unknown", False),
    ],
)
def test_kernels_on_which_waiting_ranks_starve_others_are_known(
    release: str, starves: bool
) -> None:
    assert does_yielding_starve(release) is starves
