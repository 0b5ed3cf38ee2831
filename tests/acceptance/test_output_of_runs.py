"""What a user at a terminal sees of the ranks while tests run."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.pools import run_pool
from tests.seeds.sentences import sentence

_SUITE = {
    "test_slow.py": """
    import time, rankwise

    def test_bad():
        assert False

    @rankwise.mark.parallel(2)
    def test_pair(comm):
        time.sleep(3.5)
    """
}


@pytest.mark.parametrize("is_wanted", [True, False])
def test_what_runs_is_shown_below_what_pytest_writes(project: Project, is_wanted: bool) -> None:
    project.write(_SUITE)
    inner = [str(project.mpi.python), "-m", "pytest", "--n-workers=2"]
    inner += ["--policy=sequential", "--color=no"]
    line = f"stty rows 30 cols 90; exec {shlex.join(inner)}"
    unset = ["-u", "CI", *(["-u", "NO_COLOR"] if is_wanted else [])]
    outcome = project.run(["env", *unset, "TERM=xterm", "script", "-qec", line, "/dev/null"])
    assert "1 failed, 1 passed" in outcome.output, outcome
    is_shown = "all 2 ranks  test_slow.py::test_pair" in outcome.output
    assert is_shown == is_wanted, outcome
    assert ("1 of 2, 1 failed" in outcome.output) == is_wanted, outcome
    assert ("\x1b7" in outcome.output) == is_wanted, outcome


# `pytest --timeline`: when which test ran on which rank, under every scheduler

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


def test_all_workers_that_a_test_takes_are_at_it(project: Project) -> None:
    """Its ranks have several cores each, or it has its machine alone."""
    project.write(
        {
            "test_wide.py": """
            import rankwise

            @rankwise.mark.parallel(2, threads=2)
            def test_threads(comm):
                pass

            @rankwise.mark.parallel(1, exclusive="node")
            def test_alone(comm):
                pass
            """
        }
    )
    arguments = ["--n-workers=4", "--bind=none", "--timeline=out.json"]
    outcome = run_pytest(project, *arguments, ranks=None)
    assert outcome.counts() == {"passed": 2}, outcome
    assert [bar["lanes"] for bar in read(project)["bars"]] == [[0, 1, 2, 3]] * 2


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


# What the user reads of a test on many ranks: one verdict, one terminal, one report file

FAILURES = """
    import sys
    import rankwise

    @rankwise.mark.parallel(4)
    def test_equal(comm):
        raise ValueError("the same everywhere")

    @rankwise.mark.parallel(4)
    def test_most_equal(comm):
        number = 3 if comm.rank < 3 else 33
        assert number == 4

    @rankwise.mark.parallel(4)
    def test_scattered(comm):
        assert comm.rank == 1, "an island"

    @rankwise.mark.parallel(3)
    def test_output(comm):
        print("equal output")
        print(f"written by {comm.rank}", file=sys.stderr)
        if comm.rank == 2:
            print("and more")
        assert comm.rank != 1

    def test_single():
        print("single output")
        assert 1 == 2

    @rankwise.mark.parallel(2)
    def test_fine(comm):
        print("this is not shown")
