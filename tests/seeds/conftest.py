"""Fixtures of other folders, for the tests of what the documents say."""

from __future__ import annotations

from tests.acceptance.conftest import project
from tests.slurm.conftest import slurm_with_accounting

__all__ = ["project", "slurm_with_accounting"]
