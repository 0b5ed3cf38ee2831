"""Where the tasks of a graph are drawn: layers from left to right, with few crossings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Each sweep puts tasks nearer to what they need; more of them change little.
_SWEEPS = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """A layer and a row for each task."""

    places: Mapping[str, tuple[int, int]]

    @property
    def layers(self) -> int:
        return 1 + max((layer for layer, _ in self.places.values()), default=-1)

    @property
    def rows(self) -> int:
        return 1 + max((row for _, row in self.places.values()), default=-1)


def lay_out(needs: Mapping[str, Sequence[str]]) -> Layout:
    """Find a place for each task; `needs` says what each one needs, in the order of the plan.

    What a task needs and is not there does not matter, and a circle is opened somewhere.
    """
    known = {key: [one for one in wanted if one in needs] for key, wanted in needs.items()}
    layer_of = _layers(known)
    layers: list[list[str]] = [[] for _ in range(1 + max(layer_of.values(), default=-1))]
    for key in known:
        layers[layer_of[key]].append(key)
    needed_by: dict[str, list[str]] = {key: [] for key in known}
    for key, wanted in known.items():
        for one in wanted:
            needed_by[one].append(key)
    for sweep in range(_SWEEPS):
        neighbours = needed_by if sweep % 2 else known
        rows = {key: row for layer in layers for row, key in enumerate(layer)}
        for layer in layers[::-1] if sweep % 2 else layers:
            layer.sort(key=lambda key: _middle(rows, neighbours[key], key))
            rows |= {key: row for row, key in enumerate(layer)}
    return Layout(
        {key: (number, row) for number, layer in enumerate(layers) for row, key in enumerate(layer)}
    )


def _middle(rows: Mapping[str, int], neighbours: Sequence[str], key: str) -> float:
    if not neighbours:
        return float(rows[key])
    return sum(rows[one] for one in neighbours) / len(neighbours)


def _layers(needs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Give each task the first layer that is after all that it needs."""
    found: dict[str, int] = {}
    for start in needs:
        # No recursion: a chain may be as long as a plan.
        waiting, entered = [start], set()
        while waiting:
            key = waiting[-1]
            missing = [one for one in needs[key] if one not in found and one not in entered]
            if key in found or (key in entered and not missing) or not missing:
                waiting.pop()
                entered.discard(key)
                before = [found[one] + 1 for one in needs[key] if one in found]
                found.setdefault(key, max(before, default=0))
            else:
                entered.add(key)
                waiting += missing
    return found
