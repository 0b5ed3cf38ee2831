"""Results as JUnit XML, which every CI reads."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

from rankwise.report.cases import Case
from rankwise.report.terminal import clean
from rankwise.store import RunRow, State

# What XML 1.0 has no place for, escaped or not.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONGEST = 100_000
_HAS_RUN_BADLY = (State.CRASHED, State.TIMED_OUT, State.LOST, State.CANCELLED, State.NOT_RUN)


def junit_report(run: RunRow, cases: Sequence[Case]) -> bytes:
    """Write the results of a run; what did not run though it should is an error, not a skip."""
    states = Counter(_kind(case) for case in cases)
    numbers = {
        "tests": str(len(cases)),
        "failures": str(states["failure"]),
        "errors": str(states["error"]),
        "skipped": str(states["skipped"]),
        "time": f"{_seconds(run, cases):.3f}",
    }
    root = ElementTree.Element("testsuites", {"name": fit(run.id), **numbers})
    about = {"name": fit(run.name), **numbers}
    if run.started is not None:
        about["timestamp"] = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(run.started))
    suite = ElementTree.SubElement(root, "testsuite", about)
    for case in cases:
        _add(suite, run, case)
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def fit(text: str) -> str:
    """Make a text fit for XML: no colours, and a mark for what XML cannot hold."""
    lines = (clean(line, keep_colours=False) for line in text[:_LONGEST].split("\n"))
    return _NO_XML.sub("\ufffd", "\n".join(lines))


def _seconds(run: RunRow, cases: Sequence[Case]) -> float:
    if run.started is not None and run.ended is not None:
        return max(0.0, run.ended - run.started)
    return sum(case.seconds for case in cases)


def _kind(case: Case) -> str:
    if case.state is State.PASSED:
        return "passed"
    if case.state is State.SKIPPED or (case.is_soft and case.state.is_over):
        return "skipped"
    return "failure" if case.state is State.FAILED else "error"


def _add(suite: ElementTree.Element, run: RunRow, case: Case) -> None:
    is_single = case.name != case.task
    group = case.cell or run.name
    about = {
        "classname": fit(f"{group}.{case.test or case.task}" if is_single else group),
        "name": fit(case.name if is_single else case.test or case.name),
        "time": f"{case.seconds:.3f}",
    }
    if case.place and not is_single:
        path, line = place_of(case.place)
        about |= {"file": fit(path), "line": line}
    element = ElementTree.SubElement(suite, "testcase", about)
    kind = _kind(case)
    if kind == "passed":
        return
    message = fit(case.headline or str(case.state))
    if kind == "skipped":
        # As pytest tells of a failure that was expected.
        about = {"type": "rankwise.soft_fail"} if case.state is not State.SKIPPED else {}
        ElementTree.SubElement(element, "skipped", {"message": message, **about})
        return
    named = {"message": message, "type": str(case.state)}
    told = ElementTree.SubElement(element, kind, named)
    told.text = fit("\n".join(filter(None, [case.reason if not is_single else "", case.details])))
    if case.log is not None:
        ElementTree.SubElement(element, "system-out").text = fit(f"log: {case.log}")


def place_of(place: str) -> tuple[str, str]:
    """Give the file and the line of FILE:LINE:COLUMN; of a file alone, its beginning."""
    path, *numbers = place.rsplit(":", 2)
    return (path, numbers[0]) if len(numbers) == 2 else (place, "1")
