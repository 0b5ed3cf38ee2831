"""The sweep: one command with many values, measured several times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from rankwise.spec.base import Clash, Model, mapping_in
from rankwise.spec.mistakes import code, nearest
from rankwise.spec.models import DocumentModel
from rankwise.spec.parts import Compute, Variables, references_in
from rankwise.spec.roles import Code
from rankwise.spec.values import (
    Amount,
    Count,
    Name,
    Number,
    Seconds,
    Secrets,
    Text,
    Truth,
    Variable,
    Written,
    number_in,
    one_or_more,
)

OWN_NAMES = ("nodes", "ranks_per_node", "ranks", "trial")
"""What `${{NAME}}` may stand for beside the parameters."""
PARSERS = (
    *("osu", "mpi4py.bench", "imb", "hpcc", "json-lines", "pytest-benchmark", "reframe"),
    *("regex", "python"),
)
_MOST_VALUES = 100_000


class Range(Model):
    """Numbers from one to another, both of them included."""

    start: Annotated[Number, Field(alias="from", description="The first.", examples=[1])]
    to: Annotated[Number, Field(description="None is greater.", examples=[1024])]
    step: Annotated[
        Number | None, Field(description="What is added each time; 1 if nothing is said.")
    ] = None
    times: Annotated[
        Number | None, Field(description="What each is multiplied by, instead.", examples=[2])
    ] = None

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        step, times = number_in(contents.get("step")), number_in(contents.get("times"))
        start, to = number_in(contents.get("from")), number_in(contents.get("to"))
        if step is not None and times is not None:
            yield Clash(("times",), "a range has a `step` or `times`, not both")
        if step is not None and step <= 0:
            yield Clash(("step",), "`step` must be more than 0")
        if times is not None and times <= 1:
            yield Clash(("times",), "`times` must be more than 1")
        if start is not None and to is not None and start > to:
            yield Clash(("to",), f"the range is empty: {to} is less than {start}")
        if times is not None and start is not None and start <= 0:
            yield Clash(("from",), "what is multiplied must be more than 0")

    def values(self) -> list[str]:
        """Give the numbers, as they are put into commands."""
        found: list[str] = []
        value = self.start
        while value <= self.to and len(found) < _MOST_VALUES:
            found.append(f"{value:.12g}")
            value = value * self.times if self.times is not None else value + (self.step or 1)
        return found


_WRITTEN = {"type": ["string", "number", "boolean"]}
_COUNT = {"type": "integer", "minimum": 1}
# What has these is a range.
_NAMES = {
    "type": "object",
    "additionalProperties": _WRITTEN,
    "not": {"anyOf": [{"required": ["from"]}, {"required": ["to"]}]},
}


def _shape(given: Any) -> str:
    if isinstance(given, Mapping):
        return "range" if "from" in given or "to" in given else "names"
    return "range" if isinstance(given, Range) else "list"


Values = Annotated[
    Annotated[list[Written], Tag("list")]
    | Annotated[Range, Tag("range")]
    | Annotated[dict[Name, Written], Tag("names"), WithJsonSchema(_NAMES)],
    Discriminator(_shape),
]
"""Values as they are, numbers of a range, or values with names by which cases are known."""
Wanted = Annotated[
    list[Written],
    BeforeValidator(one_or_more),
    WithJsonSchema({"anyOf": [_WRITTEN, {"type": "array", "items": _WRITTEN}]}),
]
Condition = dict[Variable, Wanted]
Counts = Annotated[
    list[Count],
    BeforeValidator(one_or_more),
    WithJsonSchema({"anyOf": [_COUNT, {"type": "array", "items": _COUNT}]}),
]


class Exclusion(Model):
    """Cases that are left out, and why."""

    when: Annotated[
        Condition,
        Field(
            description="Values that a case must have: one, one of a list, or a comparison.",
            examples=[{"ranks": "> 2", "benchmark": "osu_bw.py"}],
        ),
    ]
    reason: Annotated[
        Text, Field(description="Why, for the report.", examples=["it needs exactly two ranks"])
    ]


class Setting(Model):
    """What is different for some cases."""

    when: Annotated[
        Condition,
        Field(description="Values that a case must have.", examples=[{"nodes": ">= 4"}]),
    ]
    timeout: Annotated[Seconds | None, Field(description="Their time limit.", examples=["10m"])] = (
        None
    )
    environment_variables: Annotated[
        Variables, Field(description="More variables.", examples=[{"UCX_TLS": "tcp"}])
    ] = Field(default_factory=dict)
    parameters: Annotated[
        dict[Variable, Written], Field(description="Other values.", examples=[{"size": 8}])
    ] = Field(default_factory=dict)


class MetricWish(Model):
    """What to read from the output of a case. A text alone is the parser."""

    short_form: ClassVar[str] = "parser"

    parser: Annotated[
        Text,
        Field(
            description="How to read it: `osu`, `mpi4py.bench`, `imb`, `hpcc`, `json-lines`, "
            "`pytest-benchmark`, `reframe`, `regex` or `python`.",
            examples=["osu"],
        ),
    ] = "regex"
    name: Annotated[
        Text, Field(description="Name of the metric, or the only one to take.", examples=["time"])
    ] = ""
    unit: Annotated[Text, Field(description="Its unit.", examples=["s"])] = ""
    better: Annotated[
        Literal["lower", "higher", ""], Field(description="Which direction is the good one.")
    ] = ""
    pattern: Annotated[
        Text,
        Field(
            description="regex: the expression, whose first group (or `value`) is the value.",
            examples=[r"took ([\d.]+) s"],
        ),
    ] = ""
    function: Annotated[
        Text,
        Field(
            description="python: a function that makes values of the output.",
            examples=["reading.py:bandwidths"],
        ),
    ] = ""
    only: Annotated[
        list[Text],
        Field(description="Which to keep, by the names in the output; none given: all."),
    ] = Field(default_factory=list)
    axes: Annotated[
        list[Text],
        Field(description="json-lines: keys that say where a value was taken.", examples=[["n"]]),
    ] = Field(default_factory=list)
    on: Annotated[
        Text,
        Field(
            description="Where it stands: `output`, `stdout`, `stderr`, or a file's name.",
            examples=["result.json"],
        ),
    ] = "output"
    when: Annotated[
        Condition,
        Field(
            description="Values of the cases that are read so; none given: all.",
            examples=[{"program": "*osu_*"}],
        ),
    ] = Field(default_factory=dict)

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        parser = contents.get("parser") or "regex"
        if isinstance(parser, str) and parser not in PARSERS:
            meant = nearest(parser, PARSERS)
            remedy = f"did you mean `{meant}`?" if meant else f"there are {', '.join(PARSERS)}"
            yield Clash(("parser",), f"there is no parser {code(parser)}; {remedy}")
        needs = {"regex": ("pattern", "name", "unit"), "python": ("function",)}
        for field in needs.get(str(parser), ()):
            if contents.get(field) is None:
                yield Clash((), f"`parser: {parser}` needs {code(field)}")


class Budget(Model):
    """What a sweep may cost; more is refused before anything starts."""

    max_cases: Annotated[
        Count | None, Field(description="Most cases, without their trials.", examples=[500])
    ] = None
    max_core_hours: Annotated[
        Number | None,
        Field(description="Most hours of cores, if each takes its time limit.", examples=[10]),
    ] = None


class Sweep(DocumentModel):
    """One command with many values, each of them run several times, and what they measure."""

    hints: ClassVar[Mapping[str, str]] = {
        "env": "did you mean `environment_variables`?",
        "repeat": "did you mean `trials`?",
        "repetitions": "did you mean `trials`?",
        "include": "did you mean `add` (a case more) or `set` (other values for some)?",
    }

    type: Annotated[Literal["Sweep"], Field(description="Says that this is a sweep.")]
    command: Annotated[
        Text,
        Field(
            description="The line of one rank; `${{NAME}}` is a parameter, or `ranks`, `nodes`, "
            "`ranks_per_node`, `trial`.",
            examples=["python ${{benchmark}} --size ${{size}}"],
        ),
    ]
    prepare: Annotated[
        Text,
        Field(
            description="A line that is run once before all cases, in the same runtime.",
            examples=["python fetch.py"],
        ),
    ] = ""
    parameters: Annotated[
        dict[Variable, Values],
        Field(
            description="Their values; there is a case for each combination.",
            examples=[{"size": {"from": 1, "to": 1024, "times": 2}}],
        ),
    ] = Field(default_factory=dict)
    zip: Annotated[
        list[dict[Variable, Values]],
        Field(
            description="Groups of parameters that go together, value by value.",
            examples=[[{"mpi": ["mpich", "openmpi"], "port": [1, 2]}]],
        ),
    ] = Field(default_factory=list)
    nodes: Annotated[Counts, Field(description="Numbers of nodes.", examples=[[1, 2, 4]])] = Field(
        default_factory=lambda: [1]
    )
    ranks_per_node: Annotated[
        Counts | None,
        Field(
            description="Numbers of MPI ranks on each node; none: the command is run as it is.",
            examples=[[1, 2]],
        ),
    ] = None
    exclude: Annotated[
        list[Exclusion], Field(description="Cases to leave out, each with a reason.")
    ] = Field(default_factory=list)
    add: Annotated[
        list[dict[Variable, Written]],
        Field(description="Cases more, each with all of its values.", examples=[[{"size": 3}]]),
    ] = Field(default_factory=list)
    set: Annotated[list[Setting], Field(description="What is different for some cases.")] = Field(
        default_factory=list
    )
    trials: Annotated[
        Count,
        Field(description="How often each case is measured: all once, then all again, and so on."),
    ] = 5
    warmup: Annotated[
        Amount, Field(description="How often each case is run before, without being measured.")
    ] = 0
    metrics: Annotated[
        list[MetricWish],
        Field(description="What to read from the output of each case.", examples=[["osu"]]),
    ] = Field(default_factory=list)
    budget: Annotated[Budget, Field(description="What it may cost.")] = Field(
        default_factory=Budget
    )
    parallel: Annotated[
        Truth,
        Field(description="Whether cases may run beside each other, which disturbs what they say."),
    ] = False
    code: Annotated[
        Code | None,
        Field(description="The folder with the program; none given: that of the document."),
    ] = None
    environment: Annotated[
        Text, Field(description="Name of the runtime, as in jobs.", examples=["mpi"])
    ] = ""
    compute: Annotated[Compute, Field(description="Where to run.")] = Field(default_factory=Compute)
    environment_variables: Annotated[
        Variables, Field(description="For all cases.", examples=[{"OMP_NUM_THREADS": 1}])
    ] = Field(default_factory=dict)
    secrets: Annotated[
        Secrets, Field(description="Names of variables that are passed on.", examples=[["TOKEN"]])
    ] = ()
    timeout: Annotated[
        Seconds | None, Field(description="Longest time of one case.", examples=["2m"])
    ] = None
    report: Annotated[
        Literal["when-complete", ""],
        Field(description="`when-complete`: write a report when the last case is in."),
    ] = ""

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        yield from super().clashes(contents)
        known = _names(contents)
        for name in known[len(OWN_NAMES) :]:
            if name in OWN_NAMES:
                yield Clash(("parameters", name), f"{code(name)} is a name of rankwise's own")
        yield from _unknown(contents, known)
        yield from _uneven(contents.get("zip"))
        yield from _unknown_parsers(contents.get("metrics"))
        budget = mapping_in(contents, "budget")
        if budget.get("max_core_hours") is not None and contents.get("timeout") is None:
            yield Clash(
                ("budget", "max_core_hours"),
                "it cannot be told how long cases take: give them a `timeout`",
            )


def _names(contents: Mapping[str, Any]) -> list[str]:
    groups = contents.get("zip")
    zipped = [
        name
        for group in (groups if isinstance(groups, list) else ())
        for name in (group if isinstance(group, Mapping) else ())
    ]
    return [*OWN_NAMES, *mapping_in(contents, "parameters"), *zipped]


def _unknown(contents: Mapping[str, Any], known: Sequence[str]) -> Iterator[Clash]:
    """Find names that no parameter has, in commands, variables and conditions."""
    texts: list[tuple[tuple[str, ...], Any]] = [(("command",), contents.get("command"))]
    variables = mapping_in(contents, "environment_variables")
    texts += [(("environment_variables", name), value) for name, value in variables.items()]
    for path, text in texts:
        for name in references_in(text):
            if name not in known:
                yield Clash(path, _no_parameter("${{" + name + "}}", name, known))
    for key in ("exclude", "set", "metrics"):
        entries = contents.get(key)
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            for name in mapping_in(entry, "when"):
                if name not in known:
                    yield Clash((key, index, "when", name), _no_parameter(name, name, known))


def _no_parameter(shown: str, name: str, known: Sequence[str]) -> str:
    meant = nearest(name, known)
    remedy = f"did you mean {code(meant)}?" if meant else "add it to `parameters`"
    return f"{code(shown)}: there is no parameter {code(name)}; {remedy}"


def _unknown_parsers(wishes: Any) -> Iterator[Clash]:
    """Find parsers in their short form that there are not; the long form is checked by itself."""
    for index, wish in enumerate(wishes if isinstance(wishes, list) else ()):
        if isinstance(wish, str):
            for clash in MetricWish.clashes({"parser": wish}):
                yield Clash(("metrics", index), clash.message)


def _uneven(groups: Any) -> Iterator[Clash]:
    """Find groups whose parameters do not have equally many values."""
    for index, group in enumerate(groups if isinstance(groups, list) else ()):
        if not isinstance(group, Mapping):
            continue
        sizes = {
            name: len(value)
            for name, value in group.items()
            if isinstance(value, list | Mapping) and _shape(value) != "range"
        }
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{code(name)} has {size}" for name, size in sizes.items())
            yield Clash(("zip", index), f"parameters that go together need as many values: {told}")
