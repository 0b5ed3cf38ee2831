"""Reports as bytes, and what ranks say beside them: output, benchmarks, properties."""

from __future__ import annotations

import builtins
import json
import struct
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import pytest
from _pytest import reports
from _pytest._io.saferepr import saferepr
from _pytest.terminal import TerminalReporter

from rankwise.pytest_plugin import interop
from rankwise.pytest_plugin.stacks import describe_ranks

if TYPE_CHECKING:
    from rankwise.pytest_plugin.collection import ListedTest

_ATTRIBUTE = "rankwise_beside"

Beside = Mapping[str, Any]


def gather(sources: Sequence[Callable[[], Beside]]) -> Beside:
    """Return what all sources have to say since the last call."""
    return {name: value for source in sources for name, value in source().items()}


def attach(report: pytest.TestReport, said: Beside) -> None:
    """Let a report carry what a rank says beside it."""
    if not said:
        return
    known: dict[str, Any] = getattr(report, _ATTRIBUTE, {})
    # Texts and lists: those of this phase follow those of the phase before.
    added = {name: known[name] + value if name in known else value for name, value in said.items()}
    setattr(report, _ATTRIBUTE, {**known, **added})


def detach(report: pytest.TestReport) -> Beside:
    """Remove and return what is attached to a report."""
    said: Beside = report.__dict__.pop(_ATTRIBUTE, {})
    return said


def tell(
    config: pytest.Config, report: pytest.TestReport, said: Mapping[int, Beside], size: int
) -> None:
    """Show and record what the ranks of a test say, before their merged report is logged."""
    show_text(config, said, size)
    for one in said.values():
        interop.record_properties(config, report, one)
    interop.record_benchmarks(config, list(said.values()))


def show_text(config: pytest.Config, said: Mapping[int, Beside], size: int) -> None:
    """Write what tests wrote past the capture; of a test on several ranks, with the rank."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    screen = terminal._tw if isinstance(terminal, TerminalReporter) else sys.stdout
    for stream, place in (("stdout", screen), ("stderr", sys.stderr)):
        ranks_by_text: dict[str, list[int]] = {}
        for rank, one in said.items():
            if text := one.get(stream):
                ranks_by_text.setdefault(text, []).append(rank)
        for text, ranks in ranks_by_text.items():
            place.write(text if size == 1 else _name_ranks(text, ranks, size))
            place.flush()


def _name_ranks(text: str, ranks: Sequence[int], size: int) -> str:
    label = describe_ranks(ranks, size)
    lines = [f"[{label}] {line}" for line in text.splitlines() if line.strip()]
    return "\n" + "\n".join(lines) + "\n" if lines else ""


# Own references: a test may have replaced these functions, and they are called in its middle.
_dumps, _loads = json.dumps, json.loads

# Python refuses to write longer integers in decimal, and to read JSON that is nested much deeper.
_MOST_BITS = 4096
_DEEPEST = 100

# The attributes of every report, and the one that pytest-html adds to each.
_PLAIN_REPORT = pytest.TestReport("", ("", None, ""), {}, "passed", None, "call")
_ORDINARY = frozenset((*_PLAIN_REPORT.__dict__, "extras"))

# JSON never begins with this byte.
_UNEVENTFUL = b"="
_PHASES: Sequence[Literal["setup", "call", "teardown"]] = ("setup", "call", "teardown")
# Durations, starts and stops of the three phases.
_TIMES = struct.Struct("!9d")

ReportedTest: TypeAlias = "pytest.Item | ListedTest"
"""A test that is reported: as it was collected, or its stand-in."""


@dataclass(slots=True, kw_only=True)
class RankResult:
    """All reports and warnings of one rank on one test."""

    reports: list[pytest.TestReport] = field(default_factory=list)
    subtests: list[pytest.TestReport] = field(default_factory=list)
    reruns: list[list[pytest.TestReport]] = field(default_factory=list)
    """The reports of attempts that were repeated (pytest-rerunfailures)."""
    warnings: list[RecordedWarning] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether any phase failed; an unexpected pass is judged for all ranks together."""
        return any(r.failed and not is_strict_xpass(r) for r in (*self.reports, *self.subtests))

    @property
    def has_ever_failed(self) -> bool:
        """Whether any phase failed, in this attempt or in one that was repeated."""
        return self.failed or any(report.failed for run in self.reruns for report in run)

    @property
    def seconds(self) -> float:
        """How long all phases took together."""
        return sum(report.duration for report in self.reports)


class RecordedWarning(NamedTuple):
    """A warning of `pytest_warning_recorded`, in values that JSON can hold."""

    text: str
    category: str
    filename: str
    lineno: int
    when: Literal["config", "collect", "runtest"]
    nodeid: str

    @classmethod
    def of(
        cls,
        message: warnings.WarningMessage,
        when: Literal["config", "collect", "runtest"],
        nodeid: str,
    ) -> RecordedWarning:
        """Return what can be shown of a warning."""
        text, category = str(message.message), message.category.__name__
        return cls(text, category, message.filename, message.lineno, when, nodeid)

    def record_in(self, config: pytest.Config) -> None:
        """Let pytest and its plugins know of it, as if this process had issued it."""
        message: Any = self.restore()
        arguments = {"warning_message": message, "when": self.when, "nodeid": self.nodeid}
        # Historic: plugins that are registered later learn of it too.
        hook = config.hook.pytest_warning_recorded
        hook.call_historic(kwargs={**arguments, "location": None})

    def restore(self) -> warnings.WarningMessage:
        """Return a warning that looks the same; a category of the user is replaced by its name."""
        # Modules of the user are not imported here: they may not exist, or need MPI.
        known = getattr(builtins, self.category, None) or getattr(pytest, self.category, None)
        if not (isinstance(known, type) and issubclass(known, Warning)):
            known = type(self.category, (UserWarning,), {})
        return warnings.WarningMessage(
            message=known(self.text), category=known, filename=self.filename, lineno=self.lineno
        )


