"""Errors that GitHub shows beside the lines of a pull request."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rankwise.report.cases import Case
from rankwise.report.junit import fit, place_of

# GitHub shows no more of a step.
_MOST = 10
_LONGEST = 1000


def error_lines(cases: Sequence[Case], *, workspace: str = "") -> Iterator[str]:
    """Give a line for each case that is not well, as GitHub reads them."""
    red = [case for case in cases if case.state.is_over and not case.state.is_green]
    for case in red[: _MOST if len(red) <= _MOST else _MOST - 1]:
        name = case.name if case.name == case.task else f"{case.task}: {case.name}"
        about = {"title": f"{name} {case.state}"}
        if case.place:
            path, line = place_of(case.place)
            about = {"file": _within(path, workspace), "line": line, **about}
        message = case.reason or str(case.state)
        if case.details and case.name == case.task:
            message += f"\n{case.details}"
        yield _command(about, message)
    if len(red) > _MOST:
        yield _command({"title": f"{len(red) - _MOST + 1} more"}, "see the summary of this job")


def _within(path: str, workspace: str) -> str:
    """Give a path as GitHub knows it: from the folder of the repository."""
    whole = Path(path).absolute()
    return str(whole.relative_to(workspace)) if _is_in(whole, workspace) else os.path.relpath(whole)


def _is_in(path: Path, workspace: str) -> bool:
    return bool(workspace) and path.is_relative_to(workspace)


def _command(about: dict[str, str], message: str) -> str:
    said = ",".join(f"{name}={_property(value)}" for name, value in about.items())
    return f"::error {said}::{_data(message[:_LONGEST])}"


def _data(text: str) -> str:
    text = fit(text).replace("%", "%25")
    return text.replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
