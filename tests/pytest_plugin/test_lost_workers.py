"""Whose doing it was that a world is lost."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from rankwise.pytest_plugin.failure_report import FailureReport
from rankwise.pytest_plugin.rank_status import OutputTail, count_memory_kills
from rankwise.pytest_plugin.workers.worlds import World, find_culprit

ABORT = "Abort(7) on node 1: application called MPI_Abort(MPI_COMM_WORLD, 7)"


class Said:
    """What a rank has written to stderr."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read(self) -> dict[str, str]:
        return {"stderr": self._text}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(number=1, size=3, world_kind="shared", threads=1, box_folder=tmp_path, started=0.0)


def say(world: World, rank: int, text: str) -> None:
    world.outputs[rank] = cast(OutputTail, Said(text))


def end(world: World, rank: int, status: int) -> None:
    world.rank_exited(rank, status)


def test_it_is_the_rank_that_ended_first(world: World) -> None:
    end(world, 2, -11)
    end(world, 0, -11)
    assert find_culprit(world) == 2


def test_of_ranks_that_left_with_a_code_it_is_the_one_that_called_abort(world: World) -> None:
    end(world, 0, 7)
    end(world, 1, 7)
    say(world, 0, "")
    say(world, 1, ABORT)
    assert find_culprit(world) == 1


def test_the_one_that_called_abort_may_not_have_ended_yet(world: World) -> None:
    end(world, 0, 7)
    say(world, 2, ABORT)
    assert find_culprit(world) == 2


def test_who_only_writes_about_abort_is_not_blamed_for_a_signal(world: World) -> None:
    end(world, 0, -11)
    say(world, 1, "a test of error messages: MPI_Abort")
    assert find_culprit(world) == 0


def test_a_rank_that_has_closed_its_line_is_blamed_if_nobody_else_is(world: World) -> None:
    world.rank_disconnected(1)
    assert find_culprit(world) == 1
    end(world, 0, -9)
    assert find_culprit(world) == 0


def test_if_no_rank_did_anything_nobody_is_blamed(world: World) -> None:
    assert find_culprit(world) is None


def test_a_rank_that_called_abort_but_was_killed_on_its_way_out_is_said_to_have_called_it(
    world: World,
) -> None:
    say(world, 1, ABORT)
    world.ended[1] = None
    world.note_test(1, 7)
    case, ending = FailureReport((), grace=1.0, memory_kills=count_memory_kills()).on_end_after(
        world, 1, ""
    )
    assert case == 7
    assert ending.headline == "rank 1 of 3 called MPI_Abort between two tests"


def test_a_world_that_ended_from_outside_names_the_test_that_ran_there_last(world: World) -> None:
    assert (
        FailureReport((), grace=1.0, memory_kills=count_memory_kills()).on_end_after(
            world, None, ""
        )[0]
        is None
    )
    for rank, test in ((0, 1), (1, 2), (0, 3)):
        world.note_test(rank, test)
    case, ending = FailureReport((), grace=1.0, memory_kills=count_memory_kills()).on_end_after(
        world, None, "mpiexec was killed"
    )
    assert case == 3
    assert ending.headline == "all 3 ranks were ended from outside between two tests"
    assert ending.log == "mpiexec was killed"


def test_an_exit_code_at_the_end_of_a_process_is_only_that(world: World) -> None:
    end(world, 2, 23)
    world.note_test(2, 0)
    world.finish()
    _, ending = FailureReport((), grace=1.0, memory_kills=count_memory_kills()).on_end_after(
        world, 2, ""
    )
    assert ending.headline == (
        "rank 2 of 3 ended with exit code 23 after its last test, at the end of the process"
    )
