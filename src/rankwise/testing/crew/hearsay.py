"""What the controller knows about ranks on other nodes: what the servers there have said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankwise.testing.blackbox import Moment
from rankwise.testing.crew.witness import read_moment
from rankwise.testing.hang import Frame, Stack

Answers = list[dict[str, Any]]


@dataclass(slots=True, kw_only=True)
class HearsayBox:
    """A black box that is elsewhere, and the output of its rank: as `BoxFiles` and `OutputTail`."""

    last_moment: Moment | None = None
    last_words: str = ""
    output: Mapping[str, str] = field(default_factory=dict)

    def read_moment(self) -> Moment | None:
        return self.last_moment

    def read_crash(self) -> str:
        return self.last_words

    def read(self) -> dict[str, str]:
        return dict(self.output)

    def remove(self) -> None:
        """The files are removed where they are."""

    def close(self) -> None:
        """Nothing is open here."""


class Hearsay:
    """What was said about the ranks of one world."""

    def __init__(self, ask: Callable[[Mapping[str, Any]], Answers]) -> None:
        self._ask = ask
        self._boxes: dict[int, HearsayBox] = {}

    def box(self, rank: int) -> HearsayBox:
        return self._boxes.setdefault(rank, HearsayBox())

    def note_moment(self, rank: int, said: list[Any]) -> None:
        """Learn what a rank is at."""
        self.box(rank).last_moment = read_moment(said)

    def note_end(self, rank: int, said: Mapping[str, Any]) -> None:
        """Learn what was found when a rank's process had ended."""
        box = self.box(rank)
        if "crash" in said:
            box.last_moment = read_moment(said["moment"])
            box.last_words = said["crash"]
            box.output = said["outputs"]

    def stacks_of(self, world: int, ranks: Sequence[int]) -> dict[int, Stack]:
        """Ask where ranks are."""
        stacks: dict[int, Stack] = {}
        question = {"kind": "stacks", "world": world, "ranks": list(ranks)}
        for answer in self._ask(question):
            for rank, frames in answer["stacks"].items():
                stacks[int(rank)] = tuple(Frame(*frame) for frame in frames)
            for rank, output in answer["outputs"].items():
                self.box(int(rank)).output = output
        return stacks
