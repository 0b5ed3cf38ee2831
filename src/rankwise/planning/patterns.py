"""Files that a document names by a pattern: each is a test."""

from __future__ import annotations

from pathlib import Path

from rankwise.errors import InputError


def files_that_fit(folder: Path, pattern: str, place: str) -> list[Path]:
    """Give the files in their order; InputError, with the place of the pattern: there are none."""
    try:
        found = sorted((path for path in folder.glob(pattern) if path.is_file()), key=str)
    except (ValueError, NotImplementedError) as error:
        # An empty pattern, or one of another folder: pathlib says which.
        raise InputError(f"{place}: is no pattern: {error}") from None
    if not found:
        raise InputError(f"{place}: no file in {folder} fits")
    return found
