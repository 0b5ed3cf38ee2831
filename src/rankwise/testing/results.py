"""A rank's reports on one test, as bytes that travel and back."""

from __future__ import annotations

import builtins
import json
import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import pluggy
import pytest
from _pytest._io.saferepr import saferepr

# What Python makes a decimal number of, and what JSON is read from, without further ado.
_MOST_BITS = 4096
_DEEPEST = 100

# What every report has, and what pytest-html puts on each. A passed phase with nothing beyond is
# sent as four values.
_PLAIN_REPORT = pytest.TestReport("", ("", None, ""), {}, "passed", None, "call")
_ORDINARY = frozenset((*_PLAIN_REPORT.__dict__, "extras"))

# JSON never begins like this.
_UNEVENTFUL = b"="
_PHASES = ("setup", "call", "teardown")
_TIMES = struct.Struct("!9d")

Packed = list[Any]


class ReportedTest(Protocol):
    """What must be known of a test to report it: a `pytest.Item`, or what stands for one."""

    @property
    def nodeid(self) -> str: ...

    @property
    def location(self) -> tuple[str, int | None, str]: ...

    @property
    def keywords(self) -> Any: ...

    @property
    def config(self) -> pytest.Config: ...

    @property
    def ihook(self) -> pluggy.HookRelay: ...


@dataclass(slots=True, kw_only=True)
class RankResult:
    """Everything that one rank has to say about one test."""

    reports: list[pytest.TestReport] = field(default_factory=list)
    subtests: list[pytest.TestReport] = field(default_factory=list)
    reruns: list[list[pytest.TestReport]] = field(default_factory=list)
    """The reports of attempts that were repeated (pytest-rerunfailures)."""
    warnings: list[RecordedWarning] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether any phase failed; an unexpected pass is for all ranks together to judge."""
        return any(r.failed and not is_strict_xpass(r) for r in (*self.reports, *self.subtests))

    @property
    def seconds(self) -> float:
        """How long all phases took together."""
        return sum(report.duration for report in self.reports)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedWarning:
    """A warning as `pytest_warning_recorded` has it, in values that travel."""

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
        """Take what can be shown of a warning."""
        return cls(
            text=str(message.message),
            category=message.category.__name__,
            filename=message.filename,
            lineno=message.lineno,
            when=when,
            nodeid=nodeid,
        )

    def restore(self) -> warnings.WarningMessage:
        """Make a warning that looks the same; a category of the user's own is shown by name."""
        known = getattr(builtins, self.category, None) or getattr(pytest, self.category, None)
        if not (isinstance(known, type) and issubclass(known, Warning)):
            known = type(self.category, (UserWarning,), {})
        return warnings.WarningMessage(
            message=known(self.text), category=known, filename=self.filename, lineno=self.lineno
        )


def is_strict_xpass(report: pytest.TestReport) -> bool:
    """Tell whether a report failed only because the test was expected to fail and did not."""
    return report.failed and str(report.longrepr or "").startswith("[XPASS(strict)]")


def is_plain_pass(report: pytest.TestReport) -> bool:
    """Tell whether a report says no more than that a phase passed, and when."""
    return (
        report.passed
        and not report.sections
        and not report.user_properties
        and not getattr(report, "extras", ())
        and report.longrepr is None
        and _ORDINARY.issuperset(report.__dict__)
    )


def is_uneventful(result: RankResult) -> bool:
    """Tell whether a result says no more than that all three phases passed, and when."""
    return (
        len(result.reports) == len(_PHASES)
        and not (result.subtests or result.reruns or result.warnings)
        and all(is_plain_pass(report) for report in result.reports)
    )


def durations_if_uneventful(data: bytes) -> Sequence[float] | None:
    """Give how long each phase took, if that is all that packed bytes say."""
    return _TIMES.unpack(data[1:])[:3] if data[:1] == _UNEVENTFUL else None


