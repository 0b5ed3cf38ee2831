"""What became of single tests, from the JUnit file that pytest or another program has left."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from rankwise.plan import Task
from rankwise.records import AttemptEnd
from rankwise.store.rows import ResultRow
from rankwise.store.states import State

_MOST_BYTES = 100_000_000
_LONGEST_MESSAGE = 4000
_MOST_NAMED = 3
_FAULTS = ("failure", "error")


def judge_tests(
    task: Task, folder: Path, end: AttemptEnd
) -> tuple[AttemptEnd, Sequence[ResultRow]]:
    """Read what became of the single tests of a task, and say how it has ended after all."""
    if not task.results:
        return end, ()
    try:
        tests = list(read_tests(folder / task.results))
    except (OSError, ValueError) as error:
        tests = []
        problem = str(error)
    else:
        problem = f"{task.results} names no test"
    if end.outcome == "passed" and not tests:
        reason = f"nobody can say that any test has run: {problem}"
        return dataclasses.replace(end, outcome="failed", reason=reason), ()
    failed = [test.name for test in tests if test.state is State.FAILED]
    if failed and end.outcome in ("passed", "failed"):
        more = f" and {len(failed) - _MOST_NAMED} more" if len(failed) > _MOST_NAMED else ""
        named = ", ".join(failed[:_MOST_NAMED])
        reason = f"{len(failed)} of {len(tests)} tests failed: {named}{more}"
        end = dataclasses.replace(end, outcome="failed", reason=reason)
    return end, tests


def read_tests(path: Path) -> Iterator[ResultRow]:
    """Give what a JUnit file says; raises OSError or ValueError."""
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} has more than {_MOST_BYTES} bytes, and is not read")
    try:
        # Written by the user's own tests; expat refuses entities that grow without bounds.
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, LookupError) as error:
        raise ValueError(f"{path} is no XML: {error}") from None
    for case in root.iter("testcase"):
        state, message = State.PASSED, ""
        for child in case:
            if child.tag in _FAULTS:
                state, message = State.FAILED, _message(child)
                break
            if child.tag == "skipped":
                state, message = State.SKIPPED, child.get("message") or _message(child)
        yield ResultRow(
            name="::".join(filter(None, (case.get("classname"), case.get("name")))) or "unnamed",
            state=state,
            seconds=_seconds(case.get("time", "")),
            message=message,
        )


def _message(element: ElementTree.Element) -> str:
    """Give what is said about a test: in short, and then what is known beside that."""
    short, whole = element.get("message") or "", (element.text or "").strip("\n")
    text = whole if short and short.splitlines()[0] in whole else f"{short}\n{whole}"
    return text.strip("\n")[-_LONGEST_MESSAGE:]


def _seconds(text: str) -> float:
    try:
        return max(0.0, float(text.replace(",", "")))
    except ValueError:
        return 0.0
