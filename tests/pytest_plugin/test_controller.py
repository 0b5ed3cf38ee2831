"""Templates on several nodes that cannot all be copied, as the controller hears of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankwise.pytest_plugin.connections import Exchange, Header, worker_number
from rankwise.pytest_plugin.workers.controller import ControllerSession
from rankwise.pytest_plugin.workers.place import Listener, Workplace
from rankwise.pytest_plugin.workers.pool import Pool
from rankwise.pytest_plugin.workers.worlds import Worlds

SERVERS = [f"{kind}@{node}" for node in ("n1", "n2") for kind in ("supervisor", "template")]
UNSAFE, SAFE = "threads were started while the tests were collected (a)", ""


class Lines:
    """Lines to processes that are all there."""

    def __init__(self) -> None:
        self.sent: list[tuple[int | str, str]] = []

    def has(self, _name: int | str) -> bool:
        return True

    def send(self, name: int | str, header: Header, _body: bytes = b"") -> None:
        self.sent.append((name, header["kind"]))

    def flush(self) -> None:
        """All is sent at once."""

    def forget(self, _name: int | str) -> None:
        """Nothing is kept."""


@pytest.fixture
def controller(tmp_path: Path) -> Any:
    """Return a controller whose first world, of two ranks, is being started on two nodes."""
    found: Any = ControllerSession.__new__(ControllerSession)
    lines = cast(Exchange, Lines())
    place = SimpleNamespace(servers=lambda: SERVERS, look=lambda: None, is_ready=True)
    sockets = {"warm": "w", "cold": "c"}
    worlds = Worlds(
        lambda _order: None, width=2, folder=tmp_path, fork_sockets=sockets, sets_threads=False
    )
    found._lines, found._place, found._worlds = lines, place, worlds
    found._notices, found._collections, found._dispatcher = [], {}, None
    found._imports_may_use_mpi = False
    found._pool = Pool(
        lines,
        worlds,
        tmp_path,
        place=cast(Workplace, place),
        listener=cast(Listener, found),
        grace=1.0,
    )
    worlds.start_shared()
    return found


def report(controller: Any, node: str, unsafe: str) -> None:
    controller._take(f"template@{node}", {"kind": "collected", "unsafe": unsafe}, b"{}")


@pytest.mark.parametrize("first", [SAFE, UNSAFE])
def test_ranks_of_one_world_all_load_the_tests_themselves_or_none(
    first: str, controller: Any
) -> None:
    # Copies do not say what they have collected: the run would wait for them for ever.
    report(controller, "n1", first)
    report(controller, "n2", UNSAFE if first == SAFE else SAFE)
    assert not controller._worlds.alive
    controller._look_at_place()
    (world,) = controller._worlds.alive.values()
    for worker in world.workers:
        controller._take(worker, {"kind": "collected"}, b'{"tests": {"tests": [{"size": 2}]}}')
    assert controller._cold_source() == worker_number(world.number, 0)


def test_a_world_that_loads_the_tests_itself_outlives_what_templates_say(controller: Any) -> None:
    report(controller, "n1", UNSAFE)
    controller._look_at_place()
    begun = dict(controller._worlds.alive)
    report(controller, "n2", UNSAFE)
    assert controller._worlds.alive == begun
    # The reason is told once, however many nodes there are.
    assert len(controller._notices) == 1


def test_on_one_node_the_world_that_waits_gets_its_ranks_from_the_supervisor(
    controller: Any,
) -> None:
    controller._place.servers = lambda: ["supervisor@n1", "template@n1"]
    begun = dict(controller._worlds.alive)
    report(controller, "n1", UNSAFE)
    assert controller._worlds.alive == begun
    assert ("supervisor@n1", "take over") in controller._lines.sent
