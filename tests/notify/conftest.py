"""What tests of notices need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.reports.model import ReportData
from rankwise.store import Store
from tests.notify.mailboxes import make_certificate
from tests.reports.measured_runs import osu_sweep


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / ".rankwise") as opened:
        yield opened


@pytest.fixture
def data(store: Store) -> ReportData:
    run = osu_sweep(store, trials=5)
    return ReportData(store=store, run=store.run(run), now=1_700_000_200.0)
