"""Reports as bytes, and what travels beside them."""

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
    """Return all that there is to say now."""
    said: dict[str, Any] = {}
    for source in sources:
        said |= source()
    return said


def attach(report: pytest.TestReport, said: Beside) -> None:
    """Let a report carry what there is to say."""
    if not said:
        return
    known: dict[str, Any] = getattr(report, _ATTRIBUTE, {})
    # Texts and lists, which go on where the phase before has ended.
    added = {name: known[name] + value if name in known else value for name, value in said.items()}
    setattr(report, _ATTRIBUTE, {**known, **added})


def has_any(report: pytest.TestReport) -> bool:
    """Return whether a report carries something."""
    return hasattr(report, _ATTRIBUTE)


def detach(report: pytest.TestReport) -> Beside:
    """Take off what a report carries."""
    said: Beside = report.__dict__.pop(_ATTRIBUTE, {})
    return said


def tell(
    config: pytest.Config, report: pytest.TestReport, said: Mapping[int, Beside], size: int
) -> None:
    """Pass on what ranks of a test said, before the report on all of them is logged."""
    show_text(config, said, size)
    for one in said.values():
        interop.record_properties(config, report, one)
    interop.record_benchmarks(config, list(said.values()))


def show_text(config: pytest.Config, said: Mapping[int, Beside], size: int) -> None:
    """Write what tests wrote past the capture; of a test on several ranks, with the rank."""
    for stream, write in (("stdout", _writer(config)), ("stderr", _write_error)):
        ranks_by_text: dict[str, list[int]] = {}
        for rank, one in said.items():
            if text := one.get(stream):
                ranks_by_text.setdefault(text, []).append(rank)
        for text, ranks in ranks_by_text.items():
            write(text if size == 1 else _name_ranks(text, ranks, size))


def _name_ranks(text: str, ranks: Sequence[int], size: int) -> str:
    label = describe_ranks(ranks, size)
    lines = [f"[{label}] {line}" for line in text.splitlines() if line.strip()]
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def _writer(config: pytest.Config) -> Callable[[str], None]:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(terminal, TerminalReporter):
        return lambda text: terminal._tw.write(text, flush=True)
    return lambda text: print(text, end="", flush=True)


def _write_error(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


# Own references: a test may have put something else in their place, and this runs in its middle.
_dumps, _loads = json.dumps, json.loads

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


ReportedTest: TypeAlias = "pytest.Item | ListedTest"
"""A test that is reported: as it was collected, or what stands for it."""


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


class RecordedWarning(NamedTuple):
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

    def record_in(self, config: pytest.Config) -> None:
        """Let pytest and its plugins know of it, as if it had been given in this process."""
        config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": self.restore(),
                "when": self.when,
                "nodeid": self.nodeid,
                "location": None,
            }
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
    """Return whether a report failed only because the test was expected to fail and did not."""
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
    """Return how long each phase took, if that is all that packed bytes say."""
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
        "warnings": result.warnings,
    }
    document = {name: value for name, value in document.items() if value}
    return _encode(document).encode()


def _encode(document: object) -> str:
    try:
        return _dumps(document, separators=(",", ":"), default=repr)
    except Exception:  # a property that a test has recorded may be anything
        return _dumps(_plain(document), separators=(",", ":"))


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
        document = _loads(data)
    restore = partial(_unpack_report, item, dict.fromkeys(item.keywords, 1))
    return RankResult(
        reports=[restore(packed) for packed in document.get("reports", ())],
        subtests=[restore(packed) for packed in document.get("subtests", ())],
        reruns=[[restore(packed) for packed in run] for run in document.get("reruns", ())],
        warnings=[RecordedWarning(*values) for values in document.get("warnings", ())],
    )


def _pack_report(report: pytest.TestReport, config: pytest.Config) -> Packed:
    if is_plain_pass(report):
        return [report.when, report.duration, report.start, report.stop]
    return [pack_any_report(report, config)]


def _unpack_report(
    item: ReportedTest, keywords: Mapping[str, Literal[1]], packed: Packed
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
    # With -p no:reports no plugin does.
    data = data or reports.pytest_report_to_serializable(report)
    assert isinstance(data, dict), f"no plugin can serialise {report!r}"
    return data


def unpack_any_report(
    data: dict[str, Any], config: pytest.Config
) -> pytest.TestReport | pytest.CollectReport:
    """Make a report of plain values again."""
    report = config.hook.pytest_report_from_serializable(config=config, data=data)
    report = report or reports.pytest_report_from_serializable(data)
    assert isinstance(report, (pytest.TestReport, pytest.CollectReport))
    # JSON has no tuples; pytest tells a skip's longrepr by it being one.
    longrepr: object = report.longrepr
    if isinstance(longrepr, list):
        path, line, reason = longrepr
        report.longrepr = (path, line, reason)
    report.sections = [(name, text) for name, text in report.sections]
    context = data.get("_subtest.context")
    if context and hasattr(report, "context"):
        # These are texts already; pytest makes texts of them once more when it reads them.
        object.__setattr__(report.context, "kwargs", context["kwargs"])
    if isinstance(report, pytest.TestReport):
        report.user_properties = [(name, value) for name, value in report.user_properties]
        path, line, domain = report.location
        report.location = (path, line, domain)
    return report


def merge_warnings(results: Sequence[RankResult]) -> list[RecordedWarning]:
    """Return each warning once, however many ranks had it."""
    return list(dict.fromkeys(warning for result in results for warning in result.warnings))
