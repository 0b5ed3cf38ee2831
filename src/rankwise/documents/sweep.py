"""The sweep: one command with many values, measured several times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from rankwise.documents import common, values
from rankwise.documents.common import ComputeRef, Conflict, Exclusion, Model
from rankwise.documents.jobs import Code, DocumentModel
from rankwise.documents.values import listed_schema, number_in, one_or_more, whole, wrong
from rankwise.documents.written import entries_in, mapping_in
from rankwise.plugins import METRIC_PARSERS
from rankwise.wording import alternatives, code, hint

COUNTED = ("nodes", "ranks_per_node")
OWN_NAMES = (*COUNTED, "ranks", "trial")
"""What `${{NAME}}` may stand for beside the parameters."""
# More is a mistake in `step` or `times`, and would fill the memory before it was noticed.
_MOST_VALUES = 100_000


class Range(Model):
    """Numbers from one to another, both of them included."""

    start: values.Number = Field(alias="from", examples=[1])
    """The first."""
    to: values.Number = Field(examples=[1024])
    """None is greater."""
    step: values.Number | None = None
    """What is added each time; 1 if nothing is said."""
    times: values.Number | None = Field(default=None, examples=[2])
    """What each is multiplied by, instead."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        step, times = number_in(contents.get("step")), number_in(contents.get("times"))
        start, to = number_in(contents.get("from")), number_in(contents.get("to"))
        if step is not None and times is not None:
            yield Conflict(("times",), "a range has `step` or `times`, not both")
        if step is not None and step <= 0:
            yield Conflict(("step",), "`step` must be more than 0")
        if times is not None and times <= 1:
            yield Conflict(("times",), "`times` must be more than 1")
        if start is not None and to is not None and start > to:
            yield Conflict(("to",), f"the range is empty: {to} is less than {start}")
        if times is not None and start is not None and start <= 0:
            yield Conflict(("from",), "what is multiplied must be more than 0")
        elif start is not None and to is not None and _count(start, to, step, times) > _MOST_VALUES:
            yield Conflict((), f"the range has more than {_MOST_VALUES:,} values: take fewer")

    def numbers(self) -> list[str]:
        """Return the numbers, as they are put into commands."""
        found: list[str] = []
        # Decimal, as people write numbers: in binary, three times 0.1 is more than 0.3.
        value, to = _decimal(self.start), _decimal(self.to)
        while value <= to:
            found.append(_written(value))
            last = value
            value = last * _decimal(self.times) if self.times else last + _decimal(self.step or 1)
            if value == last:
                # The step is too small for the 28 digits of a decimal: the loop would not end.
                break
        return found


def _count(start: float, to: float, step: float | None, times: float | None) -> float:
    """Return how many numbers a range has; 0: it is wrong in another way."""
    if start > to or (times is not None and times <= 1) or (step is not None and step <= 0):
        return 0
    # Computed, not counted: the range may be endless by mistake.
    if times is not None:
        return math.log(to / start) / math.log(times) + 1
    return int((_decimal(to) - _decimal(start)) / _decimal(step or 1)) + 1


def _decimal(number: float) -> Decimal:
    return Decimal(repr(number))


def _written(number: Decimal) -> str:
    if number == number.to_integral_value():
        return f"{number.to_integral_value():f}"
    # A float keeps fifteen digits of any decimal number; the next ones would be noise.
    return f"{float(number):.15g}"


_WRITTEN = {"type": ["string", "number", "boolean"]}
# What has these is a range.
_NAMES = {
    "type": "object",
    "additionalProperties": _WRITTEN,
    "not": {"anyOf": [{"required": ["from"]}, {"required": ["to"]}]},
}


def _shape(given: Any) -> str:
    if isinstance(given, Mapping):
        # A mapping with these keys is a range; any other has names for values.
        return "range" if "from" in given or "to" in given else "names"
    return "range" if isinstance(given, Range) else "list"


Values = Annotated[
    Annotated[list[values.Written], Tag("list")]
    | Annotated[Range, Tag("range")]
    | Annotated[dict[values.Name, values.Written], Tag("names"), pydantic.WithJsonSchema(_NAMES)],
    Discriminator(_shape),
]
"""Values as they are, numbers of a range, or values with names by which cases are known."""


def _not_empty(counts: list[int]) -> list[int]:
    if not counts:
        raise wrong("must have a number at least")
    return counts


Counts = Annotated[
    list[values.PositiveInt],
    pydantic.BeforeValidator(one_or_more),
    pydantic.AfterValidator(_not_empty),
    listed_schema({"type": "integer", "minimum": 1}),
]


class SweepSetting(common.Setting):
    """What is different for some cases."""

    parameters: dict[values.Variable, values.Written] = Field(default={}, examples=[{"size": 8}])
    """Other values."""


