"""The graph of a run: what needs what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from markupsafe import Markup

from rankwise.reports.plots.svg import coordinate
from rankwise.reports.rendering import render
from rankwise.store import Store
from rankwise.store.queries import TaskNode
from rankwise.web.pages import PageContent, PageRequest, framed

# Each sweep puts tasks nearer to what they need; more of them change little.
_SWEEPS = 4


_Edge = tuple[str, str]
# A task, or a place in a layer that a line to a later one passes through.
_Node = str | tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """A layer and a row for each task, and for each layer that a line passes through."""

    places: Mapping[str, tuple[int, int]]
    bends: Mapping[_Edge, Sequence[tuple[int, int]]]
    layers: int
    rows: int


def lay_out(needs: Mapping[str, Sequence[str]]) -> GraphLayout:
    """Find a place for each task; `needs` says what each one needs, in the order of the plan.

    What a task needs and is not there does not matter, and a circle is opened somewhere.
    """
    known = {key: [one for one in wanted if one in needs] for key, wanted in needs.items()}
    layer_of = _layers(known)
    layers: list[list[_Node]] = [[] for _ in range(1 + max(layer_of.values(), default=-1))]
    before: dict[_Node, list[_Node]] = {}
    after: dict[_Node, list[_Node]] = {}
    for key, wanted in known.items():
        layers[layer_of[key]].append(key)
        for one in wanted:
            between = range(layer_of[one] + 1, layer_of[key])
            passed: list[_Node] = [(one, key, number) for number in between]
            for number, node in zip(between, passed, strict=True):
                layers[number].append(node)
            for first, second in pairwise([one, *passed, key]):
                before.setdefault(second, []).append(first)
                after.setdefault(first, []).append(second)
    rows = _ordered(layers, before, after)
    places = {key: (layer_of[key], rows[key]) for key in known}
    bends: dict[_Edge, list[tuple[int, int]]] = {}
    for node, row in rows.items():
        if not isinstance(node, str):
            bends.setdefault((node[0], node[1]), []).append((node[2], row))
    return GraphLayout(
        places=places,
        bends={edge: sorted(passed) for edge, passed in bends.items()},
        layers=len(layers),
        rows=max(map(len, layers), default=0),
    )


def _ordered(
    layers: Sequence[list[_Node]],
    before: Mapping[_Node, Sequence[_Node]],
    after: Mapping[_Node, Sequence[_Node]],
) -> dict[_Node, int]:
    """Put the nodes of each layer in the order in which the fewest lines cross, and number them."""
    rows = {node: row for layer in layers for row, node in enumerate(layer)}
    for sweep in range(_SWEEPS):
        neighbours = after if sweep % 2 else before
        for layer in layers[::-1] if sweep % 2 else layers:
            # What has no neighbour there stays where it is.
            around = {node: neighbours.get(node) or (node,) for node in layer}
            middles = {node: fmean(rows[one] for one in near) for node, near in around.items()}
            layer.sort(key=middles.__getitem__)
            rows |= {node: row for row, node in enumerate(layer)}
    return rows


def _layers(needs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return each task the first layer that is after all that it needs."""
    found: dict[str, int] = {}
    waiting = list(needs)
    # Each round is a layer. What is left when none fits any more is a circle: its first task is
    # taken as if it needed nothing, so that the rest has a place, too.
    while waiting:
        ready = [key for key in waiting if all(one in found for one in needs[key])]
        for key in ready or waiting[:1]:
            found[key] = max((found[one] + 1 for one in needs[key] if one in found), default=0)
        waiting = [key for key in waiting if key not in found]
    return found


# A drawing of more boxes is no longer read.
MOST_NODES = 300
_WIDTH, _HEIGHT, _ACROSS, _DOWN, _EDGE = 166.0, 46.0, 48.0, 16.0, 8.0


def graph_page(store: Store, ask: PageRequest) -> PageContent:
    """Show what needs what."""
    nodes = store.nodes(ask.run, limit=MOST_NODES)
    total = sum(store.counts(ask.run).values())
    drawing = draw_graph(ask.run, nodes)
    return framed(store, ask, "Graph", "graph", nodes=nodes, total=total, drawing=drawing)


def draw_graph(run: str, nodes: Sequence[TaskNode]) -> Markup:
    """Draw tasks as boxes that lead to their pages, with what they need to their left."""
    layout = lay_out({node.key: node.needs for node in nodes})
    lines = [
        _line(layout, key, node.key) for node in nodes for key in node.needs if key in layout.places
    ]
    return render(
        "web/drawing",
        run=run,
        lines=lines,
        boxes=[(node, *_place(layout.places[node.key])) for node in nodes],
        box=(_WIDTH, _HEIGHT),
        width=2 * _EDGE + layout.layers * (_WIDTH + _ACROSS) - _ACROSS,
        height=2 * _EDGE + layout.rows * (_HEIGHT + _DOWN) - _DOWN,
    )


def _place(place: tuple[int, int]) -> tuple[float, float]:
    layer, row = place
    return _EDGE + layer * (_WIDTH + _ACROSS), _EDGE + row * (_HEIGHT + _DOWN)


def _line(layout: GraphLayout, first: str, second: str) -> str:
    """Draw a line from a task to one that needs it, through the gaps between others."""
    left, top = _place(layout.places[first])
    x, y = left + _WIDTH, top + _HEIGHT / 2
    path = f"M{coordinate(x)} {coordinate(y)}"
    for place in (*layout.bends.get((first, second), ()), layout.places[second]):
        across, down = _place(place)
        down += _HEIGHT / 2
        bend = (across - x) / 2
        numbers = (x + bend, y, across - bend, down, across, down)
        path += f"C{' '.join(map(coordinate, numbers))}"
        if place != layout.places[second]:
            path += f"H{coordinate(across + _WIDTH)}"
        x, y = across + _WIDTH, down
    return path
