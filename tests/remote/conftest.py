"""A real sshd on the loopback, one for all tests of this folder, and one for those that break it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sshd import Sshd, obstacle, sshd

from tests.backends.places import need


@pytest.fixture(scope="session")
def server() -> Iterator[Sshd]:
    """A server that no test breaks."""
    need(obstacle())
    with sshd() as made:
        yield made


@pytest.fixture
def own_server() -> Iterator[Sshd]:
    """A server for a test that kills it."""
    need(obstacle())
    with sshd() as made:
        yield made
