"""Whose doing it was that a world is lost."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from rankwise.testing.blackbox import OutputTail
from rankwise.testing.crew.inquest import Inquest, find_culprit
from rankwise.testing.crew.worlds import World

ABORT = "Abort(7) on node 1: application called MPI_Abort(MPI_COMM_WORLD, 7)"


class Said:
    """What a rank has written to stderr."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read(self) -> dict[str, str]:
        return {"stderr": self._text}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(number=1, size=3, venue="shared", threads=1, box_folder=tmp_path, started=0.0)


def say(world: World, rank: int, text: str) -> None:
    world.outputs[rank] = cast(OutputTail, Said(text))


def end(world: World, rank: int, status: int) -> None:
    world.culprits.append(rank)
    world.ended[rank] = status


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
    world.suspects.append(1)
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
    ending = Inquest((), grace=1.0).on_crash_after(world, 1)
    assert ending.headline == "rank 1 of 3 called MPI_Abort in call"
