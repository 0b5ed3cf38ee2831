"""What is reported of a test that was ended from outside."""

from __future__ import annotations

import io
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from _pytest._io import TerminalWriter

from rankwise.pytest_plugin.failure_report import (
    AbortedTest,
    EndedRepr,
    FailureReport,
    describe_status,
    report_ending,
)
from rankwise.pytest_plugin.rank_status import OutputTail, Phase, count_memory_kills, describe_phase
from rankwise.pytest_plugin.serialize import RankResult
from rankwise.pytest_plugin.stacks import Frame, Stack
from rankwise.pytest_plugin.workers.worlds import World, find_culprit

ROOT = Path("/suite")
TEST: Any = SimpleNamespace(
    nodeid="test_it.py::test_it",
    location=("test_it.py", 6, "test_it"),
    keywords={"test_it": 1, "parallel": 1},
    config=cast(Any, None),
    ihook=cast(Any, None),
)


def stack(line: int, function: str = "test_it") -> Stack:
    return (
        Frame("/site/mpi4py/MPI.py", 99, "Barrier"),
        Frame("/suite/test_it.py", line, function),
        Frame("/site/_pytest/python.py", 1, "runtest"),
    )


def report(
    when: Literal["setup", "call", "teardown"],
    outcome: Literal["passed", "failed", "skipped"] = "passed",
    longrepr: Any = None,
) -> pytest.TestReport:
    return pytest.TestReport(
        TEST.nodeid, TEST.location, {}, outcome, longrepr, when, duration=0.25, start=1.0, stop=1.25
    )


def shown(one: pytest.TestReport) -> str:
    stream = io.StringIO()
    one.toterminal(TerminalWriter(stream))
    return stream.getvalue()


def failed_one(reports: list[pytest.TestReport]) -> pytest.TestReport:
    (found,) = (one for one in reports if one.failed)
    return found


# How a process ended


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, "exited with code 0 ("),
        (3, "exited with code 3 ("),
        (-signal.SIGSEGV, "was killed by SIGSEGV (segmentation fault)"),
        (-signal.SIGABRT, "was killed by SIGABRT (abort)"),
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (-signal.SIGTERM, "was killed by SIGTERM"),
        (-(signal.SIGRTMIN + 3), f"was killed by signal {signal.SIGRTMIN + 3}"),
        (-signal.SIGRTMIN, "was killed by SIGRTMIN"),
        (None, "was lost"),
    ],
)
def test_the_end_of_a_process_is_said_in_words(status: int | None, text: str) -> None:
    assert describe_status(status).startswith(text)


def test_only_a_kill_is_put_down_to_memory() -> None:
    killed = describe_status(-signal.SIGKILL, out_of_memory=True)
    assert killed == "was killed by SIGKILL (the machine is out of memory)"
    assert "memory" not in describe_status(-signal.SIGSEGV, out_of_memory=True)
    assert "memory" not in describe_status(-signal.SIGKILL)


@pytest.mark.parametrize("phase", ["setup", "call", "teardown"])
def test_phases_are_named_as_pytest_names_them(phase: Phase) -> None:
    assert describe_phase(phase) == f"in {phase}"


def test_the_end_of_wider_fixtures_is_named_in_words() -> None:
    assert "wider scope" in describe_phase("closing")


# Reports


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("setup", [("setup", "failed"), ("teardown", "passed")]),
        ("call", [("setup", "passed"), ("call", "failed"), ("teardown", "passed")]),
        ("teardown", [("setup", "passed"), ("call", "passed"), ("teardown", "failed")]),
        ("closing", [("teardown", "failed")]),
    ],
)
def test_pytest_gets_the_phases_up_to_the_one_that_failed_and_a_teardown(
    phase: Phase, expected: list[tuple[str, str]]
) -> None:
    """A test is over for pytest when its teardown was reported."""
    reports = report_ending(TEST, AbortedTest(size=2, phase=phase, headline="gone"), ROOT)
    assert [(one.when, one.outcome) for one in reports] == expected
    assert {one.nodeid for one in reports} == {TEST.nodeid}
    assert all(one.location == TEST.location for one in reports)
    assert all("parallel" in one.keywords for one in reports)


