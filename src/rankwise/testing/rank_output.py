"""Of which ranks of a test the captured output is shown: `--rank-output`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from rankwise.testing.results import RankResult

if TYPE_CHECKING:
    from rankwise.testing.ended import Ending


def silence(results: Mapping[int, RankResult], which: str) -> None:
    """Take away the output of ranks whose output is not wanted, by rank of the test."""
    if which == "all":
        return
    failed = [rank for rank, result in results.items() if result.failed or _has_failed(result)]
    _take_away(results, _wanted(which, failed))


def silence_ended(ending: Ending, which: str) -> None:
    """Do the same for a test that was ended; if no rank is to blame, all of them are shown."""
    if which == "all":
        return
    blamed = {*ending.failed, *ending.crashes} or {*ending.output, *ending.ended}
    wanted = _wanted(which, blamed)
    for results in (ending.failed, ending.ended):
        _take_away(results, wanted)
    ending.output = {rank: text for rank, text in ending.output.items() if rank in wanted}


def _wanted(which: str, failed: Collection[int]) -> Collection[int]:
    return failed if which == "failed" else (int(which),)


def _has_failed(result: RankResult) -> bool:
    """Tell whether an attempt has failed that was repeated."""
    return any(report.failed for run in result.reruns for report in run)


def _take_away(results: Mapping[int, RankResult], wanted: Collection[int]) -> None:
    for rank, result in results.items():
        if rank not in wanted:
            for report in chain(result.reports, result.subtests, *result.reruns):
                report.sections = []
