"""Tells others what became of a run: files for a CI, and GitHub itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankwise.store import Store


def tell_outside(
    store: Store, run: str, *, junit: Path | None, markdown: Path | None, is_quiet: bool = False
) -> None:
    """Write the files that were asked for; under GitHub Actions, annotations and a summary."""
    is_github = os.environ.get("GITHUB_ACTIONS") == "true"
    if junit is None and markdown is None and not is_github:
        return
    from rankwise.report.cases import cases_of, repeated_of
    from rankwise.report.files import write_whole
    from rankwise.report.junit import junit_report
    from rankwise.report.markdown import markdown_report
    from rankwise.report.matrix import matrix_of

    row, cases = store.run(run), cases_of(store, run)
    if junit is not None:
        write_whole(junit, junit_report(row, cases))
    summary = markdown_report(row, cases, repeated_of(store, run), matrix_of(store, row))
    if markdown is not None:
        write_whole(markdown, summary.encode())
    if is_github and not is_quiet:
        from rankwise.report.annotations import error_lines

        for line in error_lines(cases, workspace=os.environ.get("GITHUB_WORKSPACE", "")):
            print(line)
    if is_github and (page := os.environ.get("GITHUB_STEP_SUMMARY")):
        _append(Path(page), summary)


def _append(page: Path, text: str) -> None:
    """Add to GitHub's page; a run is not worse because that cannot be written."""
    try:
        with page.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        print(f"rankwise: {page}: {error.strerror}", file=sys.stderr)
