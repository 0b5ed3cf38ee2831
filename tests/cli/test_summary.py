"""The last screen of a run: it fits, begins with what failed first, and ends with a command."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from rankwise.plan import Plan
from rankwise.reports.terminal.console import GitHubSections, GitLabSections, Sections
from rankwise.reports.terminal.run_end import show_last
from rankwise.store import RunRow, State, Store
from tests.reports.made_runs import BEGUN, begin, end, make_run, one_task, passed_run, worker
from tests.reports.matrix_runs import Done, make_matrix
from tests.reports.measured_runs import osu_sweep
from tests.reports.test_folding import obeyed_by_github

WIDTH, HEIGHT = 80, 24
LOG = "".join(
    f"line {number} of a long story that does not fit: {'x' * 90}\n" for number in range(40)
)


def screen(store: Store, run: str, *, width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """Give the lines of the window that the end of a run takes."""
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        height=height,
        force_terminal=True,
        color_system=None,
        markup=False,
        highlight=False,
    )
    show_last(store, store.run(run), console, Sections())
    found = []
    for line in stream.getvalue().splitlines():
        parts = max(1, math.ceil(cell_len(line) / width))
        found += [line[number * width : (number + 1) * width] for number in range(parts)]
    return found


def many(store: Store, kind: str, *, tasks: int = 300, red: int = 45) -> str:
    """Store a run in which the last ones of many tasks have failed, the last one first."""
    keys = [f"task-{number}" for number in range(tasks)]
    plan = Plan(
        name=kind.lower(),
        kind=kind,
        tasks=tuple(one_task(key, ranks=1) for key in keys),
        source=str(Path(f"{kind.lower()}.yaml").absolute()),
    )
    with store.together():
        run = store.create_run(plan, f"type: {kind}\n", now=BEGUN)
        store.run_started(run, now=BEGUN)
        for key in keys[:-red]:
            store.task_over(run, key, State.PASSED, exit_code=0, now=BEGUN + 1)
        for number, key in enumerate(keys[-red:]):
            begin(store, run, key, logs={"worker-0": LOG})
            reason = f"worker 0 left with exit code {number + 1} {'because ' * (number % 20)}"
            if number % 3 == 0:
                reason += "\n  | and it said so\n" * 9
            end(
                store,
                run,
                key,
                state=State.FAILED,
                exit_code=number + 1,
                culprit="worker-0",
                reason=reason,
                after=100 - number,
                processes=(worker(0, number + 1),),
            )
        store.run_ended(run, State.FAILED, exit_code=45, now=BEGUN + 100)
    return run


@pytest.mark.parametrize("kind", ["PytorchJob", "Suite", "Sweep", "Pipeline"])
def test_dozens_of_failures_fit_on_a_screen(store: Store, kind: str) -> None:
    run = many(store, kind)
    for width, height in ((80, 24), (120, 50), (50, 24), (80, 18)):
        lines = screen(store, run, width=width, height=height)
        text = "\n".join(lines)
        # The prompt takes one.
        assert len(lines) <= height - 1, text
        assert re.search(r"\.\.\. and \d+ more", text)
        assert lines[-1].split() == ["more", "rankwise", "explain", run]
    # What failed first is quoted first, by what it wrote last.
    lines = screen(store, run)
    named = re.findall(r"^ *(task-\d+) +failed", "\n".join(lines), re.MULTILINE)
    assert list(dict.fromkeys(named))[:3] == ["task-299", "task-298", "task-297"]
    first = next(number for number, line in enumerate(lines) if "failed: worker 0 left" in line)
    assert lines[first].startswith("task-299 failed: worker 0 left with exit code 45")
    assert any("line 39 of" in line for line in lines)
    assert any(line.startswith(f"{run} failed") and "exit code 45" in line for line in lines)
    assert "255 passed, 45 failed" in "\n".join(lines)


def test_all_that_failed_is_named_where_there_is_room(store: Store) -> None:
    run = many(store, "Suite", tasks=20, red=3)
    text = "\n".join(screen(store, run, width=200, height=60))
    assert "more\n" not in text
    assert [name for name in ("task-17", "task-18", "task-19") if text.count(name) == 2] == [
        "task-17",
        "task-18",
        "task-19",
    ]
    assert "  again  rankwise run suite.yaml --failed\n" in text


def test_what_was_measured_fits_beside_what_failed(store: Store) -> None:
    run = osu_sweep(store)
    lines = screen(store, run)
    assert len(lines) <= HEIGHT - 1, "\n".join(lines)
    assert any(line.split()[:1] == ["latency"] for line in lines)
    assert any(line.startswith("osu-intel-4 crashed") for line in lines)
    assert lines[-1].split() == ["more", "rankwise", "explain", run]


def test_a_large_matrix_fits_with_what_is_red_in_it(store: Store) -> None:
    cells = {
        (f"runtime-{row}", f"machine-{column}", "test.py"): Done(took=0.5)
        for row in range(30)
        for column in range(20)
    }
    red = Done(state=State.FAILED, reason="exit code 1", log="wrong\n" * 30, took=0.5)
    for number in range(12):
        cells[f"runtime-{29 - number}", "machine-19", "test.py"] = red
    cells["runtime-3", "machine-5", "test.py"] = Done(state=State.NOT_RUN, reason="no GPU here")
    with store.together():
        run = make_matrix(store, cells)
    lines = screen(store, run)
    text = "\n".join(lines)
    assert len(lines) <= HEIGHT - 1, text
    # The first that are red, and none that is not.
    assert re.findall(r"^  (runtime-\d+) ", text, re.MULTILINE)[:2] == ["runtime-3", "runtime-18"]
    assert "runtime-0 " not in text
    assert "machine-19 " in text
    assert re.search(r"\.\.\. and \d+ runtimes and \d+ machines more", text)
    assert lines[-1].split() == ["more", "rankwise", "explain", run]


def test_a_run_that_passed_ends_with_a_command_too(store: Store) -> None:
    assert screen(store, passed_run(store))[-1] == "  logs  rankwise logs job-1"
    run = make_run(store, one_task("a"), one_task("b"), name="two")
    for key in ("a", "b"):
        store.task_over(run, key, State.PASSED, exit_code=0, now=BEGUN)
    store.run_ended(run, State.PASSED, exit_code=0, now=BEGUN)
    assert screen(store, run)[-1] == "  more  rankwise report two-1"


def folded(store: Store, run: RunRow, make: Callable[[io.StringIO], object]) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=1000, force_terminal=False, markup=False, highlight=False)
    sections = make(stream)
    assert isinstance(sections, GitHubSections | GitLabSections)
    show_last(store, run, console, sections)
    return stream.getvalue()


def test_on_a_ci_there_is_a_section_for_each_that_failed(store: Store) -> None:
    run = store.run(many(store, "Suite", tasks=60, red=55))
    log = folded(store, run, GitHubSections)
    obeyed = obeyed_by_github(log)
    assert len(obeyed) == 2 * 50
    assert (
        obeyed[0]
        == "::group::task-59 failed: worker 0 left with exit code 55 " + "because " * 13 + "because"
    )
    assert obeyed[1] == "::endgroup::"
    # All that is known is in there: more than the summary has room for.
    assert "| line 0 of" in log
    assert "first to fail" in log
    assert log.rstrip().splitlines()[-2] == f"  more   rankwise explain {run.id}"
    log = folded(store, run, GitLabSections)
    assert log.count("section_start:") == log.count("section_end:") == 50
    assert log.rstrip().endswith(f"rankwise explain {run.id}")


def test_what_a_process_wrote_cannot_command_a_ci(store: Store) -> None:
    run = make_run(store, one_task("::endgroup::", ranks=1), one_task("b", ranks=1))
    begin(
        store,
        run,
        "::endgroup::",
        logs={"worker-0": "::error::x\n##[add-mask]y\n\x1b[0Ksection_end:1:a\r\x1b[0K\n"},
    )
    reason = "it said:\n::set-output name=a::b\n%0A::error::c"
    end(
        store,
        run,
        "::endgroup::",
        state=State.FAILED,
        exit_code=1,
        culprit="worker-0",
        reason=reason,
        processes=(worker(0, 1),),
    )
    store.task_over(run, "b", State.PASSED, exit_code=0, now=BEGUN)
    store.run_ended(run, State.FAILED, exit_code=1, now=BEGUN + 1)
    log = folded(store, store.run(run), GitHubSections)
    assert obeyed_by_github(log) == ["::group::::endgroup:: failed: it said:", "::endgroup::"]
    log = folded(store, store.run(run), GitLabSections)
    # Those around our own words, and none of theirs.
    assert log.count("\x1b") == 4
    assert log.count("\r") == 2
