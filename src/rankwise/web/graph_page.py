"""What needs what in a run, as a drawing and in words."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise.report.facts import cut
from rankwise.report.markup import Markup, tag
from rankwise.report.outcomes import TONES
from rankwise.report.plots.svg import coordinate
from rankwise.report.words import duration, listed
from rankwise.store import Store
from rankwise.store.pages import Node
from rankwise.web.ask import Ask, run_address
from rankwise.web.counts import counts_of
from rankwise.web.graph_layout import Layout, lay_out
from rankwise.web.page import Column, Page, live, notice, table
from rankwise.web.run_frame import framed
from rankwise.web.states import outcome

MOST_NODES = 300
_WIDTH, _HEIGHT, _ACROSS, _DOWN, _EDGE = 166.0, 46.0, 48.0, 16.0, 8.0
_LONGEST = 21
_MOST_NAMED = 8


def graph_page(store: Store, ask: Ask) -> Page:
    """Show what needs what."""
    run = store.run(ask.run)
    nodes = store.nodes(run.id, limit=MOST_NODES)
    total = sum(counts_of(store, run).values())
    parts = []
    if total > len(nodes):
        parts.append(notice(f"The first {len(nodes)} of {total:,} tasks are drawn."))
    drawing = tag("div", draw_graph(run.id, nodes), class_="plot graph", tabindex="0")
    rows = [_row(run.id, node) for node in nodes]
    columns = (Column(name="task"), Column(name="outcome"), Column(name="needs"))
    words = tag(
        "details",
        tag("summary", "The same in words"),
        tag("div", table("What needs what", columns, rows)),
    )
    return framed(
        store,
        ask,
        run,
        "Graph",
        tag("h2", "What needs what"),
        live("graph", *parts, drawing),
        words,
    )


def _row(run: str, node: Node) -> Markup:
    link = tag("a", cut(node.key, 120), href=run_address(run, "task", task=node.key))
    needs = listed([cut(key, 80) for key in node.needs], most=_MOST_NAMED)
    return tag("tr", tag("th", link, scope="row"), outcome(node.state), tag("td", needs))


def draw_graph(run: str, nodes: Sequence[Node]) -> Markup:
    """Draw tasks as boxes that lead to their pages, with what they need to their left."""
    layout = lay_out({node.key: node.needs for node in nodes})
    width = 2 * _EDGE + layout.layers * (_WIDTH + _ACROSS) - _ACROSS
    height = 2 * _EDGE + layout.rows * (_HEIGHT + _DOWN) - _DOWN
    lines = [
        _line(layout, key, node.key) for node in nodes for key in node.needs if key in layout.places
    ]
    boxes = [_box(run, layout, node) for node in nodes]
    return tag(
        "svg", *lines, *boxes, xmlns="http://www.w3.org/2000/svg", role="group",
        aria_label="The tasks of this run and what they need",
        viewBox=f"0 0 {coordinate(width)} {coordinate(height)}",
        width=coordinate(width), height=coordinate(height), font_size="12",
    )  # fmt: skip


def _place(place: tuple[int, int]) -> tuple[float, float]:
    layer, row = place
    return _EDGE + layer * (_WIDTH + _ACROSS), _EDGE + row * (_HEIGHT + _DOWN)


def _line(layout: Layout, first: str, second: str) -> Markup:
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
    return Markup(f'<path d="{path}" class="edge" fill="none"/>')


def _box(run: str, layout: Layout, node: Node) -> Markup:
    left, top = _place(layout.places[node.key])
    name = node.key if len(node.key) <= _LONGEST else f"{node.key[: _LONGEST - 1]}…"
    took = "" if node.seconds is None else f" · {duration(node.seconds)}"
    shape = Markup(
        f'<rect x="{coordinate(left)}" y="{coordinate(top)}" width="{coordinate(_WIDTH)}" '
        f'height="{coordinate(_HEIGHT)}" rx="9"/>'
    )
    x, first, second = coordinate(left + 12), coordinate(top + 19), coordinate(top + 36)
    return tag(
        "a",
        tag("title", cut(node.key, 300)),
        shape,
        tag("text", name, x=x, y=first, class_="strong"),
        tag("text", f"{node.state}{took}", x=x, y=second, class_="tone"),
        href=run_address(run, "task", task=node.key),
        class_=f"node {TONES[node.state]}",
    )
