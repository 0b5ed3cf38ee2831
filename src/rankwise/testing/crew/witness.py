"""What a server on a node can say about the ranks there, which the controller cannot see."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rankwise.testing.blackbox import BoxFiles, Moment, OutputTail
from rankwise.testing.hang import ask_for_stacks

# A phase that is over sooner is nobody's concern.
_SLOW_SECONDS = 0.3

Key = tuple[int, int]
"""A world's number and a rank in it."""


class Witness:
    """Looks at the black boxes of the ranks of one server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._outputs: dict[Key, OutputTail] = {}
        self._told: dict[Key, Moment] = {}

    def watch(self, key: Key, pid: int, descriptors: dict[str, int]) -> None:
        """Get hold of a rank's output, while there is a process to ask for it."""
        self._outputs[key] = OutputTail(pid, descriptors)

    def look(self, keys: list[Key]) -> list[list[Any]]:
        """Give what ranks are at that take long over it; and, once, that they no longer are."""
        now = time.monotonic()
        news = []
        for key in keys:
            moment = self._box(key).read_moment()
            told = self._told.get(key)
            if moment == told:
                continue
            if moment is not None and now - moment.since > _SLOW_SECONDS:
                self._told[key] = moment
                news.append([*key, *describe_moment(moment)])
            elif told is not None:
                del self._told[key]
                news.append([*key, None])
        return news

    def testify(self, key: Key) -> dict[str, Any]:
        """Give all that is known about a rank whose process has ended, and forget it."""
        box = self._box(key)
        moment = box.read_moment()
        output = self._outputs.pop(key, None)
        said = {
            "moment": describe_moment(moment) if moment is not None else None,
            "crash": box.read_crash(),
            "outputs": output.read() if output is not None else {},
        }
        if output is not None:
            output.close()
        self._told.pop(key, None)
        box.remove()
        return said

    def stacks(self, pids: dict[Key, int]) -> dict[str, Any]:
        """Give where ranks of one world are, and the end of what they have written."""
        asked = {key[1]: (pid, self._box(key).stacks) for key, pid in pids.items()}
        stacks = ask_for_stacks(asked)
        return {
            "stacks": {
                str(rank): [list(frame) for frame in stack] for rank, stack in stacks.items()
            },
            "outputs": {
                str(rank): output.read()
                for (world, rank), output in self._outputs.items()
                if (world, rank) in pids
            },
        }

    def _box(self, key: Key) -> BoxFiles:
        world, rank = key
        return BoxFiles(self._folder, f"{world}.{rank}")


def describe_moment(moment: Moment) -> list[Any]:
    """Write a moment down for another machine, whose clock has another beginning."""
    return [moment.case, moment.phase, time.monotonic() - moment.since]


def read_moment(said: list[Any] | None) -> Moment | None:
    """Read such a note."""
    if not said or said[0] is None:
        return None
    case, phase, age = said
    return Moment(case=case, phase=phase, since=time.monotonic() - age)
