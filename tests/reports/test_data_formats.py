"""Results for a CI: JUnit XML, Markdown, annotations."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.errors import InputError
from rankwise.plan import REPEATED
from rankwise.plugins import REPORT_FORMATS
from rankwise.reports.data_formats import csv_report, error_lines, json_report, junit_report
from rankwise.reports.failures import CaseResult, Repeated, repeated_of, results_of
from rankwise.reports.markdown import markdown_report
from rankwise.reports.model import ReportData, write_report
from rankwise.safe_text import fit_for_xml
from rankwise.store import ResultRow, RunRow, State, Store
from tests.reports.made_runs import BEGUN, begin, end, failed_run, make_run, one_task, passed_run
from tests.reports.measured_runs import hostile_run, make_sweep, osu_sweep, run_case, sweep_task
from tests.reports.other_packages import install

RUN = RunRow(
    id="suite-1",
    name="suite",
    number=1,
    kind="Suite",
    experiment="",
    source="suite.yaml",
    created=0.0,
    started=1.0,
    ended=4.5,
    state=State.FAILED,
    exit_code=1,
    reason="",
    tags={},
    notices=(),
    wanted=None,
)


def data_of(cases: Sequence[CaseResult], repeated: Sequence[Repeated] = ()) -> ReportData:
    """Return a model of these results; nothing else is asked for."""
    data = ReportData(store=cast(Store, None), run=RUN, now=0.0)
    return data.with_parts(results=cases, repeated=repeated, matrix=None, measures=())


PLACE = "tests/suite.yaml:7:5"
CASES = [
    CaseResult(task="good", name="good", state=State.PASSED, seconds=1.25, place=PLACE),
    CaseResult(
        task="bad",
        name="bad",
        state=State.FAILED,
        reason="check 1 (contains 'x'): not found in worker-0/output.log:\n  | y",
        details="worker 0 wrote last:\n  y",
        place=PLACE,
    ),
    CaseResult(
        task="hung", name="hung", state=State.TIMED_OUT, reason="the time limit", place=PLACE
    ),
    CaseResult(
        task="gpu", name="gpu", state=State.NOT_RUN, reason="needs 2 GPUs, found 0", place=PLACE
    ),
    CaseResult(task="extra", name="extra", state=State.SKIPPED, reason="needs 2 GPUs, found 0"),
    CaseResult(task="py", name="t::a", state=State.PASSED, seconds=0.5),
]


def test_junit_is_written_whatever_the_clock_and_names_say() -> None:
    odd = "a\n\t\"b' <c> & ]]> \x1b[31m\x00 \ud800"
    case = CaseResult(task=odd, name=odd, state=State.FAILED, reason=odd, details=odd, place=odd)
    data = data_of([case, CaseResult(task="t", name=odd, state=State.FAILED, details=odd)])
    text = junit_report(data.with_parts(run=dataclasses.replace(RUN, started=1e20, name=odd)))
    (suite,) = ElementTree.fromstring(text)
    assert suite.get("timestamp") is None
    shown = fit_for_xml(odd)
    assert "\n" in shown
    assert shown.endswith("\ufffd")
    assert [one.get("name") for one in (suite, *suite)] == [shown] * 3
    assert [one[0].text for one in suite] == [f"{shown}\n{shown}", shown]


def test_what_did_not_run_is_an_error_in_junit_and_what_need_not_run_is_skipped() -> None:
    root = ElementTree.fromstring(junit_report(data_of(CASES)))
    assert root.attrib == {
        "name": "suite-1",
        "tests": "6",
        "failures": "1",
        "errors": "2",
        "skipped": "1",
        "time": "3.500",
    }
    (suite,) = root
    assert suite.get("timestamp") == "1970-01-01T00:00:01"
    children = {case.get("name"): [child.tag for child in case] for case in suite}
    assert children == {
        "good": [],
        "bad": ["failure"],
        "hung": ["error"],
        "gpu": ["error"],
        "extra": ["skipped"],
        "t::a": [],
    }
    assert suite[0].attrib == {
        "classname": "suite",
        "name": "good",
        "time": "1.250",
        "file": "tests/suite.yaml",
        "line": "7",
    }
    assert suite[5].get("classname") == "suite.py"
    failure = suite[1][0]
    assert failure.get("message", "").endswith("not found in worker-0/output.log:")
    assert failure.text is not None
    assert "  | y\nworker 0 wrote last:" in failure.text


ANY_TEXT = st.text(st.characters(), max_size=60) | st.sampled_from(
    [
        "]]>",
        "<!--",
        "\x1b[31mred\x1b[0m",
        "\x00",
        "&amp;",
        "\ud800",
        "a|b",
        "```",
        "\r\n",
        "::error::",
    ]
)


@given(names=st.lists(ANY_TEXT, max_size=4), reason=ANY_TEXT, details=ANY_TEXT)
def test_whatever_is_in_names_and_output_the_reports_are_sound(
    names: Sequence[str], reason: str, details: str
) -> None:
    cases = [
        CaseResult(
            task="t",
            name=name,
            state=state,
            reason=reason,
            details=details,
            place=f"{reason}.yaml:1:1",
        )
        for name in names
        for state in (State.FAILED, State.SKIPPED, State.CRASHED, State.PASSED)
    ]
    root = ElementTree.fromstring(junit_report(data_of(cases)))
    assert len(root.findall(".//testcase")) == max(1, len(cases))
    page = markdown_report(data_of(cases))
    page.encode()
    table, _, _ = page.partition("\n<details>")
    rows = [line for line in table.split("\n") if line.startswith("| ")]
    assert len(rows) == len(cases) + 2
    assert all(len(row.replace("\\\\", "").replace("\\|", "").split("|")) == 6 for row in rows)
    told = list(error_lines(cases))
    assert len(told) == min(10, 2 * len(names))
    assert all(line.startswith("::error ") for line in told)
    # Whatever follows a line break would be a command of its own.
    assert not any(letter in line for line in told for letter in "\r\n\x1b")


def test_markdown_has_the_verdict_first_and_what_is_wrong_before_what_is_not() -> None:
    page = markdown_report(data_of(CASES))
    lines = page.splitlines()
    assert lines[0] == "## suite-1 failed after 3.5 s"
    assert lines[2] == ("6 tests: 2 passed, 1 failed, 1 timed out, 1 not run, 1 skipped")
    names = [line.split("|")[1].strip() for line in lines if line.startswith("| ")][2:]
    assert names == ["bad", "hung", "gpu", "good", "extra", "py: t::a"]
    assert "```text\n  | y\nworker 0 wrote last:\n  y\n```" in page


def test_a_fence_is_longer_than_those_in_the_output() -> None:
    case = dataclasses.replace(CASES[1], details="````\nend")
    assert "`````text\n" in markdown_report(data_of([case]))


def test_markdown_names_flaky_tests() -> None:
    some = Repeated(name="a", passed=3, times=5)
    all_ = Repeated(name="b", passed=5, times=5)
    none = Repeated(name="c", passed=0, times=5)
    assert "- **flaky**: a passed 3 of 5 times\n\n" in markdown_report(data_of([], [some, all_]))
    assert "No test is flaky, each run 5 times." in markdown_report(data_of([], [all_, none]))


def test_annotations_lead_to_the_line_of_the_test(tmp_path: Path) -> None:
    case = dataclasses.replace(CASES[3], place=f"{tmp_path}/ci/suite, one.yaml:7:5")
    (line,) = error_lines([case], workspace=str(tmp_path))
    assert line == (
        "::error file=ci/suite%2C one.yaml,line=7,title=gpu not run::needs 2 GPUs, found 0"
    )


# From a store


def test_single_tests_stand_for_their_task_unless_they_cannot_explain_it(store: Store) -> None:
    failed = ResultRow(name="t::b", state=State.FAILED, message="x\nE   assert 1 == 2\n")
    passed = ResultRow(name="t::a", state=State.PASSED, seconds=0.25)
    keys = ("fails", "crashes", "both", "well", "no")
    run = make_run(store, *map(one_task, keys))
    states = dict(
        zip(keys, (State.FAILED, State.CRASHED, State.CRASHED, State.PASSED), strict=False)
    )
    for key, state in states.items():
        begin(store, run, key, logs={"worker-0": "hello\x1b[31m\n"})
        tests = [passed, failed] if key in ("fails", "both") else [passed]
        store.add_results(run, key, 1, tests)
        end(store, run, key, state=state, reason=f"it {state}", culprit="worker-0")
    store.task_over(run, "no", State.NOT_RUN, reason="needs 2 GPUs, found 0", now=5.0)
    cases = results_of(store, run)
    assert [(case.task, case.name, str(case.state)) for case in cases] == [
        ("fails", "t::a", "passed"),
        ("fails", "t::b", "failed"),
        ("crashes", "t::a", "passed"),
        ("crashes", "crashes", "crashed"),
        ("both", "t::a", "passed"),
        ("both", "t::b", "failed"),
        ("both", "both", "crashed"),
        ("well", "t::a", "passed"),
        ("no", "no", "not run"),
    ]
    assert cases[1].reason == "assert 1 == 2"
    assert cases[3].details == "worker 0 wrote last:\n  hello"
    assert cases[-1].reason == "needs 2 GPUs, found 0"


def test_how_often_a_test_passed_is_counted(store: Store) -> None:
    tries = [
        dataclasses.replace(one_task(f"a.{number}"), tags={REPEATED: "a"}) for number in (1, 2, 3)
    ]
    run = make_run(store, *tries)
    for number, state in enumerate((State.PASSED, State.FAILED, State.PASSED), start=1):
        begin(store, run, f"a.{number}", logs={})
        end(store, run, f"a.{number}", state=state)
    (one,) = repeated_of(store, run)
    assert one == Repeated(name="a", passed=2, times=3)
    assert one.is_flaky


@pytest.mark.parametrize("exists", [True, False])
def test_a_test_of_pytest_is_annotated_where_it_failed(
    store: Store, tmp_path: Path, exists: bool
) -> None:
    task = dataclasses.replace(one_task(), folder=str(tmp_path), place=PLACE)
    if exists:
        (tmp_path / "test_x.py").touch()
    run = make_run(store, task)
    begin(store, run, logs={})
    message = "E   assert 1 == 2\n\ntest_x.py:12: AssertionError"
    store.add_results(run, "train", 1, [ResultRow(name="b", state=State.FAILED, message=message)])
    end(store, run, state=State.FAILED)
    (case,) = results_of(store, run)
    assert case.place == (f"{tmp_path}/test_x.py:12:1" if exists else PLACE)


def test_a_soft_failure_is_a_warning_and_comes_after_what_counts() -> None:
    soft = CaseResult(task="soft", name="soft", state=State.FAILED, reason="exit 1", is_soft=True)
    lost = CaseResult(task="lost", name="lost", state=State.LOST, reason="gone", is_soft=True)
    hard = CaseResult(task="hard", name="hard", state=State.FAILED, reason="exit 2")
    lines = [line.partition("::exit")[0] for line in error_lines([soft, lost, hard])]
    assert [line.split(" ")[0] for line in lines] == ["::error", "::error", "::warning"]
    many = [dataclasses.replace(soft, name=f"soft{number}") for number in range(12)]
    assert {line.split(" ")[0] for line in error_lines(many)} == {"::warning"}


# tabular

NOW = 1_700_000_500.0


def rows_of(store: Store, run: str) -> list[dict[str, str]]:
    text = csv_report(ReportData(store=store, run=store.run(run), now=NOW))
    return list(csv.DictReader(io.StringIO(text)))


def test_every_value_is_a_row_and_so_is_a_case_without_any(store: Store) -> None:
    rows = rows_of(store, osu_sweep(store))
    assert len(rows) == 14 * 24 + 29 + 2
    [crashed] = [row for row in rows if row["case"] == "osu-intel-4"]
    assert (crashed["state"], crashed["metric"], crashed["mpi"]) == ("crashed", "", "intel")
    one = next(row for row in rows if row["case"] == "osu-mpich-3" and row["size"] == "1024")
    assert (one["metric"], one["unit"], one["trial"]) == ("latency", "us", "3")
    assert float(one["value"]) > 0


def test_markdown_has_a_row_for_each_measure(store: Store) -> None:
    page = markdown_report(ReportData(store=store, run=store.run(osu_sweep(store)), now=NOW))
    rows = [line for line in page.splitlines() if line.startswith("| latency |")]
    assert len(rows) == 3 * 12
    assert all(line.count(" | ") == 5 for line in rows)
    [row] = [line for line in rows if "mpi=mpich" in line and "size=1024 |" in line]
    assert row.split(" | ")[3] == "us"
    hostile = markdown_report(ReportData(store=store, run=store.run(hostile_run(store)), now=NOW))
    table = hostile[hostile.index("| metric |") :].partition("\n\n")[0].splitlines()
    assert all(re.sub(r"\\\\|\\\|", "", line).count("|") == 7 for line in table)


def test_a_run_without_measurements_is_a_table_of_its_tasks(store: Store) -> None:
    [row] = rows_of(store, failed_run(store))
    assert (row["case"], row["state"], row["exit_code"]) == ("train", "failed", "7")


def test_values_in_a_csv_are_no_formulas_to_a_spreadsheet(store: Store) -> None:
    text = csv_report(ReportData(store=store, run=store.run(hostile_run(store)), now=NOW))
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            assert not cell.startswith(("=", "+", "@")), cell
            assert not cell.startswith("-") or float(cell) < 0


def test_json_is_what_every_program_reads(store: Store) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    for run in (osu_sweep(store), hostile_run(store), failed_run(store)):
        text = json_report(ReportData(store=store, run=store.run(run), now=NOW))
        data = json.loads(text, parse_constant=refuse)
        assert data["run"]["id"] == run
        assert sum(data["counts"].values()) == len(data["cases"])


def test_no_parameter_is_lost_whatever_its_name_is(store: Store) -> None:
    names = {name: f"of {name}" for name in ("value", "unit", "case", "run", "state", "mpi")}
    case = sweep_task("one", names)
    run = make_sweep(store, cases=[case])
    run_case(store, run, "one")
    [row] = rows_of(store, run)
    assert (row["run"], row["case"], row["mpi"]) == (run, "one", "of mpi")
    for name in ("value", "unit", "case", "run", "state"):
        assert row[f"parameter {name}"] == f"of {name}"


# Report formats of other packages, by entry point

SOURCE = """\
def write(data):
    lines = [f"{data.run.id} {data.verdict}", *(f"{one.key} {one.state}" for one in data.cases)]
    return "\\n".join(lines) + "\\n"

