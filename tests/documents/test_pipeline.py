"""Models of pipelines: the order of stages, and their errors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.documents.load import load
from rankwise.documents.pipeline import Pipeline, in_order, needs_of
from rankwise.errors import InputError


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    names = [f"s{number}" for number in range(draw(st.integers(1, 12)))]
    return {name: draw(st.lists(st.sampled_from(names), max_size=4)) for name in names}


@given(graphs())
def test_each_stage_comes_after_what_it_needs(needs: Mapping[str, list[str]]) -> None:
    order = in_order(needs)
    assert len(set(order)) == len(order)
    for at, name in enumerate(order):
        assert set(needs[name]) <= set(order[:at])
    # What is left out needs something that is left out, too: only circles do that to the end.
    left = set(needs) - set(order)
    assert all(set(needs[name]) & left for name in left)


@given(graphs())
def test_every_circle_is_shown_and_nothing_else(needs: Mapping[str, list[str]]) -> None:
    stages = {name: {"run": "x", "needs": before} for name, before in needs.items()}
    circles = [
        conflict.message
        for conflict in Pipeline.conflicts({"stages": stages})
        if "circle" in conflict.message
    ]
    assert bool(circles) == (set(in_order(needs)) != set(needs))
    for message in circles:
        names = message.removeprefix("a circle: ").replace("`", "").split(" needs ")
        assert names[0] == names[-1]
        assert all(later in needs[name] for name, later in itertools.pairwise(names))


def test_stages_are_a_row_unless_one_says_otherwise() -> None:
    assert needs_of({"a": {}, "b": {}, "c": {}}) == {"a": [], "b": ["a"], "c": ["b"]}
    assert needs_of({"a": {}, "b": {"needs": "a"}, "c": {}}) == {"a": [], "b": ["a"], "c": []}


def test_stages_for_failures_in_the_middle_are_not_what_the_rest_depends_on() -> None:
    stages = {
        "build": {},
        "tell": {"when": "failed"},
        "tidy": {"when": "always"},
        "test": {},
        "publish": {},
    }
    assert needs_of(stages) == {
        "build": [],
        "tell": ["build"],
        "tidy": ["build", "tell"],
        "test": ["build", "tell", "tidy"],
        "publish": ["test"],
    }


@pytest.mark.parametrize(
    ("stage", "complaint"),
    [
        ("{script: make}", "p.yaml:3:7: unknown field `script`: did you mean `run`?"),
        ("{run: x, clean: maybe}", "unknown field `clean`"),
        ("{run: x, detach: maybe}", "`stages.a.detach` must be `true` or `false`, not 'maybe'"),
        ("{checkout: x, ranks: 2}", "`ranks` goes with `run`, not with `checkout`"),
        ("{deploy: {from: x, to: y}, detach: true}", "`detach` goes with `run`, `job`"),
        ("{run: x, outputs: y}", "`outputs` goes with `inputs`"),
        ("{run: x, nodes: 2}", "`nodes` needs `ranks`"),
        ("{run: x, ranks: 2, artifacts: y}", "`artifacts` is not for ranks"),
        ("{deploy: {from: x, to: y}, detach: True}", "`detach` goes with `run`, `job`"),
        ("{run: x, detach: true, artifacts: y}", "`artifacts` does not go with `detach`"),
        ("{notify: {}}", "no recipient: add `to`, `run` or `file`"),
        ("{wait: {submit: x}}", "`state` is missing"),
        ("{run: x, timeout: soon}", "`stages.a.timeout` must be a time"),
        ("{run: x, when: maybe}", "`stages.a.when` must be `passed`, `failed` or `always`"),
        ("{run: 'echo ${{matrx.n}}'}", "is unknown here; there is `${{matrix.NAME}}`"),
        (
            "{run: x, checks: [{absent: '${{run.id}}'}]}",
            "`${{run.id}}` is unknown here; there is `${{matrix.NAME}}`",
        ),
        ("{run: x, folder: 'out-${{run.id}}'}", "`${{run.id}}` is unknown here; there is"),
        ("{run: x, inputs: '${{run.id}}/x'}", "`${{run.id}}` is unknown here; there is"),
        (
            "{run: x, inputs: src/**.c}",
            "`stages.a.inputs` must have `**` for whole folders only",
        ),
        ("{run: x, inputs: [], outputs: ['**x']}", "`stages.a.outputs[1]` must have `**` for"),
        (
            "{run: x, artifacts: dist/x**}",
            "must have `**` for whole folders only, as in `src/**/*.c`",
        ),
        ("{run: x, cache: {key: 'a**', paths: y}}", "`stages.a.cache.key` must have `**` for"),
        ("{suite: '${{run.id}}.yaml'}", "`${{run.id}}` is unknown here; there is"),
    ],
)
def test_what_is_wrong_with_a_stage_is_said_in_words(
    tmp_path: Path, stage: str, complaint: str
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(f"type: Pipeline\nstages:\n  a: {stage}\n")
    with pytest.raises(InputError) as caught:
        load(path)
    assert complaint in str(caught.value)
