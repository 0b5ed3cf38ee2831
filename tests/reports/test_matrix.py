"""What became of runtimes on machines, in every form: as data, in words, for a CI."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from rich.console import Console

from rankwise.reports.data_formats import json_report, junit_report
from rankwise.reports.environments import (
    Environment,
    difference,
    environment_of,
    ranked,
    read_environment,
)
from rankwise.reports.markdown import markdown_report
from rankwise.reports.matrix import CellTask, CellVerdict, MatrixResult, matrix_of, verdict_of
from rankwise.reports.model import ReportData
from rankwise.reports.terminal.matrix import show_matrix
from rankwise.store import State, Store
from tests.reports.made_runs import BEGUN, passed_run
from tests.reports.matrix_runs import Done, environment, make_matrix, typical


def gathered(store: Store, cells: Mapping[tuple[str, str, str], Done]) -> MatrixResult:
    found = matrix_of(store, store.run(make_matrix(store, cells)))
    assert found is not None
    return found


def shown(matrix: MatrixResult, width: int) -> str:
    screen = io.StringIO()
    show_matrix(Console(file=screen, width=width, markup=False, highlight=False), matrix)
    return screen.getvalue()


def test_other_runs_have_no_matrix(store: Store) -> None:
    assert matrix_of(store, store.run(passed_run(store))) is None


def test_every_cell_has_its_verdict(store: Store) -> None:
    matrix = gathered(store, typical())
    assert matrix.runtimes == ("old", "new", "torch", "ancient", "future")
    assert matrix.machines == ("laptop", "cluster", "gpu")
    verdicts = [
        [
            str(cell.verdict) if (cell := matrix.cell(row, column)) else ""
            for column in matrix.machines
        ]
        for row in matrix.runtimes
    ]
    assert verdicts == [
        ["failed", "failed", "skipped"],
        ["failed", "failed", "skipped"],
        ["soft-failed", "running", "passed"],
        ["failed", "failed", "not run"],
        ["could not run", "", ""],
    ]
    assert matrix.cells["old", "gpu"].reason == "needs gpu, which it does not use"
    assert matrix.cells["ancient", "gpu"].reason == "needs gpu, found none"
    assert matrix.cells["ancient", "laptop"].reason == "uv exited with code 1"
    assert matrix.cells["torch", "gpu"].counts == {State.PASSED: 3}


def task(
    state: State, *, is_soft: bool = False, is_environment: bool = False, is_left_out: bool = False
) -> CellTask:
    return CellTask(
        task="t",
        name="t",
        state=state,
        is_soft=is_soft,
        is_environment=is_environment,
        is_left_out=is_left_out,
    )


@pytest.mark.parametrize(
    ("tests", "verdict"),
    [
        ([task(State.PASSED), task(State.SKIPPED)], CellVerdict.PASSED),
        ([task(State.SKIPPED), task(State.SKIPPED)], CellVerdict.SKIPPED),
        ([task(State.PASSED, is_environment=True), task(State.SKIPPED)], CellVerdict.SKIPPED),
        ([task(State.QUEUED), task(State.QUEUED)], CellVerdict.QUEUED),
        ([task(State.QUEUED), task(State.PASSED)], CellVerdict.RUNNING),
        ([task(State.RUNNING), task(State.FAILED)], CellVerdict.FAILED),
        ([task(State.CRASHED), task(State.CRASHED)], CellVerdict.CRASHED),
        ([task(State.CRASHED), task(State.TIMED_OUT)], CellVerdict.FAILED),
        ([task(State.FAILED, is_soft=True), task(State.PASSED)], CellVerdict.SOFT_FAILED),
        ([task(State.FAILED, is_soft=True), task(State.CRASHED)], CellVerdict.CRASHED),
        ([task(State.NOT_RUN, is_left_out=True), task(State.PASSED)], CellVerdict.NOT_RUN),
        ([task(State.NOT_RUN), task(State.PASSED)], CellVerdict.BLOCKED),
        ([task(State.NOT_RUN), task(State.NOT_RUN, is_left_out=True)], CellVerdict.BLOCKED),
        ([task(State.NOT_RUN, is_soft=True)], CellVerdict.BLOCKED),
        ([task(State.NOT_RUN, is_soft=True), task(State.PASSED)], CellVerdict.BLOCKED),
        ([task(State.LOST, is_soft=True), task(State.PASSED)], CellVerdict.LOST),
        ([task(State.CANCELLED), task(State.PASSED)], CellVerdict.CANCELLED),
        (
            [task(State.FAILED, is_soft=True, is_environment=True), task(State.PASSED)],
            CellVerdict.PASSED,
        ),
        ([task(State.FAILED, is_environment=True), task(State.NOT_RUN)], CellVerdict.FAILED),
    ],
)
def test_a_cell_is_as_bad_as_the_worst_that_counts(
    tests: list[CellTask], verdict: CellVerdict
) -> None:
    assert verdict_of(tests) is verdict
    assert verdict_of(tests[::-1]) is verdict


def test_what_differs_is_looked_for_where_the_same_test_passes(store: Store) -> None:
    """No cell of these two runtimes is green as a whole, and yet each explains the other."""
    matrix = gathered(store, typical())
    [new] = matrix.cells["new", "laptop"].contrasts
    assert (new.runtime, new.machine, new.tests) == ("old", "laptop", ("analysis.ipynb",))
    assert (new.changes[0].name, new.changes[0].here, new.changes[0].there) == (
        "numpy",
        "2.3.1",
        "1.26.4",
    )
    assert [one.name for one in new.changes if one.is_named] == ["numpy"]
    [old] = matrix.cells["old", "laptop"].contrasts
    assert (old.runtime, old.tests) == ("new", ("modern.ipynb",))
    assert (old.changes[0].name, old.changes[0].here) == ("tzdata", "")


def test_the_same_runtime_elsewhere_tells_about_the_machine(store: Store) -> None:
    matrix = gathered(store, typical())
    column, row = matrix.cells["torch", "laptop"].contrasts
    assert (column.runtime, column.machine) == ("new", "laptop")
    assert (row.runtime, row.machine) == ("torch", "gpu")
    kinds = {change.kind for change in row.changes}
    assert kinds == {"GPU", "CPU", "CPU features", "cores", "memory"}


def test_without_an_environment_nothing_is_said_of_what_differs(store: Store) -> None:
    cells = {
        ("old", "here", "test"): Done(),
        ("new", "here", "test"): Done(state=State.FAILED, reason="exit code 1"),
    }
    [contrast] = gathered(store, cells).cells["new", "here"].contrasts
    assert (contrast.is_known, contrast.changes) == (False, ())


def test_of_several_neighbours_the_one_that_differs_least_says_most(store: Store) -> None:
    alike = environment("new", "laptop")
    alike["packages"] = {**alike["packages"], "numpy": "1.26.4"}
    cells = {
        ("red", "here", "environment"): Done(environment=environment("new", "laptop")),
        ("red", "here", "test"): Done(state=State.FAILED),
        ("next", "here", "environment"): Done(environment=environment("old", "laptop")),
        ("next", "here", "test"): Done(),
        ("far", "here", "environment"): Done(environment=alike),
        ("far", "here", "test"): Done(),
    }
    [contrast] = gathered(store, cells).cells["red", "here"].contrasts
    assert (contrast.runtime, [one.name for one in contrast.changes]) == ("far", ["numpy"])


def test_a_neighbour_whose_environment_is_known_says_more(store: Store) -> None:
    cells = {
        ("far", "here", "environment"): Done(environment=environment("old", "laptop")),
        ("far", "here", "test"): Done(),
        ("near", "here", "test"): Done(),
        ("red", "here", "environment"): Done(environment=environment("new", "laptop")),
        ("red", "here", "test"): Done(state=State.FAILED),
    }
    [contrast] = gathered(store, cells).cells["red", "here"].contrasts
    assert contrast.runtime == "far"


def test_what_was_used_over_time_is_there(store: Store) -> None:
    cell = gathered(store, typical()).cells["torch", "gpu"]
    used = {one.name: one.used for one in cell.tests}
    assert used["smoke.sh"] is None
    assert used["training.ipynb"] is not None
    usage = used["training.ipynb"].usage
    assert len(usage.time) == len(usage.cpu) == 25


def test_a_screen_needs_no_colours(store: Store) -> None:
    text = shown(gathered(store, typical()), 80)
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split("  ") for line in text.splitlines()]
    cells = {
        row[0]: row[1:] for one in rows if (row := [word.strip() for word in one if word.strip()])
    }
    assert cells["torch"] == ["soft-failed 1 of 3", "running 2 of 3", "passed 3"]
    assert cells["old"] == ["failed 1 of 3", "failed 1 of 3", "skipped"]
    assert cells["ancient"] == ["failed", "failed", "not run"]
    assert cells["future"] == ["could not run", ".", "."]
    assert "its runtime could not be made: ERROR: No matching" in " ".join(text.split())
    assert "needs gpu, found none" in text
    flat = " ".join(text.split())
    assert (
        "new on laptop and cluster analysis.ipynb passes with old. Different here: numpy 2.3.1"
        in flat
    )
    assert "\x1b" not in text


def test_many_machines_are_shown_in_parts_with_short_words(store: Store) -> None:
    cells = {
        (f"runtime-{row}", f"machine-{column}", "test"): Done(
            state=State.FAILED if row == column else State.PASSED, took=0.1
        )
        for row in range(2)
        for column in range(12)
    }
    text = shown(gathered(store, cells), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert all(f"machine-{number}" in text for number in range(12))
    assert text.count("FAIL 1/1") == 2
    assert text.count("ok 1") == 22
    assert "ok passed, FAIL failed" in text


HOSTILE = "<script>alert(1)</script>|\x1b[2J`[x](javascript:alert(1))"


def test_names_cannot_do_anything_to_a_screen_or_a_page(store: Store) -> None:
    cells = {
        (HOSTILE, HOSTILE, "test"): Done(state=State.FAILED, reason=HOSTILE),
        ("tame", HOSTILE, "test"): Done(),
    }
    run = make_matrix(store, cells)
    matrix = matrix_of(store, store.run(run))
    assert matrix is not None
    assert "\x1b" not in shown(matrix, 80)
    page = markdown_report(ReportData(store=store, run=store.run(run), now=BEGUN))
    table = [line for line in page.splitlines() if line.startswith("| ")]
    assert all(line.replace("\\|", "").count("|") == 3 for line in table[:4])
    assert "<script>" not in page
    assert "](javascript" not in page.replace("\\]", "")
    ElementTree.fromstring(junit_report(ReportData(store=store, run=store.run(run), now=BEGUN)))


def test_markdown_has_the_matrix_and_only_what_is_wrong_below(store: Store) -> None:
    run = make_matrix(store, typical())
    page = markdown_report(ReportData(store=store, run=store.run(run), now=BEGUN))
    assert "| **torch** | ⚠️ soft-failed 1 of 3 | ⏳ running 2 of 3 | ✅ passed 3 |" in page
    assert "| **old** | ❌ failed 1 of 3 | ❌ failed 1 of 3 | ⏭️ skipped |" in page
    assert "numpy 2.3.1 (1.26.4 there)" in page
    assert "| passed |" not in page
    # Once, and not for each of the tests that it has kept from running.
    assert page.count("needs gpu, found none") == 1


def test_junit_groups_by_runtime_and_machine(store: Store) -> None:
    run = make_matrix(store, typical())
    root = ElementTree.fromstring(
        junit_report(ReportData(store=store, run=store.run(run), now=BEGUN))
    )
    found = {(one.get("classname"), one.get("name")): one for one in root.iter("testcase")}
    broken = found["new.laptop", "analysis.ipynb"]
    assert broken.find("failure") is not None
    soft = found["torch.laptop", "modern.ipynb"].find("skipped")
    assert soft is not None
    assert soft.get("type") == "rankwise.soft_fail"
    skipped = found["old.gpu", "smoke.sh"].find("skipped")
    assert skipped is not None
    assert skipped.get("type") is None
    assert len(list(found["torch.gpu", "smoke.sh"])) == 0


def test_programs_get_all_of_it_as_json(store: Store) -> None:
    run = make_matrix(store, typical())
    found = json.loads(json_report(ReportData(store=store, run=store.run(run), now=BEGUN)))[
        "matrix"
    ]
    cells = {(one["runtime"], one["machine"]): one for one in found["cells"]}
    assert cells["torch", "laptop"]["verdict"] == "soft-failed"
    assert cells["torch", "gpu"]["counts"] == {"passed": 3}
    assert cells["old", "laptop"]["environment"]["flags"] == ["avx", "avx2", "fma"]
    assert cells["new", "laptop"]["differs"][0]["changes"][0]["name"] == "numpy"
    assert cells["future", "laptop"]["environment"] is None


def test_markdown_says_how_many_cells_have_no_place_in_its_table(store: Store) -> None:
    wide = {("old", f"m{number}", "a"): Done() for number in range(25)}
    few = {("new", f"m{number}", "a"): Done() for number in range(20, 25)}
    run = make_matrix(store, {**wide, **few})
    page = markdown_report(ReportData(store=store, run=store.run(run), now=BEGUN))
    assert "… and 10 more cells" in page


# What differs between two places, said in the order in which it matters

BASE = environment_of(environment("old", "laptop"))


def said(here: Environment, there: Environment) -> list[tuple[str, str, str, str]]:
    return [(one.kind, one.name, one.here, one.there) for one in difference(here, there)]


def test_nothing_differs_between_a_place_and_itself() -> None:
    assert difference(BASE, BASE) == ()
    assert difference(BASE, replace(BASE, host="another")) == ()


def test_python_comes_first_then_packages_that_are_far_apart_then_those_of_one_side() -> None:
    here = replace(
        BASE,
        python="CPython 3.12.1",
        packages={"numpy": "1.26.4", "six": "1.17.0", "pandas": "2.3.0", "new": "1"},
    )
    there = replace(
        BASE, packages={"numpy": "1.26.5", "six": "1.16.0", "pandas": "1.5.3", "old": "2"}
    )
    assert said(here, there) == [
        ("Python", "", "CPython 3.12.1", "CPython 3.9.18"),
        ("package", "pandas", "2.3.0", "1.5.3"),
        ("package", "six", "1.17.0", "1.16.0"),
        ("package", "numpy", "1.26.4", "1.26.5"),
        ("package", "new", "1", ""),
        ("package", "old", "", "2"),
    ]


def test_processors_are_told_apart_by_what_they_can_do() -> None:
    there = replace(BASE, flags=frozenset({"avx", "avx512f", "amx_tile"}), cores=16)
    assert said(BASE, there) == [
        ("CPU features", "amx_tile avx512f", "no", "yes"),
        ("CPU features", "avx2 fma", "yes", "no"),
        ("cores", "", "2", "16"),
    ]


def test_gpus_and_their_driver() -> None:
    two = replace(BASE, gpus=("A100", "A100"), driver="570", cuda="12.8")
    assert said(BASE, two) == [("GPU", "", "none", "2 of A100")]
    older = replace(two, driver="535", cuda="12.2")
    assert said(older, two) == [
        ("GPU driver", "", "535", "570"),
        ("CUDA of the driver", "", "12.2", "12.8"),
    ]


def test_memory_that_is_nearly_the_same_is_the_same() -> None:
    assert said(BASE, replace(BASE, memory=BASE.memory - (1 << 28))) == []
    assert said(BASE, replace(BASE, memory=64 << 30)) == [("memory", "", "16 GiB", "64 GiB")]


def test_systems_modules_and_variables() -> None:
    there = replace(
        BASE,
        system={**BASE.system, "libc": "glibc 2.28"},
        modules=("gcc/13",),
        variables=frozenset(),
    )
    assert said(BASE, there) == [
        ("system", "libc", "glibc 2.36", "glibc 2.28"),
        ("modules", "gcc/13", "no", "yes"),
        ("variables", "OMP_NUM_THREADS", "yes", "no"),
    ]


def test_what_the_failure_speaks_of_comes_first() -> None:
    there = replace(BASE, packages={**BASE.packages, "six": "2.0", "scikit-learn": "1.5"})
    words = "ImportError: cannot import name 'x' from 'scikit_learn'"
    first, *others = ranked(difference(BASE, there), words)
    assert (first.name, first.is_named) == ("scikit-learn", True)
    assert [(one.name, one.is_named) for one in others] == [("six", False)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Traceback: no\n",
        '{"packages": 3}',
        '{"packages": {}, "python": []}',
        '{"packages": {}, "python": {}, "memory": "much"}',
        '{"packages": {}, "python": {}, "gpus": 7}',
        '{"packages": ',
        '{"packages": ' + "[" * 100_000,
    ],
)
def test_what_cannot_be_used_is_no_environment(text: str) -> None:
    assert read_environment(text) is None


def test_the_last_line_counts_whatever_else_was_written() -> None:
    lines = [
        "a warning",
        json.dumps(environment("old", "gpu")),
        json.dumps(environment("new", "gpu")),
    ]
    found = read_environment("\n".join(lines) + "\nand more\n")
    assert found is not None
    assert (found.python, found.gpus) == ("CPython 3.12.1", ("NVIDIA A100 (40 GiB)",))
