"""Fixtures for the tests of what the documents say, some of them of other folders."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import project
from tests.acceptance.harness import Project
from tests.acceptance.test_seed_example import EXAMPLE
from tests.seeds.readme_example import NOTES
from tests.slurm.conftest import slurm_with_accounting

__all__ = ["example", "project", "slurm_with_accounting"]


@pytest.fixture
def example(project: Project) -> Project:
    """A folder with the example of the readme of pytest_parallel."""
    project.write({"test_pytest_parallel.py": EXAMPLE, "notes.py": NOTES})
    return project
