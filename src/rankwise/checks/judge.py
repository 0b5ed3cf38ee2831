"""Judge an attempt by its checks and test results."""

from __future__ import annotations

import dataclasses
import json
import math
import operator
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rankwise.checks import json_path, sources
from rankwise.checks.call_function import call
from rankwise.checks.sources import AttemptOutput, CheckedText, Missing, TooLong
from rankwise.files import open_left
from rankwise.plan import CASES, Check, Task
from rankwise.records import LOGS, AttemptEnd, process_folders
from rankwise.safe_text import harmless, one_line
from rankwise.store.rows import ResultRow, State
from rankwise.wording import headline_of

_MOST_LINES = 10


def fault_by_function(check: Check, output: AttemptOutput, exit_code: int) -> str:
    """Call a function with what the attempt has left, and say what is wrong; empty: nothing is."""
    work, logs = output.work_folders()[0], output.logs()
    given = {
        "folder": str(work),
        "attempt": str(output.folder),
        "logs": {who: str(log) for who, log in logs.items()},
        "output": [str(log) for log in logs.values()],
        "exit_code": exit_code,
    }
    done = call(check.what, given, work=work, seconds=check.seconds, is_check=True)
    if done.exit_code is None:
        return f"it took longer than {check.seconds:g} s"
    said = output.redact(done.printed).splitlines()[-_MOST_LINES:]
    if done.told is None:
        fault = f"its process ended with {done.exit_code} and gave no answer"
    elif "missing" in done.told:
        raise Missing(output.redact(done.told["missing"]))
    else:
        fault = output.redact(str(done.told["fault"]))
    return f"{fault}{sources.quote(said)}" if fault else ""


_MOST_BYTES = 100_000_000
_LONGEST_MESSAGE = 4000
_LONGEST_HEADLINE = 300
_CELL = re.compile(r"cell \d+: ")
_MOST_NAMED = 3
_FAULTS = ("failure", "error")


def judge_tests(
    task: Task, folder: Path, end: AttemptEnd, redact: Callable[[str], str] = str
) -> tuple[AttemptEnd, Sequence[ResultRow]]:
    """Read what became of the single tests of a task, and say how it has ended after all."""
    if not task.results:
        return end, ()
    begin = task.environment["RANKWISE_CASES"] if task.results == CASES else ""
    try:
        if begin:
            tests = read_cases(folder, begin, end)
        else:
            tests = list(read_tests(folder / task.results, redact))
    except (OSError, ValueError, Missing) as error:
        tests = []
        problem = str(error)
    else:
        problem = f"no line has {begin!r}" if begin else f"{task.results} names no test"
    if end.outcome == "passed" and not tests:
        reason = f"no test results: {problem}"
        return dataclasses.replace(end, outcome="failed", reason=reason), ()
    failed = [test for test in tests if test.state is State.FAILED]
    if failed and end.outcome in ("passed", "failed"):
        more = f" and {len(failed) - _MOST_NAMED} more" if len(failed) > _MOST_NAMED else ""
        named = ", ".join(map(_named_test, failed[:_MOST_NAMED]))
        reason = f"{len(failed)} of {len(tests)} tests failed: {named}{more}"
        end = dataclasses.replace(end, outcome="failed", reason=reason)
    return end, tests


def _named_test(test: ResultRow) -> str:
    """Name a test and what was wrong with it.

    A cell of a notebook is called by the beginning of its source, which says nothing of an error.
    """
    said = headline_of(test.message)
    said = said if len(said) <= _LONGEST_HEADLINE else f"{said[:_LONGEST_HEADLINE]}…"
    group, _, name = test.name.partition("::")
    cell = _CELL.match(name)
    if cell is not None and said.startswith(cell[0]):
        return f"{group}: {said}"
    return f"{test.name}: {said}" if said else test.name


def read_tests(path: Path, redact: Callable[[str], str] = str) -> Iterator[ResultRow]:
    """Return what a JUnit file says, without secrets; raises OSError or ValueError."""
    with open_left(path) as file:
        if os.fstat(file.fileno()).st_size > _MOST_BYTES:
            raise ValueError(f"{path} has more than {_MOST_BYTES} bytes, and is not read")
        text = file.read()
    try:
        # Written by the user's own tests; expat refuses entities that grow without bounds.
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, LookupError) as error:
        raise ValueError(f"{path} is no XML: {error}") from None
    for case in root.iter("testcase"):
        state, message = State.PASSED, ""
        if not case.get("name") and not len(case):
            # pytest.exit() in a test leaves this: whatever its exit code says, it has no result.
            state, message = State.FAILED, "a test was begun and has no result"
        for child in case:
            if child.tag in _FAULTS:
                state, message = State.FAILED, _message(child, redact)
                break
            if child.tag == "skipped":
                state = State.SKIPPED
                message = redact(child.get("message") or "") or _message(child, redact)
        yield ResultRow(
            name="::".join(filter(None, (case.get("classname"), case.get("name")))) or "unnamed",
            state=state,
            seconds=_seconds(case.get("time", "")),
            message=message,
        )


