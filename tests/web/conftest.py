"""A store with runs of every kind, and the page of it, without a socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from bench import served_runs
from rankwise.store import Store
from rankwise.web.app import WebApp
from rankwise.web.security import Secrets
from tests.reports.measured_runs import hostile_run

KEYS = Secrets(token="the-token", cookie="the-cookie", form="the-form")
HERE = "http://127.0.0.1:8765"
NOW = 1_800_000_000.0


def fill(folder: Path) -> None:
    """Make runs of every kind."""
    with Store.open(folder) as store:
        served_runs.add_history(store, runs=12, at=NOW - 90_000)
        hostile_run(store, log_bytes=200_000)
        served_runs.add_matrix(store, at=NOW - 4000)
        served_runs.add_tests(store, at=NOW - 2000)
        served_runs.add_pipeline(store, at=NOW - 70)
        served_runs.add_many(store, tasks=130, done=101, at=NOW - 60)


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store that tests only read."""
    folder = tmp_path_factory.mktemp("page") / ".rankwise"
    fill(folder)
    return folder


@pytest.fixture(scope="session")
def visitor(filled: Path) -> Iterator[TestClient]:
    """One who has shown the token."""
    with client(filled) as opened:
        opened.cookies.set(KEYS.name, KEYS.cookie)
        yield opened


@pytest.fixture(scope="session")
def stranger(filled: Path) -> Iterator[TestClient]:
    """One who has not."""
    with client(filled) as opened:
        yield opened


def client(folder: Path) -> TestClient:
    """Make a client that sends what a browser would at the printed address."""
    return TestClient(WebApp(folder, KEYS).app(), base_url=HERE, follow_redirects=False)
