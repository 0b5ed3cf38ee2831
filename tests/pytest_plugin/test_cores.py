"""Cores as the kernel lists them, and which of them the ranks of a world get."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.errors import ComputeFailure
from rankwise.launch.cores import (
    LEVELS,
    Core,
    available_cores,
    cores_for,
    does_yielding_starve,
    domains_of,
    parse_list,
    read_cores,
    read_map,
    share_out,
)
from tests.support.machines import make_machine


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


# Two sockets of two NUMA domains; each of those has two L3 caches of two cores with two threads.
LARGE = {
    "cores": [f"{core},{core + 16}" for core in range(16)],
    "l3": [f"{core}-{core + 1},{core + 16}-{core + 17}" for core in range(0, 16, 2)],
    "numa": [f"{core}-{core + 3},{core + 16}-{core + 19}" for core in range(0, 16, 4)],
    "socket": ["0-7,16-23", "8-15,24-31"],
}


def large(folder: Path, **missing: Sequence[str]) -> list[Core]:
    return read_cores(range(32), make_machine(folder, **{**LARGE, **missing}))


def plain(*domains: Sequence[int]) -> list[Core]:
    """Return cores of domains that are cache, NUMA domain and socket in one."""
    return [Core(core, core, *[min(domain)] * 3) for domain in domains for core in domain]


def test_the_domains_of_each_core_are_read_at_all_levels(tmp_path: Path) -> None:
    cores = {core.number: core for core in large(tmp_path)}
    assert cores[0] == Core(0, core=0, l3=0, numa=0, socket=0)
    assert cores[7] == Core(7, core=7, l3=6, numa=4, socket=0)
    assert cores[31] == Core(31, core=15, l3=14, numa=12, socket=8)


def test_workers_get_one_thread_of_each_core_before_second_ones(tmp_path: Path) -> None:
    assert [core.number for core in large(tmp_path)] == list(range(32))
    mixed = make_machine(tmp_path / "mixed", cores=["0-1", "2-3"], numa=["2-3", "0-1"])
    assert [core.number for core in read_cores(range(4), mixed)] == [0, 2, 1, 3]


def test_near_cores_come_one_after_the_other(tmp_path: Path) -> None:
    """Many machines count their cores by turns: the even ones are of the first socket."""
    machine = make_machine(tmp_path, numa=["0,2,4,6", "1,3,5,7"], l3=["0,4", "2,6", "1,5", "3,7"])
    assert [core.number for core in read_cores(range(8), machine)] == [0, 4, 2, 6, 1, 5, 3, 7]


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ("l3", Core(9, core=9, l3=8, numa=8, socket=8)),
        ("numa", Core(9, core=9, l3=8, numa=8, socket=8)),
        ("socket", Core(9, core=9, l3=8, numa=8, socket=0)),
        ("cores", Core(9, core=9, l3=8, numa=8, socket=8)),
    ],
)
def test_a_level_that_the_system_does_not_tell_is_the_next_larger_one(
    tmp_path: Path, missing: str, expected: Core
) -> None:
    cores = large(tmp_path, **{missing: ()})
    assert next(core for core in cores if core.number == expected.number) == expected


def test_where_the_system_tells_nothing_all_cores_are_in_one_domain(tmp_path: Path) -> None:
    assert read_cores([0, 5], tmp_path / "nothing") == [Core(0, 0, 0, 0, 0), Core(5, 5, 0, 0, 0)]
    assert read_cores([], tmp_path) == []


def test_files_of_another_kind_and_domains_without_cores_are_left_out(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, numa=["0", "", "x", "1"], socket=["0-1"])
    (machine / "cpu/cpu1/topology/package_cpus_list").write_bytes(b"\xff")
    assert [core.numa for core in read_cores([0, 1], machine)] == [0, 1]


def test_the_cores_of_this_machine_are_read() -> None:
    cores = read_cores()
    assert sorted(core.number for core in cores) == available_cores()
    listed = Path("/sys/devices/system/cpu/cpu0/topology/core_cpus_list")
    if listed.exists() and 0 in available_cores():
        first = next(core for core in cores if core.number == 0)
        assert first.core == min(parse_list(listed.read_text()))


# What workers get


def numbers(seats: Sequence[Sequence[Core]]) -> list[list[int]]:
    return [sorted(core.number for core in seat) for seat in seats]


def test_each_worker_has_a_core_of_its_own_or_the_whole_domain_around_it(tmp_path: Path) -> None:
    cores = large(tmp_path)
    assert numbers(share_out("core", 3, cores)) == [[0], [1], [2]]
    l3 = [0, 1, 16, 17]
    assert numbers(share_out("l3", 3, cores)) == [l3, l3, [2, 3, 18, 19]]
    assert numbers(share_out("numa", 5, cores)) == [parse_list(LARGE["numa"][0])] * 4 + [
        parse_list(LARGE["numa"][1])
    ]
    assert numbers(share_out("socket", 16, cores)) == [
        *[parse_list("0-7,16-23")] * 8,
        *[parse_list("8-15,24-31")] * 8,
    ]
    for nothing in ("none", ""):
        assert numbers(share_out(nothing, 2, cores)) == [list(range(32))] * 2


def test_a_worker_may_have_several_cores() -> None:
    cores = plain(range(4), range(4, 8))
    assert numbers(share_out("core", 2, cores, 3)) == [[0, 1, 2], [3, 4, 5]]
    both = list(range(8))
    assert numbers(share_out("numa", 2, cores, 3)) == [[0, 1, 2, 3], both]


def test_more_workers_than_cores_are_spread_over_the_domains() -> None:
    cores = plain([0], [1])
    assert numbers(share_out("numa", 4, cores)) == [[0], [0], [1], [1]]
    assert numbers(share_out("numa", 5, cores)) == [[0], [0], [0], [1], [1]]
    assert numbers(share_out("core", 4, cores)) == [[0, 1]] * 4, "some would be shared, some idle"


def test_a_map_says_which_cores_each_worker_has() -> None:
    cores = plain(range(8))
    assert numbers(share_out("map:6,0-1,2+4-5", 3, cores)) == [[6], [0, 1], [2, 4, 5]]
    assert numbers(share_out("map:3,3,3", 2, cores)) == [[3], [3]]


@pytest.mark.parametrize(
    ("bind", "said"),
    [
        ("map:0,1", "has cores for 2 of 3 workers: add an entry for each"),
        ("map:0,1,8", "core 8 is none of those that the workers may use: 0, 1, 2, 3"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(bind: str, said: str) -> None:
    with pytest.raises(ComputeFailure, match=said):
        share_out(bind, 3, plain(range(4)))


@pytest.mark.parametrize(
    "text", ["", ",", "0,", "0-", "-1", "1-0", "0;1", "a", "0 1", "0+", "0-1-2", "0-999999999"]
)
def test_what_is_no_map_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"0,2-3,4\+6|ends before it begins"):
        read_map(text)


# The domains of slots


def test_slots_on_cores_of_one_domain_are_in_one(tmp_path: Path) -> None:
    seats = share_out("core", 32, large(tmp_path))
    domains = domains_of(seats, [0] * 32)
    assert [len(set(domains[level])) for level in LEVELS] == [16, 8, 4, 2]
    assert domains["node"] == [0] * 32
    assert domains["numa"] == [number for number in range(4) for _ in range(8)]


def test_domains_of_other_machines_are_others() -> None:
    seats = [[core] for core in plain([0, 1])]
    domains = domains_of([*seats, *seats], ["a", "a", "b", "b"])
    assert domains["numa"] == domains["node"] == [0, 0, 1, 1]
    assert domains["core"] == [0, 1, 2, 3]


def test_a_slot_that_may_run_in_several_domains_has_none_of_them_alone() -> None:
    left, right = plain([0, 1], [2, 3])[:2], plain([0, 1], [2, 3])[2:]
    anywhere = [*left, *right]
    assert domains_of([left, right], [0, 0])["numa"] == [0, 1]
    assert domains_of([left, right, anywhere], [0] * 3)["numa"] == [0, 0, 0]
    assert domains_of([left, right, anywhere], [0, 0, 1])["numa"] == [0, 1, 2]


def test_slots_of_which_nothing_is_known_are_in_one_domain() -> None:
    domains = domains_of([[], [], []], ["a", "a", "b"])
    assert all(domains[level] == [0, 0, 1] for level in (*LEVELS, "node"))


@given(st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=6))
def test_slots_are_in_different_domains_only_if_no_chain_of_slots_joins_them(
    reaches: list[set[int]],
) -> None:
    seats = [[Core(core, core, core // 2, 0, 0) for core in reach] for reach in reaches]
    found = domains_of(seats, [0] * len(seats))["l3"]
    joined = [{core // 2 for core in reach} for reach in reaches]
    for _ in reaches:
        joined = [set().union(*(b for b in joined if a & b)) for a in joined]
    for a, one in enumerate(joined):
        for b, other in enumerate(joined):
            assert (found[a] == found[b]) == bool(one & other)


# Ranks


def test_ranks_get_the_cores_of_their_seats() -> None:
    cores = [[core] for core in plain([4, 5, 6, 7])]
    assert cores_for((0, 1), 2, cores) == "4;5"
    assert cores_for((1, 3), 1, cores) == "5,7"
    assert cores_for((0, 1, 2, 3), 2, cores) == "4,5;6,7"
    assert cores_for((0, 1), 2, share_out("numa", 2, plain([0, 1], [2, 3]))) == "0,1;0,1"


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_every_rank_has_as_many_cores_as_threads_and_shares_none(
    ranks: int, threads: int, offset: int
) -> None:
    slots = range(offset, offset + ranks * threads)
    cores = [[core] for core in plain(range(10, 10 + offset + ranks * threads))]
    groups = [parse_list(group) for group in cores_for(slots, ranks, cores).split(";")]
    assert [len(group) for group in groups] == [threads] * ranks
    assert len({core for group in groups for core in group}) == ranks * threads


@pytest.mark.skipif(len(available_cores()) < 2, reason="needs 2 cores, and this machine has one")
def test_all_threads_of_a_rank_are_bound() -> None:
    code = (
        "import os, sys, threading; from rankwise.launch.cores import bind_to; "
        "go, end = threading.Event(), threading.Event(); "
        "thread = threading.Thread(target=lambda: (go.set(), end.wait())); "
        "thread.start(); go.wait(); bind_to(sys.argv[1], 0); "
        "print(*os.sched_getaffinity(thread.native_id)); end.set()"
    )
    command = [sys.executable, "-c", code, str(available_cores()[1])]
    found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert found.stdout.split() == [str(available_cores()[1])]


def test_a_core_that_is_not_there_is_an_error_that_says_what_to_do() -> None:
    code = "from rankwise.launch.cores import bind_to; bind_to('99999', 0)"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert "ComputeFailure: rank 0 cannot be bound to the cores 99999 of " in found.stderr
    assert "--bind=none binds none" in found.stderr


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
