"""Sweeps are run, measured and kept, whatever happens to the client."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.store import Store
from tests.acceptance.jobs import Shop, opened, wait_for

_SWEEP = """\
    type: Sweep
    name: timing
    command: {command}
    parameters:
      size: [1, 2, 3]
    trials: 4
    warmup: 1
    metrics:
      - name: time
        unit: s
        better: lower
        pattern: 'took (?P<value>[0-9.]+) s'
    """


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with opened(tmp_path / "shop") as made:
        yield made


def test_each_case_has_a_sample_for_each_trial_with_its_conditions(shop: Shop) -> None:
    shop.write("sweep.yaml", _SWEEP.format(command='echo "took ${{size}}.${{trial}} s"'))
    said = shop.rankwise("run", "sweep.yaml")
    assert said.exit_code == 0, said
    assert "3 cases, 4 trials each and 1 to warm up: 15 tasks" in said.output, said
    with Store.open(shop.folder / ".rankwise", read_only=True) as store:
        series = store.series(metric="time")
        assert [(one.case, one.unit, one.better) for one in series] == [
            ("size=1", "s", "lower"),
            ("size=2", "s", "lower"),
            ("size=3", "s", "lower"),
        ]
        history = store.history(series[1].id)
        assert [row.value for row in history] == [2.1, 2.2, 2.3, 2.4]
        conditions = store.conditions("timing-1")
        assert len(conditions) == 12
        assert all({"host", "cpu", "load"} <= one.keys() for one in conditions.values())


def test_a_case_that_prints_no_metric_has_failed(shop: Shop) -> None:
    command = 'if [ ${{size}} = 2 ]; then echo "took nan s"; else echo "took 1 s"; fi'
    shop.write("sweep.yaml", _SWEEP.format(command=f"'{command}'"))
    said = shop.rankwise("run", "sweep.yaml")
    assert said.exit_code != 0, said
    assert "15 tasks: 11 passed, 4 failed" in said.output, said
    assert "regex has found no metric" in said.output, said


def test_a_sweep_whose_client_is_killed_measures_everything_once(shop: Shop) -> None:
    line = 'echo ${{size}}.${{trial}} >> ledger; sleep 0.05; echo "took 0.${{size}} s"'
    shop.write("sweep.yaml", _SWEEP.format(command=f"'{line}'"))
    ledger = shop.folder / "ledger"
    for arguments, count in ((("run", "sweep.yaml"), 3), (("resume",), 7), (("resume",), 11)):
        client = shop.start(*arguments)
        deadline = time.monotonic() + 60
        while len(wait_for(ledger, 60).split()) < count:
            assert time.monotonic() < deadline, ledger.read_text()
            time.sleep(0.01)
        os.killpg(client.pid, signal.SIGKILL)
        client.communicate()
    said = shop.rankwise("resume")
    assert said.exit_code == 0, said
    assert Counter(ledger.read_text().split()) == {
        f"{size}.{trial}": 1 for size in (1, 2, 3) for trial in range(5)
    }
    with Store.open(shop.folder / ".rankwise", read_only=True) as store:
        values = Counter(row.value for row in store.samples_of_run("timing-1"))
    assert values == {0.1: 4, 0.2: 4, 0.3: 4}


_PARSER = """\
    from rankwise.metrics.base import Collector

    def read_ticks(wish, text):
        found = Collector(wish)
        for line in text.splitlines():
            name, _, ticks = line.partition(" ticks: ")
            if ticks:
                found.add(name, float(ticks), "ticks", better="lower")
        return found.parsed()
    """


def test_a_parser_of_another_package_measures_a_sweep(shop: Shop) -> None:
    shop.variables["PYTHONPATH"] = str(shop.folder / "site")
    shop.write("site/ticker.py", _PARSER)
    shop.write("site/ticker-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: ticker\n")
    entry = "[rankwise.metric_parsers]\nticks = ticker:read_ticks\n"
    shop.write("site/ticker-1.0.dist-info/entry_points.txt", entry)
    sweep = "type: Sweep\nname: t\ncommand: 'echo \"work ticks: 1${{trial}}\"'\ntrials: 2\n"
    shop.write("wrong.yaml", f"{sweep}metrics: [tick]\n")
    said = shop.rankwise("run", "wrong.yaml")
    assert said.exit_code == 2, said
    assert "there is no parser `tick`; did you mean `ticks`?" in said.errors, said
    shop.write("sweep.yaml", f"{sweep}metrics: [ticks]\n")
    said = shop.rankwise("run", "sweep.yaml")
    assert said.exit_code == 0, said
    with Store.open(shop.folder / ".rankwise", read_only=True) as store:
        (series,) = store.series(metric="work")
        assert (series.unit, series.better) == ("ticks", "lower")
        assert [row.value for row in store.history(series.id)] == [11.0, 12.0]
