"""Results for programs: JUnit XML, annotations of CI services, CSV, JSON."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from rankwise.reports.failures import CaseResult, with_run
from rankwise.reports.matrix import MatrixResult
from rankwise.reports.measurements import as_number
from rankwise.reports.model import ReportData
from rankwise.reports.rendering import render
from rankwise.safe_text import fit, fit_for_xml
from rankwise.store import State
from rankwise.store.rows import RED
from rankwise.store.samples import SampleRow
from rankwise.wording import grouped


def junit_report(data: ReportData) -> bytes:
    """Write the results of a run; what did not run though it should is an error, not a skip."""
    run = data.run
    cases = [(case, _kind(case)) for case in with_run(run, data.results)]
    # While it runs, the time of what is over.
    took = sum(case.seconds for case, _ in cases) if data.seconds is None else data.seconds
    begun = ""
    # A store may have times of a clock that was wrong by centuries.
    with suppress(OverflowError, ValueError, OSError):
        if run.started is not None:
            begun = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(run.started))
    states = Counter(kind for _, kind in cases)
    content = {"run": run, "cases": cases, "states": states, "begun": begun, "place_of": place_of}
    return render("reports/junit.xml", **content, took=max(0.0, took)).encode()


def _kind(case: CaseResult) -> str:
    kinds = {State.PASSED: "passed", State.SKIPPED: "skipped", State.FAILED: "failure"}
    return "skipped" if case.is_forgiven else kinds.get(case.state, "error")


def place_of(place: str) -> tuple[str, str]:
    """Return the file and the line of FILE:LINE:COLUMN; of a file alone, its beginning."""
    path, *numbers = place.rsplit(":", 2)
    return (path, numbers[0]) if len(numbers) == 2 else (place, "1")


# GitHub shows no more of a step.
_MOST = 10
_LONGEST = 1000


def error_lines(cases: Sequence[CaseResult], *, workspace: str = "") -> Iterator[str]:
    """Return a line for each case that is not well, as GitHub reads them: soft failures warn."""
    red = sorted((case for case in cases if case.state in RED), key=_level)
    for case in red[: _MOST if len(red) <= _MOST else _MOST - 1]:
        about = {"title": f"{case.title} {case.state}"}
        if case.place:
            path, line = place_of(case.place)
            # As GitHub knows it: from the folder of the repository.
            whole = Path(path).absolute()
            is_inside = workspace and whole.is_relative_to(workspace)
            path = os.path.relpath(whole, workspace if is_inside else None)
            about = {"file": path, "line": line, **about}
        message = case.reason or str(case.state)
        if case.details and case.name == case.task:
            message += f"\n{case.details}"
        yield _command(_level(case), about, message)
    if len(red) > _MOST:
        about = {"title": f"{len(red) - _MOST + 1} more"}
        yield _command(_level(red[_MOST - 1]), about, "see the summary of this job")


def _level(case: CaseResult) -> str:
    return "warning" if case.is_forgiven else "error"


def _command(level: str, about: dict[str, str], message: str) -> str:
    told = {name: _data(value).replace(":", "%3A") for name, value in about.items()}
    said = ",".join(f"{name}={value.replace(',', '%2C')}" for name, value in told.items())
    return f"::{level} {said}::{_data(message[:_LONGEST])}"


def _data(text: str) -> str:
    text = fit_for_xml(text).replace("%", "%25")
    return text.replace("\r", "%0D").replace("\n", "%0A")


_BEFORE = ("run", "case", "state", "reason", "seconds", "attempts", "exit_code")
_AFTER = ("metric", "unit", "trial", "value")
# A spreadsheet would take what begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_report(*several: ReportData) -> str:
    """Write a row for each value that runs have measured, and one for each case without any."""
    known = (
        one.parameters for data in several for some in (data.cases, data.measures) for one in some
    )
    # The number of a trial is a column already.
    names = [name for name in dict.fromkeys(chain.from_iterable(known)) if name != "trial"]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*_BEFORE, *(_cell(_column(name)) for name in names), *_AFTER])
    for data in several:
        writer.writerows(_csv_rows(data, names))
    return stream.getvalue()


def _csv_rows(data: ReportData, names: Sequence[str]) -> Iterator[list[object]]:
    measures = {one.series: one for one in data.measures}
    samples = grouped((row.task, row) for row in data.samples)
    for case in data.cases:
        first = [data.run.id, case.key, case.state, case.reason, case.seconds, case.attempts]
        first.append(case.exit_code)
        rows: list[SampleRow | None] = [*samples.get(case.key, ())] or [None]
        for sample in rows:
            last: Sequence[object] = ["", "", "", ""]
            values = dict(case.parameters)
            if sample and (measure := measures.get(sample.series)):
                values |= measure.parameters
                last = [measure.metric, measure.unit, sample.trial, sample.value]
            yield [
                _cell(cell) for cell in (*first, *(values.get(name, "") for name in names), *last)
            ]


def _column(parameter: str) -> str:
    """Name the column of a parameter; some names are taken by other columns."""
    return f"parameter {parameter}" if parameter in (*_BEFORE, *_AFTER) else parameter


def _cell(value: object) -> object:
    """Return a cell that a spreadsheet does not calculate, whatever name stands in it."""
    text = fit(value) if isinstance(value, str) else value
    is_formula = isinstance(text, str) and text.startswith(_FORMULA) and as_number(text) is None
    return f"'{text}" if is_formula else text


def json_report(data: ReportData) -> str:
    """Write all of it but the drawings."""
    texts = {row.key: [one for one in some if "picture" not in one] for row, some in data.analyses}
    parts = {
        "run": dataclasses.asdict(data.run),
        "counts": {str(state): count for state, count in data.counts.items() if count},
        "cases": [dataclasses.asdict(case) for case in data.cases],
        "failures": [dataclasses.asdict(one) for one in data.failures],
        "others": [dataclasses.asdict(one) for one in data.others],
        "tests": [dataclasses.asdict(test) for test in data.tests],
        "measures": [{**dataclasses.asdict(one), "change": one.change} for one in data.measures],
        "analyses": texts,
        "compared_with": data.before or None,
        "conditions": dict(data.conditions),
        "matrix": _matrix(data.matrix) if data.matrix else None,
        "made": data.now,
    }
    return json.dumps(_plain(parts), indent=2, allow_nan=False) + "\n"


def _matrix(matrix: MatrixResult) -> dict[str, Any]:
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
    if isinstance(value, list | tuple | frozenset):
        return [_plain(one) for one in (sorted(value) if isinstance(value, frozenset) else value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    # A truth value is an int, too.
    return value if value is None or isinstance(value, int) else fit(str(value))
