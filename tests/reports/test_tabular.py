from __future__ import annotations

import csv
import io
import json

from rankwise.reports.data_formats import csv_report, json_report
from rankwise.reports.model import ReportData
from rankwise.store import Store
from tests.reports.made_runs import failed_run
from tests.reports.measured_runs import hostile_run, make_sweep, osu_sweep, run_case, sweep_task

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


def test_a_run_without_measurements_is_a_table_of_its_tasks(store: Store) -> None:
    [row] = rows_of(store, failed_run(store))
    assert (row["case"], row["state"], row["exit_code"]) == ("train", "failed", "7")


def test_a_spreadsheet_calculates_nothing_that_somebody_has_chosen(store: Store) -> None:
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
