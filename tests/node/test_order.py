"""Orders are written once; what is known later stands beside them."""

import json
from pathlib import Path

import pytest

from rankwise.node.files import to_json
from rankwise.node.order import NodeOrder, Order, Placement, ProcessOrder, read_order

ORDER = Order(
    marker="rw-1",
    folder="/attempt",
    nodes=[NodeOrder(name="node0", address="", folder="/work", cores=(0, 1))],
    processes=[ProcessOrder(name="a", command=["true"], environment={"X": "1"}, gpus=["0"])],
    environment={"A": "order"},
    unset=["B"],
    path=["/order"],
    gpus=["0"],
)


def written(order: Order, folder: Path) -> Path:
    (folder / "order.json").write_text(to_json(order.data()))
    return folder


def test_an_order_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = read_order(written(ORDER, tmp_path))
    assert to_json(found.data()) == to_json(ORDER.data())
    assert (found.grace, found.nodes[0].reach, found.processes[0].is_vital) == (3.0, None, True)


def test_what_is_known_later_stands_beside_the_order(tmp_path: Path) -> None:
    before = (written(ORDER, tmp_path) / "order.json").read_bytes()
    Placement(
        nodes=[{"name": "far", "address": "10.0.0.1", "host": "10.0.0.1", "reach": ["srun"]}],
        environment={"A": "placement", "C": "placement"},
        unset=["D"],
        path=["/first"],
        path_behind=["/last"],
    ).write(tmp_path)
    found = read_order(tmp_path)
    node = found.nodes[0]
    assert (node.name, node.address, node.host) == ("far", "10.0.0.1", "10.0.0.1")
    assert (node.reach, node.folder, node.cores) == (["srun"], "/work", [0, 1])
    assert found.environment == {"A": "order", "C": "placement"}
    assert found.unset == ("B", "D")
    assert found.path == ("/first", "/order", "/last")
    assert (tmp_path / "order.json").read_bytes() == before


def test_a_placement_has_as_many_nodes_as_its_order() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ORDER.replace(nodes=[*ORDER.nodes, *ORDER.nodes]).placed(Placement(nodes=[{}]))


def test_a_field_that_there_is_not_is_no_field() -> None:
    with pytest.raises(TypeError, match="Placement has no field pth"):
        Placement(pth=[])  # type: ignore[call-arg]  # as from a file


@pytest.mark.parametrize("version", [0, 1, 3, "2", None])
def test_an_order_of_another_version_is_not_read(tmp_path: Path, version: object) -> None:
    data = {**ORDER.data(), "version": version}
    (tmp_path / "order.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match="its version is"):
        read_order(tmp_path)
