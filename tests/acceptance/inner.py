"""Inner test-suites that run with rankwise as the only plugin, and notes of who ran what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.acceptance.harness import Outcome, Project

# Without other plugins the order of tests is their order in the file, and a run starts faster.
_ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

_LEDGER = '''
import os
from pathlib import Path

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))

def note(text):
    """Write down that this happened on this rank of the run."""
    with Path(__file__).with_name("ledger.txt").open("a") as file:
        file.write(f"{RANK} {text}\\n")
'''


def run_pytest(
    project: Project,
    *arguments: str,
    ranks: int | None = 4,
    limit: float = 150.0,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run the project's tests; they may `from ledger import note`."""
    project.write({"ledger.py": _LEDGER})
    _ledger_file(project).unlink(missing_ok=True)
    return project.pytest(
        *("-p", "rankwise", *arguments),
        ranks=ranks,
        limit=limit,
        environment={**_ALONE, **(environment or {})},
    )


def read_ledger(project: Project) -> list[tuple[int, str]]:
    """Return what the tests of the last run noted, each with its rank in the run."""
    file = _ledger_file(project)
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(rank), text) for rank, text in (line.split(" ", 1) for line in lines)]


def noted(project: Project) -> list[str]:
    """Return the same without the ranks."""
    return [text for _, text in read_ledger(project)]


def _ledger_file(project: Project) -> Path:
    return project.folder / "ledger.txt"