"""


def sections(outcome: Outcome, test: str) -> str:
    """Return what is shown of one failed test."""
    _, _, failures = outcome.output.partition(" FAILURES ")
    shown = re.split(r"^_{5,} (\S+) _{5,}$", failures.split("short test summary")[0], flags=re.M)
    return dict(zip(shown[1::2], shown[2::2], strict=True))[test]


def labels(text: str) -> list[str]:
    """Return the labels of parts of it: which ranks, or what was captured."""
    return re.findall(r"^-{5,} (.*) -{5,}$", text, flags=re.M)


def test_equal_tracebacks_and_output_are_folded_and_others_stand_under_their_ranks(
    project: Project, scheduler: str
) -> None:
    project.write({"test_failures.py": FAILURES})
    outcome = run_pytest(project, f"--scheduler={scheduler}")
    assert outcome.counts() == {"failed": 5, "passed": 1}, outcome

    equal = sections(outcome, "test_equal")
    assert labels(equal) == ["all 4 ranks"], equal
    assert equal.count("ValueError: the same everywhere") == 1, equal

    most = sections(outcome, "test_most_equal")
    assert labels(most) == ["ranks 0-2 of 4", "rank 3 of 4"], most
    assert most.index("assert 3 == 4") < most.index("rank 3 of 4") < most.index("assert 33 == 4")

    # The numbers that are compared differ, so nothing can be folded.
    scattered = sections(outcome, "test_scattered")
    assert labels(scattered) == ["rank 0 of 4", "rank 2 of 4", "rank 3 of 4"], scattered

    output = sections(outcome, "test_output")
    assert labels(output) == [
        "rank 1 of 3",
        "Captured stdout call (ranks 0-1 of 3)",
        "Captured stdout call (rank 2 of 3)",
        "Captured stderr call (rank 0 of 3)",
        "Captured stderr call (rank 1 of 3)",
        "Captured stderr call (rank 2 of 3)",
    ], output
    assert output.count("\nequal output\n") == 2, output
    assert "written by 2\n" in output, output

    single = sections(outcome, "test_single")
    assert labels(single) == ["Captured stdout call"], single
    assert "this is not shown" not in outcome.output, outcome

    summary = outcome.output.partition("short test summary")[2]
    for line in (
        "FAILED test_failures.py::test_equal - [all 4 ranks] ValueError: the same everywhere",
        "FAILED test_failures.py::test_most_equal - [ranks 0-2 of 4] assert 3 == 4",
        "FAILED test_failures.py::test_output - [rank 1 of 3] assert 1 != 1",
        "FAILED test_failures.py::test_single - assert 1 == 2",
    ):
        assert summary.count(line) == 1, outcome


def test_one_rank_writes_to_the_terminal(project: Project, scheduler: str) -> None:
    project.write({"test_failures.py": FAILURES})
    outcome = run_pytest(project, f"--scheduler={scheduler}", "--tb=no", "-q", "-rN")
    lines = [line.split("[")[0].strip() for line in outcome.output.splitlines()]
    assert sorted(lines[0]) == sorted("FFFFF."), outcome
    assert lines[1].startswith("5 failed, 1 passed in "), outcome
    assert len(lines) == 2, outcome
    assert outcome.errors == "", outcome


def test_the_header_names_ranks_mpi_and_scheduler(project: Project, scheduler: str) -> None:
    outcome = run_pytest(project, f"--scheduler={scheduler}", ranks=2)
    header = re.findall(r"^rankwise: (.*)$", outcome.output, flags=re.M)
    assert len(header) == 1, outcome
    assert re.fullmatch(rf"2 ranks, MPICH [\d.]+, scheduler {scheduler}", header[0]), header


@sentence(
    "pytest_parallel",
    ran="mpirun -np … pytest --junitxml=report.xml",
    said="It is also compatible with the xml built-in plugin.",
)
def test_junit_has_every_test_once_and_names_the_failing_rank(
    project: Project, scheduler: str
) -> None:
    project.write(
        {
            "test_failures.py": FAILURES,
            "test_more.py": """
            import pytest, rankwise

            @rankwise.mark.parallel([2, 3])
            def test_sizes(comm, record_property):
                record_property(f"of rank {comm.rank}", comm.size)

            @rankwise.mark.parallel(2)
            def test_skipped(comm):
                if comm.rank == 1:
                    pytest.skip("later")

            @pytest.fixture
            def broken(comm):
                assert comm.rank == 0

            @rankwise.mark.parallel(2)
            def test_error(broken):
                pass

            @pytest.mark.parametrize("number", range(30))
            def test_many(number):
                pass
            """,
        }
    )
    outcome = run_pytest(project, f"--scheduler={scheduler}", "--junitxml=report.xml")
    suite = ElementTree.parse(project.folder / "report.xml").getroot()[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "40",
        "failures": "5",
        "errors": "1",
        "skipped": "1",
    }, outcome
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert len(cases) == len(list(suite.iter("testcase"))) == 40
    message = {
        name: child.get("message") or ""
        for name, case in cases.items()
        for child in case
        if child.tag in ("failure", "error", "skipped")
    }
    assert "[rank 1 of 3] assert 1 != 1" in message["test_output"]
    assert "[all 4 ranks] ValueError: the same everywhere" in message["test_equal"]
    assert "[rank 1 of 2]" in message["test_error"]
    assert message["test_skipped"] == "later (rank 1 of 2)"
    properties = [entry.get("name") for entry in cases["test_sizes[3]"].iter("property")]
    assert properties == ["of rank 0", "of rank 1", "of rank 2"]
    failure = cases["test_most_equal"].find("failure")
    assert failure is not None
    assert "rank 3 of 4" in (failure.text or "")


def test_warnings_of_all_ranks_are_shown_once(project: Project, scheduler: str) -> None:
    project.write(
        {
            "test_warnings.py": """
            import warnings
            import rankwise

            class OwnWarning(UserWarning):
                pass

            @rankwise.mark.parallel(3)
            def test_all(comm):
                warnings.warn("on every rank")
                if comm.rank == 2:
                    warnings.warn("on the last rank", OwnWarning)
                if comm.rank == 0:
                    warnings.warn("on the first rank", DeprecationWarning)

            def test_single():
                warnings.warn("alone")

            def test_quiet():
                pass
            """
        }
    )
    outcome = run_pytest(project, f"--scheduler={scheduler}", ranks=3)
    assert "3 passed, 4 warnings in " in outcome.output, outcome
    _, _, summary = outcome.output.partition("warnings summary")
    assert summary.count("test_warnings.py::test_all\n") == 3, outcome
    for shown in (
        ": UserWarning: on every rank\n",
        ": OwnWarning: on the last rank\n",
        ": DeprecationWarning: on the first rank\n",
        ": UserWarning: alone\n",
    ):
        assert summary.count(shown) == 1, outcome


def test_warnings_as_errors_fail_on_any_rank(project: Project) -> None:
    project.write(
        {
            "test_warnings.py": """
            import warnings
            import rankwise

            @rankwise.mark.parallel(2)
            def test_warns(comm):
                if comm.rank == 1:
                    warnings.warn("on the last rank")
            """
        }
    )
    outcome = run_pytest(project, "-W", "error", ranks=2)
    assert outcome.verdicts == {"test_warns": "failed"}, outcome
    assert "[rank 1 of 2] UserWarning: on the last rank" in outcome.output, outcome


def test_a_subtest_that_fails_on_one_rank_fails_its_test(project: Project, scheduler: str) -> None:
    project.write(
        {
            "test_parts.py": """
            import rankwise

            def parts(subtests, failing):
                for number in range(2):
                    with subtests.test("part", number=number):
                        assert number == 0 or not failing

            @rankwise.mark.parallel(2)
            def test_first_rank(comm, subtests):
                parts(subtests, comm.rank == 0)

            @rankwise.mark.parallel(2)
            def test_last_rank(comm, subtests):
                parts(subtests, comm.rank == 1)

            @rankwise.mark.parallel(2)
            def test_fine(comm, subtests):
                parts(subtests, False)

            def test_single(subtests):
                parts(subtests, True)

            def test_single_fine(subtests):
                parts(subtests, False)
            """
        }
    )
    outcome = run_pytest(project, f"--scheduler={scheduler}", ranks=2)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    letters = re.findall(r"^(?:test_parts.py )?([.uF]+) +\[100%\]", outcome.output, flags=re.M)
    assert sorted(letters[0]) == sorted("uFuF.uF."), outcome
    assert "test_first_rank (rank 0 of 2) [part] (number=" in outcome.output, outcome
    assert "test_last_rank (rank 1 of 2) [part] (number=" in outcome.output, outcome
    for shown in (
        "FAILED test_parts.py::test_first_rank - [rank 0 of 2] contains 1 failed subtest\n",
        "FAILED test_parts.py::test_last_rank - [rank 1 of 2] contains 1 failed subtest\n",
        "FAILED test_parts.py::test_single - contains 1 failed subtest\n",
    ):
        assert outcome.output.count(shown) == 1, outcome