def read_cases(folder: Path, begin: str, end: AttemptEnd) -> list[ResultRow]:
    """Return the cases that a program has begun one after the other; the last one ended as it did.

    Of ranks that all say so, the first one counts. Raises Missing.
    """
    found = ((place, begun) for place in process_folders(folder) if (begun := _begun(place, begin)))
    place, begun = next(found, (folder, []))
    ends = [*(when for when, _ in begun[1:]), end.ended or 0.0]
    rows = [
        ResultRow(name=name, state=State.PASSED, seconds=max(0.0, until - since))
        for (since, name), until in zip(begun, ends, strict=False)
    ]
    if rows and end.outcome != State.PASSED:
        log = CheckedText(name=place.name, text=sources.read_text(place / LOGS[-1]))
        message = f"{end.reason}{sources.quote(sources.last_lines([log]))}"
        rows[-1] = dataclasses.replace(rows[-1], state=State.FAILED, message=message)
    return rows


def _begun(place: Path, begin: str) -> list[tuple[float, str]]:
    """Return when a process has begun which case."""
    found = []
    for name in (part.replace("output.log", CASES) for part in LOGS):
        if (place / name).exists():
            for line in sources.read_text(place / name).splitlines():
                when, _, text = line.partition(" ")
                case = one_line(text.partition(begin)[2], _LONGEST_HEADLINE)
                # Others say that some are missing.
                if case and re.fullmatch(r"\d+\.\d+", when):
                    found.append((float(when), case))
    # Each stream has its own order.
    return sorted(found, key=operator.itemgetter(0))


def _message(element: ElementTree.Element, redact: Callable[[str], str]) -> str:
    """Return what is said about a test: in short, and then what is known beside that."""
    short, whole = element.get("message") or "", (element.text or "").strip("\n")
    first = short.splitlines()[0] if short else ""
    # Redacted first of all: half of a value would not be known again.
    text = redact(whole if first and first in whole else f"{short}\n{whole}").strip("\n")
    if len(text) <= _LONGEST_MESSAGE:
        return text
    head = f"{redact(first)[:_LONGEST_HEADLINE]}\n…\n" if first else ""
    return head + text[len(head) - _LONGEST_MESSAGE :]


def _seconds(text: str) -> float:
    try:
        seconds = float(text.replace(",", ""))
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds < math.inf else 0.0


# Matches beyond this are not counted: no check asks for so many.
_MOST_MATCHES = 1_000_000


def fault_in_text(check: Check, output: AttemptOutput) -> str:
    """Say what is wrong; empty: nothing is. Raises Missing."""
    redact = output.redact_on(check.on)
    faults = (_fault_in_sources(*group, redact) for group in output.sources(check))
    return next(filter(None, faults), "")


def _fault_in_sources(
    check: Check, texts: Sequence[CheckedText], redact: Callable[[str], str]
) -> str:
    least, most = (0, 0) if check.kind == "absent" else (check.least, check.most)
    found = [(source, at) for source in texts for at in _places(check, source.text)]
    count, where = len(found), sources.names_of(texts)
    lost = sum(source.lost for source in texts)
    if least <= count and (most is None or count <= most):
        if lost and most is not None:
            return (
                f"{lost} bytes of {where} were left out, so it is not known whether it is in there"
            )
        return ""
    if not count:
        is_text = check.kind == "contains"
        lines = sources.most_like(check.what, texts) if is_text else sources.last_lines(texts)
        what = f"not found in {where}" if lines else f"not found: {where} is empty"
    else:
        lines = sources.first_lines([_line_at(source.text, at) for source, at in found])
        what = f"found {sources.times(count)} in {where}"
    if lost:
        what += f", of which {lost} bytes were left out"
    return f"{what}:{sources.quote(map(redact, lines))}" if lines else what


def _places(check: Check, text: str) -> Iterator[int]:
    if check.kind == "regex":
        for number, found in enumerate(re.finditer(check.what, text, re.MULTILINE)):
            if number >= _MOST_MATCHES:
                return
            yield found.start()
        return
    # Overlaps do not count twice, as with `re.finditer`; an empty text must still come to an end.
    at = text.find(check.what)
    while at >= 0:
        yield at
        at = text.find(check.what, at + max(len(check.what), 1))


def _line_at(text: str, at: int) -> str:
    begin = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    return text[begin : end if end >= 0 else len(text)]


_CLOSE = 1e-6
_LONGEST_VALUE = 80


def fault_in_values(check: Check, output: AttemptOutput) -> str:
    """Say what is wrong; empty: nothing is. Raises Missing."""
    redact = output.redact_on(check.on)
    for wanted, group in output.sources(check):
        data, where = _data(check, group, redact)
        found = json_path.find(data, wanted.what)
        if not found:
            return f"{wanted.what} leads nowhere in {where}, which has {_outline(data, redact)}"
        for value in found:
            if not _is_right(check, value):
                return f"it is {_short(value, redact)} in {where}"
    return ""


