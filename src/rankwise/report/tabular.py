"""A report for programs: CSV with a row for each value, and JSON with all of it."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from rankwise.report.facts import Case, ReportData
from rankwise.report.markup import fit
from rankwise.report.matrix import Matrix
from rankwise.report.measures import Measure, as_number
from rankwise.report.status import run_data
from rankwise.store import Store
from rankwise.store.samples import SampleRow

_BEFORE = ("run", "case", "state", "reason", "seconds", "attempts", "exit_code")
_AFTER = ("metric", "unit", "trial", "value")
# A spreadsheet would take what begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_report(data: ReportData, store: Store) -> str:
    """Write a row for each value that was measured, and one for each case without any."""
    measures = {one.series: one for one in data.measures}
    names = _names(data.cases, data.measures)
    samples: dict[str, list[SampleRow]] = {}
    for row in store.samples_of_run(data.run.id):
        samples.setdefault(row.task, []).append(row)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*_BEFORE, *map(_cell, names), *_AFTER])
    for case in data.cases:
        first = [data.run.id, case.key, case.state, case.reason, case.seconds, case.attempts]
        first.append(case.exit_code)
        rows: list[SampleRow | None] = [*samples.get(case.key, ())] or [None]
        for sample in rows:
            measure = measures.get(sample.series) if sample is not None else None
            known = {**case.parameters, **(measure.parameters if measure else {})}
            last: list[object] = ["", "", "", ""]
            if sample is not None and measure is not None:
                last = [measure.metric, measure.unit, sample.trial, sample.value]
            cells = [*first, *(known.get(name, "") for name in names), *last]
            writer.writerow([_cell(cell) for cell in cells])
    return stream.getvalue()


def _names(cases: Iterable[Case], measures: Iterable[Measure]) -> list[str]:
    found: dict[str, None] = {}
    for parameters in (*(case.parameters for case in cases), *(one.parameters for one in measures)):
        found.update(dict.fromkeys(parameters))
    return [name for name in found if name not in (*_BEFORE, *_AFTER)]


def _cell(value: object) -> object:
    """Keep a spreadsheet from calculating what somebody has chosen as a name."""
    if not isinstance(value, str):
        return value
    text = fit(value)
    return f"'{text}" if text.startswith(_FORMULA) and as_number(text) is None else text


def json_report(data: ReportData) -> str:
    """Write all of it but the drawings."""
    return json.dumps(_plain(_parts(data)), indent=2, allow_nan=False) + "\n"


def _parts(data: ReportData) -> dict[str, Any]:
    return {
        "run": run_data(data.run),
        "counts": {str(state): count for state, count in data.counts.items() if count},
        "cases": [dataclasses.asdict(case) for case in data.cases],
        "failures": [dataclasses.asdict(one) for one in data.failures],
        "others": [dataclasses.asdict(one) for one in data.others],
        "tests": [dataclasses.asdict(test) for test in data.tests],
        "measures": [{**dataclasses.asdict(one), "change": one.change} for one in data.measures],
        "compared_with": data.before or None,
        "conditions": dict(data.conditions),
        "matrix": _matrix(data.matrix) if data.matrix else None,
        "made": data.made,
    }


def _matrix(matrix: Matrix) -> dict[str, Any]:
    cells = (
        {
            "runtime": cell.runtime,
            "machine": cell.machine,
            "verdict": cell.verdict,
            "reason": cell.reason,
            "counts": dict(cell.counts),
            "seconds": cell.seconds,
            "environment": dataclasses.asdict(cell.environment) if cell.environment else None,
            "differs": [dataclasses.asdict(one) for one in cell.contrasts],
        }
        for cell in matrix.in_order
    )
    return {"runtimes": matrix.runtimes, "machines": matrix.machines, "cells": list(cells)}


def _plain(value: Any) -> Any:
    """Leave nothing that JSON does not know; what is not finite is null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(_plain, value))
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    return fit(str(value))
