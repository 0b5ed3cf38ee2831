"""The clusters of the tests: several start at the same time, each on ports of its own."""

from __future__ import annotations

import socket

import cluster
import daemons
import pytest

from tests.slurm.conftest import require_slurm


def test_a_port_that_is_bound_and_does_not_answer_yet_is_not_free() -> None:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        assert not daemons.is_free(line.getsockname()[1])


def test_a_cluster_whose_port_another_process_takes_starts_on_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_slurm()
    find = daemons.free_ports
    given: list[list[int]] = []

    def find_taken_first(count: int) -> list[int]:
        found = find(count)
        given.append(found if given else [line.getsockname()[1], *found[1:]])
        return given[-1]

    monkeypatch.setattr(cluster, "free_ports", find_taken_first)
    with socket.create_server(("", 0)) as line, cluster.cluster(prefix="taken") as made:
        assert len(given) == 2
        assert f"SlurmctldPort={given[1][0]}" in (made.folder / "slurm.conf").read_text()
