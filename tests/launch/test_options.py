from __future__ import annotations

from rankwise.launch.launchers import TABLES


def test_every_option_that_is_asked_for_is_in_its_table() -> None:
    for dialect, table in TABLES.items():
        for name in (*table.processes, *table.per_node, *table.nodes):
            assert table.arguments_of(name) == 1, (dialect, name)
        for name in table.output:
            assert table.arguments_of(name) is not None or name == "logdir", (dialect, name)


def test_where_launchers_differ_their_own_table_counts() -> None:
    assert TABLES["openmpi"].arguments_of("s") == 0
    assert TABLES["hydra"].arguments_of("s") == 1


def test_names_may_be_shortened_where_that_is_clear() -> None:
    torchrun = TABLES["torchrun"]
    assert torchrun.full_name("nproc-per") == "nproc-per-node"
    assert torchrun.full_name("nproc-per-node") == "nproc-per-node"
    assert torchrun.full_name("n") == "n"
    assert torchrun.full_name("rdzv") == "rdzv"
    assert TABLES["openmpi"].full_name("hostf") == "hostf"
