"""What a report says first: the verdict, how many of what, and a few figures."""

from __future__ import annotations

import time
from collections.abc import Iterator

from rankwise.report.facts import ReportData, cut
from rankwise.report.matrix import Verdict
from rankwise.report.words import counted, duration, listed
from rankwise.store import State

TONES = {
    State.PASSED: "good",
    State.SKIPPED: "idle",
    State.FAILED: "bad",
    State.CRASHED: "bad",
    State.TIMED_OUT: "bad",
    State.LOST: "bad",
    State.CANCELLED: "warn",
    State.NOT_RUN: "warn",
    State.RUNNING: "busy",
    State.SUBMITTING: "busy",
    State.QUEUED: "idle",
}
"""In which tone each state is shown."""


def verdict_of(data: ReportData) -> str:
    """Say in a word how the run ended, or that it has not."""
    state = data.run.state
    return str(state) if state.is_over else f"{state}, not over yet"


def outcomes_of(data: ReportData) -> list[tuple[str, int, str]]:
    """Count the tasks in each state that there are, with its tone; what is wrong comes first."""
    order = {tone: number for number, tone in enumerate(("bad", "warn", "busy", "idle", "good"))}
    found = [(str(state), count, TONES[state]) for state, count in data.counts.items() if count]
    return sorted(found, key=lambda one: order[one[2]])


def said_of(data: ReportData) -> str:
    """Say in a sentence what became of the run."""
    counts = [f"{count:,} {name}" for name, count, _ in outcomes_of(data)]
    sentence = f"{data.total:,} {'case' if data.total == 1 else 'cases'}"
    sentence += f": {listed(counts)}." if data.total != 1 or counts else "."
    if data.run.reason:
        sentence += f" {cut(data.run.reason)}"
    return sentence


def cards_of(data: ReportData) -> Iterator[tuple[str, str]]:
    """Give the few figures that people look for."""
    run = data.run
    if data.seconds is not None:
        yield "took", duration(data.seconds)
    yield "begun", moment(run.started if run.started is not None else run.created)
    if run.exit_code:
        yield "exit code", str(run.exit_code)
    retried = sum(case.attempts > 1 for case in data.cases)
    if retried:
        yield "tried again", counted(retried, "case")
    if data.matrix:
        passed = data.matrix.counts[Verdict.PASSED]
        yield "cells that passed", f"{passed:,} of {len(data.matrix.cells):,}"
    if data.measures:
        yield "measured", f"{len(data.measures):,} series"
    compared = [one for one in data.measures if one.verdict]
    if compared:
        for verdict in ("regressed", "improved"):
            count = sum(one.verdict == verdict for one in compared)
            yield f"{verdict} since {data.before}", f"{count:,} of {len(compared):,}"
    elif data.before and data.measures:
        worse = sum(is_worse(one.change, one.better) for one in data.measures)
        yield f"worse by 5 % or more than {data.before}", f"{worse:,} of {len(data.measures):,}"
    if commit := run.tags.get("git.commit", ""):
        yield "commit", cut(commit, 8).removesuffix(" …")


def is_worse(change: float | None, better: str, by: float = 0.05) -> bool:
    """Tell whether a change is for the worse, and not a small one."""
    if change is None or not better:
        return False
    return (change if better == "lower" else -change) >= by


def moment(when: float) -> str:
    """Say when something was, in the time of this place."""
    try:
        return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(when)).strip()
    except (OverflowError, ValueError, OSError):
        return str(when)
