"""`pytest --timeline`: when which test ran on which rank, under every scheduler."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.pools import run_pool

SUITE = {
    "test_suite.py": """
    import os, time
    import pytest, rankwise

    @pytest.mark.parametrize("number", range(3))
    def test_one(number):
        time.sleep(0.02)

    @rankwise.mark.parallel(2)
    def test_pair(comm):
        time.sleep(0.02 + 0.2 * comm.rank)

    @rankwise.mark.parallel(3)
    def test_three(comm):
        assert comm.rank != 1

    @pytest.mark.skip
    def test_skipped():
        pass

    @pytest.mark.xfail
    def test_expected():
        assert False
    """
}
STATES = {
    "test_one[0]": "passed",
    "test_one[1]": "passed",
    "test_one[2]": "passed",
    "test_pair": "passed",
    "test_three": "failed",
    "test_skipped": "skipped",
    "test_expected": "skipped",
}


def read(project: Project, name: str = "out.json") -> dict[str, Any]:
    data: dict[str, Any] = json.loads((project.folder / name).read_text())
    return data


def by_name(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {bar["name"].rpartition("::")[2]: bar for bar in data["bars"]}
    assert len(found) == len(data["bars"])
    return found


def check(data: dict[str, Any], width: int) -> None:
    """Check that tests are where they can have been: no rank has two at a time."""
    bars = by_name(data)
    assert {name: bar["state"] for name, bar in bars.items()} == STATES
    assert data["lanes"] == [f"rank {number}" for number in range(width)]
    sizes = dict.fromkeys(STATES, 1) | {"test_pair": 2, "test_three": 3}
    assert {name: len(set(bar["lanes"])) for name, bar in bars.items()} == sizes
    busy: dict[int, list[list[float]]] = {}
    for bar in bars.values():
        spans = bar["spans"] or [[bar["start"], bar["end"]]]
        for lane, span in zip(bar["lanes"], spans, strict=True):
            busy.setdefault(lane, []).append(span)
            assert 0 <= bar["start"] <= span[0] <= span[1] <= bar["end"] <= data["end"]
    assert set(busy) <= set(range(width))
    for spans in busy.values():
        spans.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
    # What each rank of a test took is that rank's own.
    (first, second) = bars["test_pair"]["spans"]
    assert (second[1] - second[0]) - (first[1] - first[0]) > 0.1
    found = data["findings"]
    assert found["lower_bound"] <= found["makespan"]
    assert found["busy"] + found["idle"] == pytest.approx(width * found["makespan"])
    assert found["causes"]["start-up"] > 0


def check_outcome(outcome: Outcome, file: Path) -> None:
    assert outcome.exit_code == 1, outcome
    assert f"timeline: {file}" in outcome.output, outcome
    assert outcome.counts() == {"passed": 4, "failed": 1, "skipped": 1, "xfailed": 1}, outcome


@pytest.mark.parametrize("scheduler", ["sequential", "static", "dynamic"])
def test_ranks_of_mpirun(project: Project, scheduler: str) -> None:
    project.write(SUITE)
    outcome = run_pytest(project, f"--scheduler={scheduler}", "--timeline=out.json", ranks=3)
    check_outcome(outcome, project.folder / "out.json")
    data = read(project)
    check(data, 3)
    assert data["order"] == scheduler
    starts = [bar["start"] for bar in data["bars"]]
    assert starts == sorted(starts)


@pytest.mark.parametrize("crew", ["pool", "shell"])
def test_ranks_that_are_started(project: Project, temporary: Path, crew: str) -> None:
    project.write(SUITE)
    arguments = [f"--scheduler={crew}", "--timeline=made/out.json"]
    outcome = run_pool(project, temporary, *arguments, workers="3")
    check_outcome(outcome, project.folder / "made" / "out.json")
    data = read(project, "made/out.json")
    check(data, 3)
    assert data["is_fresh"] == (crew == "shell")


def test_tests_that_end_their_ranks_are_there_until_their_end(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "test_deadly.py": """
            import os, time
            import pytest, rankwise

            def test_crash():
                os._exit(3)

            @pytest.mark.timeout(0.5)
            @rankwise.mark.parallel(2)
            def test_hang(comm):
                if comm.rank == 0:
                    comm.recv(source=1)

            def test_after():
                pass
            """
        }
    )
    outcome = run_pool(
        project, temporary, "--timeline=out.json", "--policy=sequential", "--rank-grace=30"
    )
    assert outcome.exit_code == 1, outcome
    data = read(project)
    bars = by_name(data)
    assert {name: bar["state"] for name, bar in bars.items()} == {
        "test_crash": "crashed",
        "test_hang": "timed out",
        "test_after": "passed",
    }
    assert bars["test_hang"]["lanes"] == [0, 1]
    assert bars["test_hang"]["end"] - bars["test_hang"]["start"] >= 0.5
    assert bars["test_after"]["start"] >= bars["test_hang"]["end"]
    assert data["findings"]["causes"]["restart"] > 0


def test_one_process_is_one_lane_and_a_page_needs_nothing_else(project: Project) -> None:
    project.write(SUITE)
    outcome = run_pytest(project, "--timeline=out.html", ranks=None)
    assert f"timeline: {project.folder / 'out.html'}" in outcome.output, outcome
    page = (project.folder / "out.html").read_text()
    for words in ("What to change", "The longest tests", "test_suite.py::test_one[0]", "pytest"):
        assert words in page
    assert "<script src" not in page
    # A place that cannot be written to is no reason to lose the verdict.
    (project.folder / "file").touch()
    refused = run_pytest(project, "--timeline=file/out.html", ranks=None)
    assert refused.exit_code == outcome.exit_code == 0, refused
    assert "the timeline could not be written" in refused.output, refused
    homeless = run_pytest(project, "--timeline=~nobody-has-this-name/out.html", ranks=None)
    assert homeless.exit_code == 0, homeless
    assert "nobody-has-this-name/out.html" in homeless.output, homeless


def test_workers_of_xdist_are_lanes(project: Project) -> None:
    project.write(SUITE)
    arguments = ["-p", "xdist", "-n2", "--timeline=out.json"]
    outcome = run_pytest(project, *arguments, ranks=None)
    assert outcome.exit_code == 0, outcome
    assert sorted(read(project)["lanes"]) == ["gw0", "gw1"]
