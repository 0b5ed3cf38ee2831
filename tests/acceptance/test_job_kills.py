"""Clients, ranks and runners that are killed: nothing is lost, nothing runs twice."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.jobs import Shop, opened
from tests.lengths import part

TASKS = 20
KILLS_IN_A_RUN = 5


def write_tasks(shop: Shop) -> list[Path]:
    """Write documents of tasks that note in a ledger when they begin and when they end."""
    return [
        shop.write(
            f"task-{number}.yaml",
            f"""\
            type: command
            name: task-{number}
            command: >-
              echo begin {number} >> "$LEDGER"; sleep 0.05; echo end {number} >> "$LEDGER"
            """,
        )
        for number in range(TASKS)
    ]


def run_ids(shop: Shop) -> list[str]:
    if not (shop.folder / ".rankwise" / "store.db").exists():
        return []
    said = shop.rankwise("list", "--json")
    assert said.exit_code == 0, said
    return [run["id"] for run in json.loads(said.output)]


def next_command(shop: Shop, documents: list[Path]) -> list[str | Path]:
    """Take up the run that there is, or begin."""
    if ids := run_ids(shop):
        return ["resume", *ids, "--quiet"]
    return ["run", *documents, "--quiet"]


@pytest.mark.parametrize("seed", range(part(5, 10)))
def test_a_client_may_be_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with opened(tmp_path / "shop") as shop:
        ledger = shop.folder / "ledger"
        shop.variables["LEDGER"] = str(ledger)
        documents = write_tasks(shop)
        for _ in range(KILLS_IN_A_RUN):
            client = shop.start(*next_command(shop, documents))
            time.sleep(chance.uniform(0.0, 2.0))
            os.killpg(client.pid, signal.SIGKILL)
            client.communicate()
        end = shop.rankwise(*next_command(shop, documents))
        assert end.exit_code == 0, end
        assert len(run_ids(shop)) == 1
        lines = Counter(ledger.read_text().splitlines())
        assert lines == {f"{what} {n}": 1 for what in ("begin", "end") for n in range(TASKS)}
        status = json.loads(shop.rankwise("status", "--json").output)
        assert status["counts"] == {"passed": TASKS}
        shop.wait_until_empty()
