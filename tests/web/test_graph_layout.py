"""Where the tasks of a graph are drawn."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.store import State
from rankwise.store.queries import TaskNode
from rankwise.web.graph import draw_graph, lay_out

KEYS = st.sampled_from("abcdefgh")


def test_what_is_needed_is_to_the_left() -> None:
    found = lay_out({"a": (), "b": ("a",), "c": ("a", "b"), "d": ()})
    assert {key: place[0] for key, place in found.places.items()} == {
        "a": 0,
        "b": 1,
        "c": 2,
        "d": 0,
    }
    assert (found.layers, found.rows) == (3, 2)
    assert found.bends[("a", "c")] == [(1, found.bends[("a", "c")][0][1])]


def test_lines_do_not_cross_where_they_need_not() -> None:
    found = lay_out({"a": (), "b": (), "x": ("b",), "y": ("a",)})
    rows = {key: place[1] for key, place in found.places.items()}
    assert (rows["a"] < rows["b"]) == (rows["y"] < rows["x"])


def test_nothing_and_a_long_chain_are_laid_out() -> None:
    assert lay_out({}).layers == 0
    chain = {str(number): (str(number - 1),) if number else () for number in range(3000)}
    assert lay_out(chain).layers == 3000


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(KEYS, st.lists(KEYS, max_size=4), max_size=8))
def test_every_task_has_a_place_of_its_own_even_in_circles(needs: dict[str, list[str]]) -> None:
    found = lay_out(needs)
    taken = [*found.places.values(), *(one for bends in found.bends.values() for one in bends)]
    assert found.places.keys() == needs.keys()
    assert len(set(taken)) == len({*found.places.items()}) + sum(map(len, found.bends.values()))
    assert all(layer < found.layers and row < found.rows for layer, row in taken)
    nodes = [TaskNode(key, State.PASSED, tuple(wanted), 1.0) for key, wanted in needs.items()]
    assert draw_graph("run-1", nodes).count('class="node ') == len(needs)
