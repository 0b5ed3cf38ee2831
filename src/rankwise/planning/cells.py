"""The cells of a matrix, and what is true of each test in them. Pure: nothing is looked up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from rankwise.planning.cases import is_met
from rankwise.planning.features import Features
from rankwise.planning.matrix_tests import CellTest
from rankwise.spec.matrix import Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Why something does not run."""

    reason: str
    is_said: bool = True
    """Whether the document says so; otherwise something is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What is known of a machine before anything runs there."""

    features: Features = field(default_factory=Features)
    missing: str = ""
    """Why nothing can run there at all; empty: nothing is in the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One test in one cell."""

    runtime: str
    machine: str
    test: CellTest
    skip: Skip | None = None
    timeout: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    is_soft: bool = False


def entries_of(
    model: Matrix, tests: Sequence[CellTest], machines: Mapping[str, MachineFacts]
) -> Iterator[Entry]:
    """Give what every cell has, cell by cell; what does not run is there with its reason."""
    added = {(one.runtime, one.machine): one.tests for one in model.add}
    for runtime in model.runtimes:
        for machine in model.machines:
            only = added.get((runtime, machine))
            for test in tests:
                is_added = only is not None and _is_named(test.name, only)
                names = {"runtime": runtime, "machine": machine, "test": test.name}
                if test.is_for(runtime, machine):
                    skip = _skip(model, names, test, machines[machine], is_added)
                    yield _entry(model, names, test, skip)


def cells_that_are_there(model: Matrix) -> Iterator[tuple[str, str]]:
    """Name the cells that are there without `add`."""
    for runtime, one in model.runtimes.items():
        for machine in model.machines:
            names = {"runtime": runtime, "machine": machine}
            is_out = any(
                set(exclusion.when) <= names.keys() and _fits(exclusion.when, names)
                for exclusion in model.exclude
            )
            if _is_named(machine, one.machines) and not is_out:
                yield runtime, machine


def _entry(model: Matrix, names: Mapping[str, str], test: CellTest, skip: Skip | None) -> Entry:
    settings = [one for one in model.set if _fits(one.when, names)]
    softness = [one.soft_fail for one in settings if one.soft_fail is not None]
    of_runtime, of_machine = model.runtimes[names["runtime"]], model.machines[names["machine"]]
    soft_by_itself = of_runtime.soft_fail or of_machine.soft_fail or test.entry.soft_fail
    environment = {
        **model.environment_variables,
        **of_runtime.environment_variables,
        **of_machine.environment_variables,
        **test.entry.environment_variables,
    }
    for setting in settings:
        environment |= setting.environment_variables
    return Entry(
        runtime=names["runtime"],
        machine=names["machine"],
        test=test,
        skip=skip,
        timeout=next((one.timeout for one in reversed(settings) if one.timeout is not None), None),
        environment=environment,
        is_soft=softness[-1] if softness else soft_by_itself,
    )


def _skip(
    model: Matrix, names: Mapping[str, str], test: CellTest, facts: MachineFacts, is_added: bool
) -> Skip | None:
    """Say why a test does not run: what the document says comes before what is missing."""
    runtime, machine = model.runtimes[names["runtime"]], model.machines[names["machine"]]
    if not is_added:
        if not _is_named(names["machine"], runtime.machines):
            wanted = ", ".join(runtime.machines)
            return Skip(reason=f"{names['runtime']} is for other machines: {wanted}")
        for exclusion in model.exclude:
            if _fits(exclusion.when, names):
                return Skip(reason=exclusion.reason)
    said = [runtime.skip, machine.skip, test.entry.skip]
    said += [one.skip for one in model.set if _fits(one.when, names)]
    if reason := next(filter(None, said), ""):
        return Skip(reason=reason)
    for need in (*runtime.needs, *test.entry.needs):
        if lack := facts.features.lacks(need, who=names["machine"]):
            return Skip(reason=lack)
    return Skip(reason=facts.missing, is_said=False) if facts.missing else None


def _fits(condition: Mapping[str, Sequence[str]], names: Mapping[str, str]) -> bool:
    return all(
        any(is_met(one, names.get(axis, "")) for one in wanted)
        for axis, wanted in condition.items()
    )


def _is_named(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
