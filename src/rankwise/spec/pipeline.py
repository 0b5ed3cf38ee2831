"""The pipeline: stages that need each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rankwise.spec.base import Clash, mapping_in
from rankwise.spec.mistakes import code, listed, nearest
from rankwise.spec.models import DocumentModel
from rankwise.spec.parts import Variables, unknown_references
from rankwise.spec.stages import Stage
from rankwise.spec.values import Name, Secrets, Text


class Pipeline(DocumentModel):
    """Stages, run in the order that `needs` gives: build, test, deploy."""

    hints: ClassVar[Mapping[str, str]] = {
        "jobs": "did you mean `stages`?",
        "steps": "did you mean `stages`?",
        "environment_variables": "did you mean `env`?",
        "variables": "did you mean `env`?",
    }

    type: Annotated[Literal["Pipeline"], Field(description="Says that this is a pipeline.")]
    stages: Annotated[
        dict[Name, Stage],
        Field(
            description="The stages, each with its name.",
            examples=[{"build": "make", "test": "make check"}],
        ),
    ]
    workspace: Annotated[
        Text,
        Field(
            description="The folder in which stages work; none given: that of the document.",
            examples=["/scratch/build"],
        ),
    ] = ""
    env: Annotated[
        Variables,
        Field(description="Environment variables of all stages.", examples=[{"CC": "mpicc"}]),
    ] = Field(default_factory=dict)
    secrets: Annotated[
        Secrets,
        Field(
            description="Names of variables that are passed on to all stages.",
            examples=[["TOKEN"]],
        ),
    ] = ()
    on: Annotated[
        Text,
        Field(
            description="Compute of the stages that name none; none given: this machine.",
            examples=["cluster"],
        ),
    ] = ""
    environment: Annotated[
        Text, Field(description="Runtime of the stages that name none.", examples=["gcc-12"])
    ] = ""

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        stages = mapping_in(contents, "stages")
        if contents.get("stages") is not None and not stages:
            yield Clash(("stages",), "`stages` must be names, each with a stage")
        for name in stages:
            if "." in name:
                yield Clash(("stages", name), "the name of a stage has no `.`")
        yield from _unknown_needs(stages)
        yield from _cycles(stages)
        for name, stage in stages.items():
            yield from _references(name, stage, stages)


def needs_of(stages: Mapping[str, Any]) -> dict[str, list[str]]:
    """Give what each stage needs; if none says so, each needs the one before it."""
    said = {name: _needs(stage) for name, stage in stages.items()}
    if any(said.values()):
        return said
    names = list(stages)
    return {name: names[max(0, at - 1) : at] for at, name in enumerate(names)}


def in_order(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Give all stages so that each comes after what it needs, and else as they are written.

    Those that are part of a cycle, or come after one, are left out.
    """
    missing = {name: len(set(before)) for name, before in needs.items()}
    after: dict[str, list[str]] = {}
    for name, before in needs.items():
        for one in set(before):
            after.setdefault(one, []).append(name)
    position = {name: at for at, name in enumerate(needs)}
    ready = [name for name, count in missing.items() if not count]
    ordered = []
    while ready:
        ready.sort(key=position.__getitem__, reverse=True)
        ordered.append(ready.pop())
        for name in after.get(ordered[-1], ()):
            missing[name] -= 1
            if not missing[name]:
                ready.append(name)
    return ordered


def _needs(stage: Any) -> list[str]:
    given = getattr(stage, "needs", None) or mapping_in(stage).get("needs")
    if isinstance(given, str):
        return [given]
    is_list = isinstance(given, list | tuple)
    return [name for name in given if isinstance(name, str)] if is_list and given else []


def _unknown_needs(stages: Mapping[str, Any]) -> Iterator[Clash]:
    for name, stage in stages.items():
        for at, need in enumerate(_needs(stage)):
            path = ("stages", name, "needs")
            where = path if isinstance(mapping_in(stage).get("needs"), str) else (*path, at)
            if need not in stages:
                meant = nearest(need, [each for each in stages if each != name])
                names = listed([code(each) for each in stages], "and")
                remedy = f"did you mean {code(meant)}?" if meant else f"there are {names}"
                yield Clash(where, f"there is no stage {code(need)}; {remedy}")
    for name, stage in stages.items():
        when = mapping_in(stage).get("when")
        if when in ("failed", "always") and not needs_of(stages)[name]:
            yield Clash(
                ("stages", name, "when"), f"`when: {when}` needs stages to come after: `needs`"
            )


def _cycles(stages: Mapping[str, Any]) -> Iterator[Clash]:
    needs = {
        name: [one for one in _needs(stage) if one in stages] for name, stage in stages.items()
    }
    left = set(needs) - set(in_order(needs))
    while left:
        # Each of them has another one of them before it: going back must come round.
        name = next(each for each in needs if each in left)
        way = [name]
        while True:
            following = [one for one in needs[way[-1]] if one in left]
            if not following:
                break
            if following[0] in way:
                circle = [*way[way.index(following[0]) :], following[0]]
                shown = " needs ".join(code(each) for each in circle)
                yield Clash(("stages", circle[0], "needs"), f"a circle: {shown}")
                break
            way.append(following[0])
        left -= set(way)


def _references(name: str, stage: Any, stages: Mapping[str, Any]) -> Iterator[Clash]:
    """Find references to what is not there, in what a stage runs and in its variables."""
    known = {
        "matrix": list(mapping_in(stage, "matrix")),
        "artifacts": _keeping(stages),
        "run": ["id"],
    }
    for path, text in _texts(stage, ("stages", name)):
        yield from unknown_references(text, path, known)


def _texts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts(each, (*path, key))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each, path)
    elif isinstance(value, str):
        yield path, value


def _keeping(stages: Mapping[str, Any]) -> list[str]:
    return [
        name for name, stage in stages.items() if mapping_in(stage).get("artifacts") is not None
    ]
