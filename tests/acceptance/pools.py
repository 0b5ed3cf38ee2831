"""Run an inner test-suite on a pool, and make sure that it leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.leftovers import check_that_nothing_is_left


def run_pool(
    project: Project,
    temporary: Path,
    *arguments: str,
    workers: str = "2",
    ranks: int | None = None,
    limit: float = 150.0,
) -> Outcome:
    """Run the project on a pool; it must leave nothing behind."""
    outcome = run_pytest(
        project,
        *(f"--n-workers={workers}", *arguments),
        ranks=ranks,
        limit=limit,
        environment={"TMPDIR": str(temporary)},
    )
    try:
        check_that_nothing_is_left(project, temporary)
    except AssertionError as left:
        raise AssertionError(f"left behind: {left}\n{outcome}") from None
    return outcome