def _data(check: Check, texts: list[CheckedText], redact: Callable[[str], str]) -> tuple[Any, str]:
    """Return the data, and where it is from; of what was written, the last line that is JSON."""
    for source in texts:
        readings = [source.text]
        if check.on in sources.STREAMS:
            readings += [line for line in reversed(source.text.splitlines()) if line[:1] in "{["]
        for text in readings:
            try:
                return json.loads(text), source.name
            except (ValueError, RecursionError):
                continue
    names = ", ".join(source.name for source in texts)
    why = f"there is no JSON in {names}:{sources.quote(map(redact, sources.last_lines(texts)))}"
    raise Missing(why)


def _is_right(check: Check, value: Any) -> bool:
    wanted = check.value
    if not check.compare:
        return True
    if check.compare == "equals" and not (_is_number(value) and _is_number(wanted)):
        # Python takes True for 1, and JSON does not.
        return type(value) is type(wanted) and bool(value == wanted)
    if not _is_number(value) or not isinstance(wanted, (int, float)):
        return False
    match check.compare:
        case "equals":
            return bool(value == wanted)
        case "less_than":
            return bool(value < wanted)
        case "greater_than":
            return bool(value > wanted)
    tolerance = check.tolerance
    if tolerance is None:
        return math.isclose(value, wanted, rel_tol=_CLOSE, abs_tol=_CLOSE * 1e-3)
    return bool(abs(value - wanted) <= tolerance)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any, redact: Callable[[str], str]) -> str:
    text = redact(json.dumps(value))
    return sources.shown(text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…")


def _outline(data: Any, redact: Callable[[str], str]) -> str:
    match data:
        case dict() if data:
            return sources.shown(redact(", ".join(map(repr, list(data)[:10]))))
        case list():
            return f"a list of {len(data)}"
    return _short(data, redact)


# Others have no exit code of their own.
_WITH_A_CODE = ("passed", "failed", "crashed")


def judge(
    task: Task, folder: Path, end: AttemptEnd, *, redact: Callable[[str], str] = str
) -> tuple[AttemptEnd, Sequence[ResultRow]]:
    """Look at what an attempt has left, and say how it has ended after all, with its single tests.

    A chain: only the check of the exit code, which comes first, may take a failure for a success;
    everything after it can only make things worse. Only reads, so it may be asked again: what has
    not changed is judged in the same way. `redact` keeps secrets out of what is quoted.
    """
    # Before the tests: of a program whose code was wanted, their results count too.
    end, faults = _judge_code(task, end)
    end, tests = judge_tests(task, folder, end, redact)
    if end.outcome != "passed":
        reason = "\n".join([end.reason, *faults])
        return dataclasses.replace(end, reason=reason), tests
    output = AttemptOutput(task=task, folder=folder, started=end.started, redact=redact)
    for number, check in enumerate(task.checks, start=1):
        if check.kind != "exit_code" and (fault := _fault(check, output, end)):
            faults.append(_told(number, check, fault))
    if not faults:
        return end, tests
    reason = faults[0]
    if len(faults) > 1:
        reason = f"{len(faults)} of {len(task.checks)} checks failed\n" + "\n".join(faults)
    return dataclasses.replace(end, outcome="failed", reason=reason), tests


def _judge_code(task: Task, end: AttemptEnd) -> tuple[AttemptEnd, list[str]]:
    """Take exit codes for success that are wanted, and zero for a failure if it is not."""
    faults = []
    for number, check in enumerate(task.checks, start=1):
        if check.kind != "exit_code" or end.outcome not in _WITH_A_CODE:
            continue
        if end.exit_code in check.codes:
            end = dataclasses.replace(end, outcome="passed", reason="", culprit=None)
        elif end.outcome == "passed":
            faults.append(_told(number, check, f"it was {end.exit_code}"))
        else:
            wanted = f"check {number} wants {sources.describe(check)}"
            end = dataclasses.replace(end, reason=f"{end.reason}; {wanted}")
    return end, faults


def _fault(check: Check, output: AttemptOutput, end: AttemptEnd) -> str:
    """Say what is wrong; empty: nothing is."""
    try:
        if check.kind == "python":
            return fault_by_function(check, output, end.exit_code)
        with sources.at_most(check.seconds):
            match check.kind:
                case "json":
                    return fault_in_values(check, output)
                case "exists":
                    output.files(check)
                    return ""
            return fault_in_text(check, output)
    except (Missing, TooLong) as problem:
        return str(problem)
    except (OSError, ValueError, RecursionError, OverflowError, re.error) as problem:
        # A name that no file can have, a folder that may not be entered, a number of 400 digits,
        # a pattern that is none with the number of a rank in it.
        return f"it could not be made: {problem}"


def _told(number: int, check: Check, fault: str) -> str:
    return harmless(f"check {number} ({sources.describe(check)}): {fault}")