def is_strict_xpass(report: pytest.TestReport) -> bool:
    """Return whether a report failed only because the test passed against its strict xfail."""
    return report.failed and str(report.longrepr or "").startswith("[XPASS(strict)]")


def is_plain_pass(report: pytest.TestReport) -> bool:
    """Return whether a report says no more than that a phase passed, and when."""
    return (
        report.passed
        and not report.sections
        and not report.user_properties
        and not getattr(report, "extras", ())
        and report.longrepr is None
        and _ORDINARY.issuperset(report.__dict__)
    )


def is_uneventful(result: RankResult) -> bool:
    """Return whether a result says no more than that all three phases passed, and when."""
    return (
        len(result.reports) == len(_PHASES)
        and not (result.subtests or result.reruns or result.warnings)
        and all(is_plain_pass(report) for report in result.reports)
    )


def durations_if_uneventful(data: bytes) -> Sequence[float] | None:
    """Return the durations of the phases, if packed bytes say nothing else; None if they do."""
    return _TIMES.unpack(data[1:])[:3] if data[:1] == _UNEVENTFUL else None


def pack(result: RankResult, config: pytest.Config) -> bytes:
    """Return a result as bytes."""
    if is_uneventful(result):
        # Nearly all results are such, so they have a short form.
        reports = result.reports
        durations = [report.duration for report in reports]
        starts = [report.start for report in reports]
        return _UNEVENTFUL + _TIMES.pack(*durations, *starts, *(r.stop for r in reports))
    document = {
        "reports": [pack_any_report(report, config) for report in result.reports],
        "subtests": [pack_any_report(report, config) for report in result.subtests],
        "reruns": [[pack_any_report(report, config) for report in run] for run in result.reruns],
        "warnings": result.warnings,
    }
    document = {name: value for name, value in document.items() if value}
    return _encode(document).encode()


def _encode(document: object) -> str:
    try:
        return _dumps(document, separators=(",", ":"), default=repr)
    except Exception:  # a property that a test has recorded may be anything
        return _dumps(plain_value(document), separators=(",", ":"))


def plain_value(value: object, around: tuple[int, ...] = ()) -> object:
    """Return a value with text in the place of all parts that JSON cannot hold.

    `around` are the ids of the values in which it is: one that contains itself becomes text too.
    """
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, int) and value.bit_length() <= _MOST_BITS:
        return value
    if id(value) not in around and len(around) < _DEEPEST:
        around = (*around, id(value))
        if isinstance(value, dict):
            return {
                key if isinstance(key, str) else saferepr(key): plain_value(inner, around)
                for key, inner in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [plain_value(inner, around) for inner in value]
    return saferepr(value)


def unpack(data: bytes, item: ReportedTest) -> RankResult:
    """Return the result that was packed; what `pack` leaves out is taken from `item`."""
    if data[:1] == _UNEVENTFUL:
        times = _TIMES.unpack(data[1:])
        keywords: dict[str, Literal[1]] = dict.fromkeys(item.keywords, 1)
        reports = []
        for number, when in enumerate(_PHASES):
            report = pytest.TestReport(item.nodeid, item.location, keywords, "passed", None, when)
            report.duration, report.start, report.stop = times[number::3]
            reports.append(report)
        return RankResult(reports=reports)
    document = _loads(data)
    restore = partial(unpack_any_report, config=item.config)
    return RankResult(
        reports=[restore(packed) for packed in document.get("reports", ())],
        subtests=[restore(packed) for packed in document.get("subtests", ())],
        reruns=[[restore(packed) for packed in run] for run in document.get("reruns", ())],
        warnings=[RecordedWarning(*values) for values in document.get("warnings", ())],
    )


def pack_any_report(
    report: pytest.TestReport | pytest.CollectReport, config: pytest.Config
) -> dict[str, Any]:
    """Let pytest and its plugins turn a report into plain values."""
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    # With -p no:reports no plugin does.
    data = data or reports.pytest_report_to_serializable(report)
    assert isinstance(data, dict), f"no plugin can serialise {report!r}"
    return data


def unpack_any_report(data: dict[str, Any], config: pytest.Config) -> Any:
    """Let pytest and its plugins restore a report from plain values."""
    report = config.hook.pytest_report_from_serializable(config=config, data=data)
    report = report or reports.pytest_report_from_serializable(data)
    assert isinstance(report, (pytest.TestReport, pytest.CollectReport))
    # JSON has no tuples, and pytest recognizes the longrepr of a skip by its type.
    longrepr: object = report.longrepr
    if isinstance(longrepr, list):
        path, line, reason = longrepr
        report.longrepr = (path, line, reason)
    # Plugins expect tuples here too.
    report.sections = [(name, text) for name, text in report.sections]
    context = data.get("_subtest.context")
    if context and hasattr(report, "context"):
        # They are texts already, and pytest takes the `repr` of them once more.
        object.__setattr__(report.context, "kwargs", context["kwargs"])
    if isinstance(report, pytest.TestReport):
        report.user_properties = [(name, value) for name, value in report.user_properties]
        path, line, domain = report.location
        report.location = (path, line, domain)
    return report


def merge_warnings(results: Sequence[RankResult]) -> list[RecordedWarning]:
    """Return each warning once, however many ranks had it."""
    return list(dict.fromkeys(warning for result in results for warning in result.warnings))
