"""Documents by chance, whose outcome a model knows: pure functions of what is written in them.

The model is written from the pages on pipelines, suites, matrices and outcomes, not from the engine.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankwise.backends.base import Submission
from rankwise.engine.verdict import RunEnd
from rankwise.planning import plan_from
from rankwise.store import State, Store
from tests.engine.driven import FakeCompute, drive

_ENDS = [("passed", 0), ("failed", 3), ("failed", 7), ("crashed", 139), ("timed out", 124)]
_ENDS += [("lost", 0), ("refused", 0)]
_SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
End = tuple[str, int]


@dataclass(frozen=True)
class Thing:
    """A stage or a test, and how each try at it ends; the last end is that of all later tries."""

    ends: Sequence[End]
    tries: int = 1
    again_after: Sequence[int] = ()
    wanted_codes: Sequence[int] | None = None
    needs: Sequence[int] = ()
    when: str = "passed"
    is_soft: bool = False
    is_left_out: bool = False
    is_too_large: bool = False
    is_optional: bool = False

    def end(self, number: int) -> End:
        return self.ends[min(number, len(self.ends) - 1)]


# The model


def outcome(thing: Thing) -> End:
    """Say how a thing ends that is started."""
    for number in range(thing.tries):
        how, code = thing.end(number)
        if how == "refused":
            return "not run", 1
        if how == "lost":
            code = 1
        if thing.wanted_codes is not None and how in ("passed", "failed", "crashed"):
            how = "passed" if code in thing.wanted_codes else ("failed" if how == "passed" else how)
        if how == "passed":
            break
        if thing.again_after and code not in thing.again_after:
            break
    return how, code


def states_of(things: Sequence[Thing]) -> tuple[list[str], list[End]]:
    """Say what becomes of each, and name the ends that count; each needs only those before it."""
    states: list[str] = []
    counting: list[End] = []
    for thing in things:
        before = [states[need] for need in thing.needs]
        has_trouble = any(state not in ("passed", "skipped") for state in before)
        is_idle = bool(before) and all(state == "skipped" for state in before)
        if thing.is_left_out or (thing.when == "failed" and not has_trouble):
            how, code = "skipped", 0
        elif thing.when == "passed" and has_trouble:
            how, code = "not run", 1
        elif thing.when == "passed" and is_idle:
            how, code = "skipped", 0
        elif thing.is_too_large:
            how, code = ("skipped", 0) if thing.is_optional else ("not run", 1)
        else:
            how, code = outcome(thing)
        states.append(how)
        is_forgiven = thing.is_soft and how in ("failed", "crashed", "timed out")
        if how not in ("passed", "skipped") and not is_forgiven:
            counting.append((how, code))
    return states, counting


def check_run(end: RunEnd, states: Sequence[str], counting: Sequence[End]) -> None:
    """Compare the end of a run with what the model says of it."""
    if counting:
        kinds = {how for how, _ in counting}
        is_mixed = len(kinds) > 1 or (kinds == {"not run"} and "passed" in states)
        assert str(end.state) == ("failed" if is_mixed else kinds.pop())
        # Which of several is first depends on what runs beside what.
        assert end.exit_code in {code or 1 for _, code in counting}
    elif states and all(state == "skipped" for state in states):
        assert (end.state, end.exit_code) == (State.NOT_RUN, 1)
    else:
        assert (end.state, end.exit_code) == (State.PASSED, 0)


# Documents by chance

ends = st.lists(st.sampled_from(_ENDS), min_size=1, max_size=3)


@st.composite
def stages(draw: st.DrawFn) -> list[Thing]:
    count = draw(st.integers(1, 6))
    found: list[Thing] = []
    for number in range(count):
        needs = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        when = (
            draw(st.sampled_from(["passed", "passed", "failed", "always"])) if needs else "passed"
        )
        found.append(
            Thing(
                ends=draw(ends),
                tries=draw(st.sampled_from([1, 1, 2])),
                wanted_codes=draw(st.sampled_from([None, None, (3,), (0, 7)])),
                needs=tuple(sorted(needs)),
                when=when,
            )
        )
    return found


def stage_of(thing: Thing) -> dict[str, Any]:
    written: dict[str, Any] = {"run": "true", "when": thing.when}
    if thing.needs:
        written["needs"] = [f"s{need}" for need in thing.needs]
    if thing.tries > 1:
        written["retries"] = thing.tries - 1
    if thing.wanted_codes is not None:
        written["checks"] = [{"exit_code": list(thing.wanted_codes)}]
    return written


@st.composite
def suites(draw: st.DrawFn) -> list[Thing]:
    return [
        Thing(
            ends=draw(ends),
            tries=draw(st.sampled_from([1, 2, 3])),
            again_after=draw(st.sampled_from([(), (3,), (3, 124)])),
            is_too_large=draw(st.booleans()),
            is_optional=draw(st.booleans()),
        )
        for _ in range(draw(st.integers(1, 5)))
    ]


def written_test(number: int, thing: Thing) -> dict[str, Any]:
    written: dict[str, Any] = {"name": f"s{number}", "run": "true"}
    if thing.tries > 1:
        written["restart"] = {"max": thing.tries - 1, "on_exit_codes": list(thing.again_after)}
    if thing.is_too_large:
        written["requires"] = {"cores": 64}
    if thing.is_optional:
        written["optional"] = True
    if thing.is_soft:
        written["soft_fail"] = True
    if thing.is_left_out:
        written["skip"] = "not today"
    return written


@st.composite
def matrices(draw: st.DrawFn) -> list[Thing]:
    return [
        Thing(ends=draw(ends), is_soft=draw(st.booleans()), is_left_out=draw(st.booleans()))
        for _ in range(draw(st.integers(1, 5)))
    ]


# Running them


def run(
    store: Store, document: Mapping[str, Any], things: Sequence[Thing], look: End = ("passed", 0)
) -> tuple[RunEnd, list[str]]:
    """Drive a document on a compute that ends its things as they say; give their states."""
    path = Path(store.folder) / "document.yaml"
    path.write_text(json.dumps({"name": "p", **document}))
    plan, text = plan_from([path])
    tries: dict[str, int] = {}

    def ends_of(job: Submission) -> End:
        name = job.task.key.rpartition("@")[2]
        number = tries[name] = tries.get(name, -1) + 1
        return look if name == "environment" else things[int(name[1:])].end(number)

    name = store.create_run(plan, text, now=0.0)
    end, _ = drive(store, FakeCompute(ends_of, cores=3), run=name)
    rows = {row.key.rpartition("@")[2]: str(row.state) for row in store.task_rows(name)}
    return end, [rows[f"s{number}"] for number in range(len(things))]


@_SETTINGS
@given(things=stages())
def test_stages_end_as_their_document_says(store: Store, things: list[Thing]) -> None:
    if not any(thing.needs for thing in things):
        # Without any `needs`, each needs the one before.
        things = [
            dataclasses.replace(thing, needs=(number - 1,) if number else ())
            for number, thing in enumerate(things)
        ]
    document = {
        "type": "Pipeline",
        "stages": {f"s{n}": stage_of(one) for n, one in enumerate(things)},
    }
    end, states = run(store, document, things)
    wanted, counting = states_of(things)
    assert states == wanted
    check_run(end, states, counting)


@_SETTINGS
@given(things=suites())
def test_tests_end_as_their_suite_says(store: Store, things: list[Thing]) -> None:
    document = {"type": "Suite", "tests": [written_test(n, one) for n, one in enumerate(things)]}
    end, states = run(store, document, things)
    wanted, counting = states_of(things)
    assert states == wanted
    check_run(end, states, counting)


@_SETTINGS
@given(things=matrices(), look=st.sampled_from([("passed", 0), ("failed", 1)]))
def test_tests_end_as_their_matrix_says(store: Store, things: list[Thing], look: End) -> None:
    document = {
        "type": "Matrix",
        "runtimes": {"one": "current"},
        "tests": [written_test(n, one) for n, one in enumerate(things)],
    }
    end, states = run(store, document, things, look)
    wanted, counting = states_of(things)
    assert states == wanted
    check_run(end, states, counting)