def write_bytes(data):
    return b"taken"

def fail(data):
    raise KeyError("colour")

def nothing(data):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "site"
    made.mkdir()
    entries = {"lines": "write", "html": "write_bytes", "fails": "fail", "nothing": "nothing"}
    group = "rankwise.report_formats"
    install(made, "someformats", SOURCE, group=group, **entries)
    return made


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of ours where the other package is installed."""
    return subprocess.run(
        [sys.executable, "-P", "-m", *arguments],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_format_of_ours_can_be_loaded() -> None:
    for name in REPORT_FORMATS.ours:
        assert callable(REPORT_FORMATS.load(name)), name


def test_a_format_of_another_package_is_written(store: Store, folder: Path) -> None:
    run = passed_run(store)
    base = ("rankwise.cli.main", "report", run, "--store", str(store.folder))
    file = folder / "report.txt"
    done = run_python(folder, *base, "--format", "lines", "--output", str(file))
    assert done.returncode == 0, done
    assert file.read_text() == f"{run} passed\ntrain passed\n"
    done = run_python(folder, *base, "--format", "lines")
    assert done.stdout == file.read_text(), done
    done = run_python(folder, *base, "--format", "line")
    assert done.returncode == 2, done
    assert "there is no report format `line`; did you mean `lines`?" in done.stderr
    done = run_python(folder, *base, "--output", "x.html")
    assert done.returncode == 2, done
    assert "--format NAME" in done.stderr


def test_a_step_writes_the_format_that_its_file_is_named_after(store: Store, folder: Path) -> None:
    run = passed_run(store)
    base = ("rankwise.steps", "report", "--store", str(store.folder), "--run-id", run)
    for name, first in (("a.lines", f"{run} passed\n"), ("a.junit", f"# {run}"), ("a", f"# {run}")):
        done = run_python(folder, *base, "--to", str(folder / name))
        assert done.returncode == 0, done
        assert (folder / name).read_text().startswith(first)


def test_another_package_takes_the_place_of_no_format_of_ours(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    data = ReportData(store=store, run=store.run(passed_run(store)), now=BEGUN)
    assert write_report(data, "html").startswith(b"<!doctype html>")
    for name, complaint in (("fails", "failed: KeyError: 'colour'"), ("nothing", "NoneType")):
        with pytest.raises(InputError, match=complaint):
            write_report(data, name)