def test_a_report_says_how_long_the_phase_had_taken() -> None:
    ending = AbortedTest(size=1, phase="call", headline="gone", seconds=12.5)
    found = failed_one(report_ending(TEST, ending, ROOT))
    assert found.duration == 12.5
    assert found.stop - found.start == pytest.approx(12.5)


def test_what_others_said_of_earlier_phases_is_kept() -> None:
    said = RankResult(reports=[report("setup"), report("call")])
    ending = AbortedTest(size=2, phase="teardown", headline="gone", ended={1: said})
    setup, call, _ = report_ending(TEST, ending, ROOT)
    assert (setup.duration, call.duration) == (0.25, 0.25)


def test_an_earlier_phase_that_did_not_pass_everywhere_is_no_second_failure() -> None:
    said = RankResult(reports=[report("setup", "skipped", ("f", 1, "Skipped: no"))])
    ending = AbortedTest(size=2, phase="call", headline="gone", ended={1: said})
    reports = report_ending(TEST, ending, ROOT)
    assert [one.outcome for one in reports] == ["passed", "failed", "passed"]


def test_the_phase_in_which_a_rank_failed_by_itself_is_the_one_that_failed() -> None:
    """Rank 1 was in its teardown by then, and rank 0 still waited for it in the call."""
    failed = RankResult(reports=[report("setup", "failed", "E   no file"), report("teardown")])
    ending = AbortedTest(size=2, phase="call", headline="rank 1 failed", failed={1: failed})
    reports = report_ending(TEST, ending, ROOT)
    assert [(one.when, one.outcome) for one in reports] == [
        ("setup", "failed"),
        ("teardown", "passed"),
    ]


def test_what_failed_first_is_shown_before_where_the_others_wait() -> None:
    failed = RankResult(reports=[report("call", "failed", "E   assert 1 == 2")])
    ending = AbortedTest(
        size=3,
        phase="call",
        headline="rank 1 of 3 failed, and the others did not end within 5 s",
        failed={1: failed},
        waiting={0: stack(12), 2: stack(12)},
    )
    text = shown(failed_one(report_ending(TEST, ending, ROOT)))
    order = [
        "E   rank 1 of 3 failed, and the others",
        "rank 1 of 3 failed first",
        "E   assert 1 == 2",
        "where the others wait",
        "ranks 0, 2 of 3",
        "test_it.py:12",
    ]
    places = [text.find(part) for part in order]
    assert -1 not in places, text
    assert places == sorted(places)


def test_without_a_failure_it_is_shown_where_every_rank_is() -> None:
    ending = AbortedTest(
        size=2, phase="call", headline="no end", waiting={0: stack(12)}, unanswered=[1]
    )
    text = shown(failed_one(report_ending(TEST, ending, ROOT)))
    assert "where every rank is" in text
    assert "rank 1 of 2: did not answer" in text


def test_ranks_that_all_kept_silent_are_named() -> None:
    ending = AbortedTest(size=2, phase="call", headline="no end", unanswered=[0, 1])
    text = shown(failed_one(report_ending(TEST, ending, ROOT)))
    assert "all 2 ranks: did not answer" in text


def test_it_is_shown_where_a_rank_crashed() -> None:
    ending = AbortedTest(size=2, phase="call", headline="rank 0 was killed", crashes={0: stack(31)})
    text = shown(failed_one(report_ending(TEST, ending, ROOT)))
    assert "where it was" in text
    assert "test_it.py:31" in text


def test_where_nothing_more_is_known_the_headline_is_all() -> None:
    found = failed_one(
        report_ending(TEST, AbortedTest(size=1, phase="call", headline="gone"), ROOT)
    )
    assert shown(found).strip() == "E   gone"