class MetricSpec(Model):
    """What to read from the output of a case. A text alone is the parser."""

    short_form: ClassVar[str] = "parser"

    parser: values.Text = Field(
        default="regex",
        description=f"How to read it: {alternatives([*map(code, METRIC_PARSERS.ours)])}, "
        "or the name of a parser that another package adds.",
        examples=["osu"],
    )
    name: values.Text = Field(default="", examples=["time"])
    """Name of the metric, or the only one to take."""
    unit: values.Text = Field(default="", examples=["s"])
    """Its unit."""
    better: Literal["lower", "higher", ""] = ""
    """Which direction is the good one."""
    pattern: values.Text = Field(default="", examples=[r"took ([\d.]+) s"])
    """regex: the expression, whose first group (or `value`) is the value."""
    function: values.Text = Field(default="", examples=["reading.py:bandwidths"])
    """python: a function that makes values of the output."""
    only: tuple[values.Text, ...] = ()
    """Which to keep, by the names in the output; none given: all."""
    axes: tuple[values.Text, ...] = Field(default=(), examples=[["n"]])
    """json-lines: keys that say where a value was taken."""
    on: values.Text = Field(default="output", examples=["result.json"])
    """Where it stands: `output`, `stdout`, `stderr`, or a file's name."""
    when: common.Condition = Field(default={}, examples=[{"program": "*osu_*"}])
    """Values of the cases that are read so; none given: all."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        parser = contents.get("parser") or "regex"
        if isinstance(parser, str) and (problem := METRIC_PARSERS.problem(parser)):
            yield Conflict(("parser",), problem)
        needs = {"regex": ("pattern", "name", "unit"), "python": ("function",)}
        for field in needs.get(str(parser), ()):
            if contents.get(field) is None:
                yield Conflict((), f"`parser: {parser}` needs {code(field)}")


class Analysis(Model):
    """What is made of the samples when the last case is in. A text alone is what it runs."""

    short_form: ClassVar[str] = "run"

    run: values.Text = Field(examples=["python summary.py", "summary.ipynb"])
    """Lines for bash, or a notebook. `RANKWISE_SAMPLES` is a CSV file of the samples. Pictures and
    Markdown in the folder `RANKWISE_ANALYSIS`, or else what it prints, are a part of reports.
    """
    environment: values.Text = Field(default="", examples=["plots"])
    """Name of the runtime; none given: that of the sweep."""
    timeout: values.Seconds | None = Field(default=None, examples=["10m"])
    """Longest time that it may take."""


class Budget(Model):
    """What a sweep may cost; more is refused before anything starts."""

    max_cases: values.PositiveInt | None = Field(default=None, examples=[500])
    """Most cases, without their trials."""
    max_core_hours: values.Number | None = Field(default=None, examples=[10])
    """Most hours of cores, if each takes its time limit."""


class Sweep(DocumentModel):
    """One command with many values, each of them run several times, and what they measure."""

    type: Literal["Sweep"]
    """Says that this is a sweep."""
    command: values.Text = Field(examples=["python ${{benchmark}} --size ${{size}}"])
    """The line of one rank; `${{NAME}}` is a parameter, or `ranks`, `nodes`, `ranks_per_node`,
    `trial`.
    """
    prepare: values.Text = Field(default="", examples=["python fetch.py"])
    """A line that is run once before all cases, in the same runtime."""
    parameters: dict[values.Variable, Values] = Field(
        default={}, examples=[{"size": {"from": 1, "to": 1024, "times": 2}}]
    )
    """Their values; there is a case for each combination."""
    zip: list[dict[values.Variable, Values]] = Field(
        default=[], examples=[[{"mpi": ["mpich", "openmpi"], "port": [1, 2]}]]
    )
    """Groups of parameters that go together, value by value."""
    nodes: Counts = Field(default_factory=lambda: [1], examples=[[1, 2, 4]])
    """Numbers of nodes."""
    ranks_per_node: Counts | None = Field(default=None, examples=[[1, 2]])
    """Numbers of MPI ranks on each node; none: the command is run as it is."""
    exclude: list[Exclusion] = Field(default=[])
    """Cases to leave out, each with a reason."""
    add: list[dict[values.Variable, values.Written]] = Field(default=[], examples=[[{"size": 3}]])
    """Cases more, each with all of its values."""
    set: list[SweepSetting] = Field(default=[])
    """What is different for some cases."""
    trials: values.PositiveInt = 5
    """How often each case is measured: all once, then all again, and so on."""
    warmup: values.NonNegativeInt = 0
    """How often each case is run before, without being measured."""
    metrics: list[MetricSpec] = Field(default=[], examples=[["osu"]])
    """What to read from the output of each case."""
    budget: Budget = Field(default_factory=Budget)
    """What it may cost."""
    parallel: values.Bool = False
    """Whether cases may run beside each other, which disturbs what they say."""
    code: Code | None = None
    """The folder with the program; none given: that of the document."""
    environment: values.Text = Field(default="", examples=["mpi"])
    """Name of the runtime, as in jobs."""
    compute: ComputeRef = Field(default_factory=ComputeRef)
    """Where to run."""
    environment_variables: values.Variables = Field(default={}, examples=[{"OMP_NUM_THREADS": 1}])
    """For all cases."""
    secrets: values.Secrets = Field(default=(), examples=[["TOKEN"]])
    """Names of variables that are passed on."""
    timeout: values.Seconds | None = Field(default=None, examples=["2m"])
    """Longest time of one case."""
    analysis: Analysis | None = Field(default=None, examples=["python summary.py"])
    """What is run on this machine when the last case is in, to make plots and text of the samples
    for reports.
    """
    report: Literal["when-complete", ""] = ""
    """`when-complete`: write a report when the last case is in."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from super().conflicts(contents)
        known = _names(contents)
        for name in known[len(OWN_NAMES) :]:
            if name in OWN_NAMES:
                yield Conflict(("parameters", name), f"{code(name)} is a name of rankwise's own")
        yield from _unknown(contents, known)
        yield from _wrong_values(contents, known[len(OWN_NAMES) :])
        yield from _uneven(entries_in(contents, "zip"))
        for index, spec in enumerate(entries_in(contents, "metrics")):
            # `MetricSpec` checks the long form itself.
            for conflict in MetricSpec.conflicts({"parser": spec}) if isinstance(spec, str) else ():
                yield Conflict(("metrics", index), conflict.message)
        budget = mapping_in(contents, "budget")
        if budget.get("max_core_hours") is not None and contents.get("timeout") is None:
            why = "it cannot be told how long cases take: give them a `timeout`"
            yield Conflict(("budget", "max_core_hours"), why)