def pack(result: RankResult, config: pytest.Config) -> bytes:
    """Make bytes of a result."""
    if is_uneventful(result):
        # What nearly all results are is worth a short form of its own.
        reports = result.reports
        durations = [report.duration for report in reports]
        starts = [report.start for report in reports]
        return _UNEVENTFUL + _TIMES.pack(*durations, *starts, *(r.stop for r in reports))
    document = {
        "reports": [_pack_report(report, config) for report in result.reports],
        "subtests": [_pack_report(report, config) for report in result.subtests],
        "reruns": [[_pack_report(report, config) for report in run] for run in result.reruns],
        "warnings": [
            [getattr(warning, name) for name in RecordedWarning.__slots__]
            for warning in result.warnings
        ],
    }
    document = {name: value for name, value in document.items() if value}
    return _encode(document).encode()


def _encode(document: object) -> str:
    try:
        return json.dumps(document, separators=(",", ":"), default=repr)
    except Exception:  # a property that a test has recorded may be anything
        return json.dumps(_plain(document), separators=(",", ":"))


def _plain(value: object, around: tuple[int, ...] = ()) -> object:
    """Make text of whatever JSON has no form for, wherever it stands."""
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, int) and value.bit_length() <= _MOST_BITS:
        return value
    if id(value) not in around and len(around) < _DEEPEST:
        around = (*around, id(value))
        if isinstance(value, dict):
            return {
                key if isinstance(key, str) else saferepr(key): _plain(inner, around)
                for key, inner in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [_plain(inner, around) for inner in value]
    return saferepr(value)


def unpack(data: bytes, item: ReportedTest) -> RankResult:
    """Make a result of bytes.

    A plain passed report takes what it needs to know about the test from `item`.
    """
    if data[:1] == _UNEVENTFUL:
        times = _TIMES.unpack(data[1:])
        document = {"reports": [[w, *times[i::3]] for i, w in enumerate(_PHASES)]}
    else:
        document = json.loads(data)
    keywords: Mapping[str, Literal[1]] = dict.fromkeys(item.keywords, 1)

    def restore(packed: Packed) -> pytest.TestReport:
        return _unpack_report(packed, item, keywords)

    return RankResult(
        reports=[restore(packed) for packed in document.get("reports", ())],
        subtests=[restore(packed) for packed in document.get("subtests", ())],
        reruns=[[restore(packed) for packed in run] for run in document.get("reruns", ())],
        warnings=[
            RecordedWarning(**dict(zip(RecordedWarning.__slots__, values, strict=True)))
            for values in document.get("warnings", ())
        ],
    )


def _pack_report(report: pytest.TestReport, config: pytest.Config) -> Packed:
    if is_plain_pass(report):
        return [report.when, report.duration, report.start, report.stop]
    return [pack_any_report(report, config)]


def _unpack_report(
    packed: Packed, item: ReportedTest, keywords: Mapping[str, Literal[1]]
) -> pytest.TestReport:
    if len(packed) > 1:
        when, duration, start, stop = packed
        return pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords=keywords,
            outcome="passed",
            longrepr=None,
            when=when,
            duration=duration,
            start=start,
            stop=stop,
        )
    report = unpack_any_report(packed[0], item.config)
    assert isinstance(report, pytest.TestReport)
    return report


def pack_any_report(
    report: pytest.TestReport | pytest.CollectReport, config: pytest.Config
) -> dict[str, Any]:
    """Let pytest and its plugins make plain values of a report."""
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    assert isinstance(data, dict), f"nobody can serialise {report!r}"
    return data


def unpack_any_report(
    data: dict[str, Any], config: pytest.Config
) -> pytest.TestReport | pytest.CollectReport:
    """Make a report of plain values again."""
    report = config.hook.pytest_report_from_serializable(config=config, data=data)
    assert isinstance(report, (pytest.TestReport, pytest.CollectReport))
    # JSON has no tuples; pytest tells a skip's longrepr by it being one.
    longrepr: object = report.longrepr
    if isinstance(longrepr, list):
        path, line, reason = longrepr
        report.longrepr = (path, line, reason)
    report.sections = [(name, text) for name, text in report.sections]
    if isinstance(report, pytest.TestReport):
        report.user_properties = [(name, value) for name, value in report.user_properties]
        path, line, domain = report.location
        report.location = (path, line, domain)
    return report


def merge_warnings(results: Sequence[RankResult]) -> list[RecordedWarning]:
    """Give each warning once, however many ranks had it."""
    return list(dict.fromkeys(warning for result in results for warning in result.warnings))
