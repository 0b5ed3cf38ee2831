"""Orders, their placements, their marks, and the environment of their processes."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from rankwise.node import equipment, placeholders
from rankwise.node.files import to_json
from rankwise.node.order import NodeOrder, Order, Placement, ProcessOrder, read_order
from rankwise.node.placeholders import PORTS, Ports
from rankwise.plan import later
from tests.node.test_runner import Attempt, process, python

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
    with pytest.raises(ValueError, match="1 nodes are placed, and the order has 2"):
        ORDER.replace(nodes=[*ORDER.nodes, *ORDER.nodes]).placed(Placement(nodes=[{}]))


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="Placement has no field pth"):
        Placement(pth=[])  # type: ignore[call-arg]  # as from a file


@pytest.mark.parametrize("version", [0, 3, "2", None])
def test_an_order_of_a_later_version_is_not_read(tmp_path: Path, version: object) -> None:
    data = {**ORDER.data(), "version": version}
    (tmp_path / "order.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match="its version is"):
        read_order(tmp_path)


def first_version(order: dict[str, Any]) -> dict[str, Any]:
    """Return an order as the first clients wrote it, with all that was filled in later."""
    nodes = [{**one, "reach": []} for one in order["nodes"]]
    return {**order, "version": 1, "nodes": nodes, "starts_by_srun": True}


def test_an_order_of_the_first_version_is_carried_out(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "echo $CUDA_VISIBLE_DEVICES"))
    attempt.order["processes"][0]["environment"] = {"CUDA_VISIBLE_DEVICES": "2,3"}
    attempt.order = first_version(attempt.order)
    attempt.write()
    order = read_order(attempt.folder)
    assert (order.keeps_allocation, order.gpus, order.nodes[0].reach) == (True, ["2", "3"], [])
    assert attempt.run()["outcome"] == "passed"
    assert attempt.log("worker-0") == "2,3\n"


# What stands in an order is filled in, and processes get the environment that they should


def test_marks_are_filled_in_everywhere(tmp_path: Path) -> None:
    line = f"echo {later('address:1')} {later('host:1')} {later('folder')} {later('folder:1')} $ALL $OWN"
    attempt = Attempt(
        tmp_path,
        process("a", line, environment={"OWN": f"<{later('host:0')}>"}),
        process("b", ["echo", f"{later('host:0')},{later('host:1')}"], node=1),
        nodes=2,
        environment={"ALL": f"{later('address:0')}:x"},
        files={"hostfile": f"{later('host:0')} slots=1\n", "deep/er": "plain"},
    )
    assert attempt.run()["outcome"] == "passed"
    folder = attempt.folder
    expected = f"127.0.0.2 node1 {folder} {folder}/nodes/node1 127.0.0.1:x <node0>\n"
    assert attempt.log("a") == expected
    assert attempt.log("b") == "node0,node1\n"
    assert (folder / "hostfile").read_text() == "node0 slots=1\n"
    assert (folder / "deep" / "er").read_text() == "plain"


def test_a_port_is_the_same_wherever_it_is_named(tmp_path: Path) -> None:
    port = later("port:main@0")
    attempt = Attempt(
        tmp_path,
        process("a", f"echo {port} $PORT {later('port:main@1')} {later('port:other@0')}"),
        nodes=2,
        environment={"PORT": port},
        files={"port": port},
    )
    attempt.run()
    first, again, elsewhere, other = map(int, attempt.log("a").split())
    assert first == again == int((attempt.folder / "port").read_text())
    assert len({first, elsewhere, other}) == 3
    assert {first, elsewhere, other} <= set(PORTS)


def test_a_port_that_is_taken_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        monkeypatch.setattr("rankwise.node.placeholders.PORTS", [number])
        with pytest.raises(OSError, match=f"no port of {number}-{number} is free"):
            Ports().get("main@0", "127.0.0.1")


def test_runners_that_start_at_once_have_different_ports(tmp_path: Path) -> None:
    meet = "while ! [ -e ../../../go ]; do sleep 0.05; done"
    attempts = []
    for number in range(5):
        (tmp_path / str(number)).mkdir()
        names = [later(f"port:p{one}@0") for one in range(10)]
        line = f"echo {' '.join(names)}; {meet.replace('../../../', f'{tmp_path}/')}"
        attempts.append(Attempt(tmp_path / str(number), process("a", line)))
    jobs = [attempt.start() for attempt in attempts]
    for attempt in attempts:
        attempt.wait_for("processes/a/start.json")
    (tmp_path / "go").touch()
    for attempt, job in zip(attempts, jobs, strict=True):
        attempt.wait(job)
    ports = [port for attempt in attempts for port in attempt.log("a").split()]
    assert len(set(ports)) == 50


@pytest.mark.parametrize("what", ["nonsense", "address:7", "host:x", "port:main"])
def test_a_mark_that_is_not_known_starts_nothing(tmp_path: Path, what: str) -> None:
    attempt = Attempt(tmp_path, process("a", "touch ran"), process("b", f"echo {later(what)}"))
    end = attempt.run()
    assert (end["outcome"], end["exit_code"]) == ("failed", 3)
    assert repr(what) in end["reason"]
    assert not (attempt.folder / "nodes" / "node0" / "ran").exists()


def test_variables_come_from_all_sides_in_order(tmp_path: Path) -> None:
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    attempt = Attempt(
        tmp_path,
        process("a", python(code), environment={"B": "own", "C": "own"}),
        environment={"A": "all", "B": "all"},
        unset=["GONE"],
        path=["/first", "/second"],
        secrets=["C"],
    )
    attempt.secrets = {"C": "a secret"}
    attempt.run(A="here", GONE="x", HERE="here", PATH=os.environ["PATH"])
    # The value of C is in it, and is kept out of the log.
    found = json.loads(attempt.log("a"))
    assert (found["A"], found["B"], found["C"], found["HERE"]) == ("all", "own", "***", "here")
    assert "GONE" not in found
    assert found["PATH"] == f"/first:/second:{attempt.folder}/bin:{os.environ['PATH']}"
    ours = {name for name in found if name.startswith("RANKWISE_")} - set(os.environ)
    assert {name: found[name] for name in ours} == {
        "RANKWISE_ATTEMPT": attempt.marker,
        "RANKWISE_FOLDER": str(attempt.folder),
        "RANKWISE_HOSTS": "node0",
        "RANKWISE_NODE": "node0",
        "RANKWISE_NODE_RANK": "0",
        "RANKWISE_SECRETS": "C",
    }
    assert found["HOSTNAME"] == "node0"


def test_variables_that_are_no_text_are_passed_on(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("a", 'printf "%s" "$ODD"'))
    attempt.run(ODD="\udcff\udc80")
    assert (attempt.folder / "processes/a/output.log").read_bytes() == b"\xff\x80"


LATIN = "/caf\u00c3\u00a9"
"""A folder of the name \u00e9, in UTF-8, as a process sees it whose locale is one of Latin-1."""


@pytest.fixture
def latin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have paths encoded as in a locale of Latin-1."""
    monkeypatch.setattr(os, "fsencode", lambda path: os.fspath(path).encode("latin-1"))


@pytest.mark.usefixtures("latin")
def test_scripts_name_paths_as_the_system_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placeholders, "own_command", lambda: [f"{LATIN}/__main__.py"])
    order = Order(marker="rw-1", folder=str(tmp_path), nodes=[], processes=[])
    placeholders.write_files(order, placeholders.Marks(order))
    for name in ("rank", "node"):
        script = (tmp_path / "bin" / f"rankwise-{name}").read_bytes()
        assert "'/caf\u00e9/__main__.py'".encode() in script


@pytest.mark.usefixtures("latin")
def test_stand_ins_of_an_interpreter_name_it_as_the_system_does(tmp_path: Path) -> None:
    folder = Path(equipment.stand_ins(f"{LATIN}/python", str(tmp_path), "python"))
    assert "exec '/caf\u00e9/python'".encode() in (folder / "python").read_bytes()
    before = (folder / "python").stat().st_mtime_ns
    equipment.stand_ins(f"{LATIN}/python", str(tmp_path), "python")
    assert (folder / "python").stat().st_mtime_ns == before