def _names(contents: Mapping[str, Any]) -> list[str]:
    zipped = [name for group in entries_in(contents, "zip") for name in mapping_in(group)]
    return [*OWN_NAMES, *mapping_in(contents, "parameters"), *zipped]


def _unknown(contents: Mapping[str, Any], known: Sequence[str]) -> Iterator[Conflict]:
    """Find names that no parameter has, in commands, variables and conditions."""
    texts: dict[tuple[str, ...], Any] = {("command",): contents.get("command")}
    for name, value in mapping_in(contents, "environment_variables").items():
        texts["environment_variables", name] = value
    for path, text in texts.items():
        for name in common.references_in(text):
            if name not in known:
                yield Conflict(path, _no_parameter("${{" + name + "}}", name, known))
    for key in ("exclude", "set", "metrics"):
        for index, entry in enumerate(entries_in(contents, key)):
            for name in mapping_in(entry, "when"):
                if name not in known:
                    yield Conflict((key, index, "when", name), _no_parameter(name, name, known))


def _wrong_values(contents: Mapping[str, Any], parameters: Sequence[str]) -> Iterator[Conflict]:
    """Find what is wrong with the values of cases that are added or changed."""
    for index, setting in enumerate(entries_in(contents, "set")):
        for name in mapping_in(setting, "parameters"):
            if name not in parameters:
                path = ("set", index, "parameters", name)
                yield Conflict(path, _no_parameter(name, name, parameters))
    for index, case in enumerate(entries_in(contents, "add")):
        for name, value in mapping_in(case).items():
            # These two are numbers; the other values are any text.
            if name in COUNTED:
                try:
                    whole(1)(value)
                except PydanticCustomError as error:
                    yield Conflict(("add", index, name), f"{code(name)} {error.message()}")
            elif name not in parameters:
                yield Conflict(("add", index, name), _no_parameter(name, name, parameters))
        # A case that is added takes no values from `parameters`: which one would be unclear.
        if missing := [code(name) for name in parameters if name not in mapping_in(case)]:
            are = "is" if len(missing) == 1 else "are"
            message = f"a case needs all values: {alternatives(missing, 'and')} {are} missing"
            yield Conflict(("add", index), message)


def _no_parameter(shown: str, name: str, known: Sequence[str]) -> str:
    remedy = hint(name, known, "add it to `parameters`")
    return f"{code(shown)}: there is no parameter {code(name)}; {remedy}"


def _uneven(groups: Sequence[Any]) -> Iterator[Conflict]:
    """Find groups whose parameters do not have equally many values."""
    for index, group in enumerate(groups):
        sizes = {name: _size(value) for name, value in mapping_in(group).items()}
        if None not in sizes.values() and len(set(sizes.values())) > 1:
            told = ", ".join(f"{code(name)} has {size}" for name, size in sizes.items())
            why = f"parameters that go together need as many values: {told}"
            yield Conflict(("zip", index), why)


def _size(given: Any) -> int | None:
    """Return how many values a parameter has; None: it is wrong in another way."""
    if _shape(given) != "range":
        return len(given) if isinstance(given, list | Mapping) else None
    try:
        return len(Range.model_validate(given).numbers())
    except pydantic.ValidationError:
        return None