# The line that the summary names


def crash_of(ending: AbortedTest) -> tuple[str, int, str]:
    longrepr = failed_one(report_ending(TEST, ending, ROOT)).longrepr
    assert isinstance(longrepr, EndedRepr)
    place = longrepr.reprcrash
    return place.path, place.lineno, place.message


def test_the_summary_names_the_line_of_the_test_where_it_crashed() -> None:
    ending = AbortedTest(
        size=2,
        phase="call",
        headline="gone",
        crashes={1: stack(31)},
        waiting={0: stack(12)},
    )
    assert crash_of(ending) == ("/suite/test_it.py", 31, "gone")


def test_or_the_line_where_it_waited() -> None:
    ending = AbortedTest(size=2, phase="call", headline="gone", waiting={0: (), 1: stack(12)})
    assert crash_of(ending) == ("/suite/test_it.py", 12, "gone")


def test_or_else_the_line_of_the_test_itself_counted_from_one() -> None:
    assert crash_of(AbortedTest(size=2, phase="call", headline="gone")) == ("test_it.py", 7, "gone")


# Output


@pytest.mark.parametrize(
    ("phase", "name"), [("setup", "setup"), ("call", "call"), ("closing", "teardown")]
)
def test_the_last_output_of_ranks_is_shown_with_their_names(phase: Phase, name: str) -> None:
    ending = AbortedTest(
        size=2,
        phase=phase,
        headline="gone",
        output={1: {"stdout": "spoken", "stderr": "wrong"}, 0: {"stdout": "zero"}},
    )
    found = failed_one(report_ending(TEST, ending, ROOT))
    assert found.sections == [
        (f"Captured stdout {name} (rank 0 of 2)", "zero"),
        (f"Captured stdout {name} (rank 1 of 2)", "spoken"),
        (f"Captured stderr {name} (rank 1 of 2)", "wrong"),
    ]


# Whose doing it was that a world is lost

ABORT = "Abort(7) on node 1: application called MPI_Abort(MPI_COMM_WORLD, 7)"
FATAL = "Abort(336) on node 1 (rank 1 in comm 0): Fatal error in internal_Send: Invalid rank"


class Said:
    """What a rank has written to stderr."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read(self) -> dict[str, str]:
        return {"stderr": self._text}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(
        number=1, size=3, world_kind="shared", threads=1, status_folder=tmp_path, started=0.0
    )


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


def test_who_only_writes_about_abort_is_not_blamed_for_an_exit_code(world: World) -> None:
    end(world, 0, 3)
    say(world, 1, "Abort(retry) is a word; so is a test of error messages: MPI_Abort")
    assert find_culprit(world) == 0


@pytest.mark.parametrize(
    ("status", "said", "how"),
    [
        (7, ABORT, "called MPI_Abort (exit code 7)"),
        (7, f"without a newline {ABORT}", "called MPI_Abort (exit code 7)"),
        (15, FATAL, "had an error of MPI that ends all ranks (exit code 15)"),
        (None, FATAL, "had an error of MPI that ends all ranks"),
        (7, "of MPI_Abort", "exited with code 7 (os._exit, MPI_Abort or exit of a C library)"),
        (-11, ABORT, "was killed by SIGSEGV (segmentation fault)"),
    ],
)
def test_an_abort_is_said_to_be_one(world: World, status: int | None, said: str, how: str) -> None:
    world.rank_exited(1, status)
    say(world, 1, said)
    report = FailureReport((), grace=1.0, memory_kills=count_memory_kills())
    _, ending = report.on_end_after(world, 1, "")
    assert ending.headline == f"rank 1 of 3 {how} between two tests"


def test_a_rank_that_has_closed_its_line_is_blamed_if_no_other_is(world: World) -> None:
    world.rank_disconnected(1)
    assert find_culprit(world) == 1
    end(world, 0, -9)
    assert find_culprit(world) == 0


def test_if_no_rank_failed_none_is_blamed(world: World) -> None:
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
