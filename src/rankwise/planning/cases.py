"""The cases of a sweep: every combination of values, less those left out, and some more."""

from __future__ import annotations

import fnmatch
import itertools
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rankwise.spec.sweep import Condition, Range, Sweep, Values

_COMPARISON = re.compile(r"\s*(>=|<=|!=|==|>|<)\s*(.+?)\s*")
_OPERATORS = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One combination of values."""

    values: Mapping[str, str]
    """Of the parameters, in their order, or the names of the values where they have some."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """The values that have names, as commands have them."""
    nodes: int = 1
    ranks_per_node: int | None = None
    timeout: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return self.nodes * (self.ranks_per_node or 1)

    @property
    def all_values(self) -> dict[str, str]:
        """Give everything that a command may refer to, but for the trial."""
        shown = {**self.names, **self.texts}
        return {name: shown[name] for name in self.names}

    @property
    def names(self) -> dict[str, str]:
        """Give everything by which a case is known, but for the trial."""
        own = {"nodes": self.nodes, "ranks_per_node": self.ranks_per_node or 1, "ranks": self.ranks}
        return {**self.values, **{name: str(value) for name, value in own.items()}}

    @property
    def name(self) -> str:
        """Say it in one line: what differs from other cases of any size."""
        shown = dict(self.values)
        if self.ranks_per_node is not None:
            shown |= {"ranks": str(self.ranks)}
        if self.nodes > 1:
            shown |= {"nodes": str(self.nodes)}
        return " ".join(f"{name}={value}" for name, value in shown.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Cases that are not run, and why."""

    reason: str
    count: int


def cases_of(model: Sweep) -> tuple[list[Case], list[LeftOut]]:
    """Give the cases in their order, and what was left out; equal ones once."""
    excluded = dict.fromkeys((one.reason for one in model.exclude), 0)
    found: dict[str, Case] = {}
    for case in itertools.chain(_combinations(model), _added(model)):
        changed = _changed(case, model)
        reason = next((one.reason for one in model.exclude if fits(one.when, changed)), None)
        if reason is None:
            found.setdefault(changed.name, changed)
        else:
            excluded[reason] += 1
    left = [LeftOut(reason=reason, count=count) for reason, count in excluded.items()]
    return list(found.values()), left


def _combinations(model: Sweep) -> Iterator[Case]:
    axes: list[list[dict[str, str]]] = [
        [{name: value} for value in _values(given)] for name, given in model.parameters.items()
    ]
    for group in model.zip:
        columns = {name: _values(given) for name, given in group.items()}
        rows = zip(*columns.values(), strict=True)
        axes.append([dict(zip(columns, row, strict=True)) for row in rows])
    named = _named(model)
    for nodes, per_node in itertools.product(model.nodes, _per_node(model)):
        for parts in itertools.product(*axes):
            values = {name: value for part in parts for name, value in part.items()}
            yield Case(
                values=values,
                texts=_texts(values, named),
                nodes=nodes,
                ranks_per_node=per_node,
                timeout=model.timeout,
                environment=model.environment_variables,
            )


def _added(model: Sweep) -> Iterator[Case]:
    for values in model.add:
        own = {name: int(values[name]) for name in ("nodes", "ranks_per_node") if name in values}
        given = {name: value for name, value in values.items() if name not in own}
        yield Case(
            values=given,
            texts=_texts(given, _named(model)),
            nodes=own.get("nodes", model.nodes[0]),
            ranks_per_node=own.get("ranks_per_node", _per_node(model)[0]),
            timeout=model.timeout,
            environment=model.environment_variables,
        )


def _per_node(model: Sweep) -> Sequence[int | None]:
    return model.ranks_per_node or [None]


def _values(given: Values) -> Sequence[str]:
    return given.values() if isinstance(given, Range) else list(given)


def _named(model: Sweep) -> dict[str, Mapping[str, str]]:
    """Give the parameters whose values have names."""
    every = [*model.parameters.items(), *(entry for group in model.zip for entry in group.items())]
    return {name: given for name, given in every if isinstance(given, Mapping)}


def _texts(values: Mapping[str, str], named: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Give the values that are meant by their names; who writes another means it as it is."""
    return {name: known.get(values[name], values[name]) for name, known in named.items()}


def _changed(case: Case, model: Sweep) -> Case:
    """Change what settings say, one after another."""
    for setting in model.set:
        if fits(setting.when, case):
            values = {**case.values, **setting.parameters}
            case = Case(
                values=values,
                texts=_texts(values, _named(model)),
                nodes=case.nodes,
                ranks_per_node=case.ranks_per_node,
                timeout=setting.timeout if setting.timeout is not None else case.timeout,
                environment={**case.environment, **setting.environment_variables},
            )
    return case


def fits(condition: Condition, case: Case) -> bool:
    """Tell whether a case has the values that are wanted."""
    known = case.names
    return all(
        any(is_met(one, known.get(name, "")) for one in wanted)
        for name, wanted in condition.items()
    )


def is_met(wanted: str, value: str) -> bool:
    comparison = _COMPARISON.fullmatch(wanted)
    if comparison is None:
        return _is_same(wanted, value) or fnmatch.fnmatchcase(value, wanted)
    sign, other = comparison.groups()
    if sign in ("==", "!="):
        return _is_same(other, value) is (sign == "==")
    left, right = _number(value), _number(other)
    return left is not None and right is not None and bool(_OPERATORS[sign](left, right))


def _is_same(wanted: str, value: str) -> bool:
    number = _number(value)
    return wanted == value or (number is not None and number == _number(wanted))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
