"""Bars of a timeline that are too short to be drawn one by one, and are drawn together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rankwise.report.lanes import Bar, Span
from rankwise.report.outcomes import TONES

WEIGHTS = {tone: weight for weight, tone in enumerate(("idle", "good", "busy", "warn", "bad"))}
"""What is drawn together has the tone that matters most of those."""

Place = tuple[int, int]
"""A row, and a column in it."""


@dataclass(slots=True)
class Cluster:
    """Bars of one row that follow on each other."""

    start: float
    end: float
    tone: str
    busy: float = 0.0
    names: set[str] = field(default_factory=set)


def gather(clusters: dict[Place, Cluster], place: Place, span: Span, bar: Bar) -> None:
    """Add a bar to what is at a place."""
    tone = TONES[bar.state]
    cluster = clusters.get(place)
    if cluster is None:
        cluster = clusters[place] = Cluster(span[0], span[1], tone)
    cluster.start = min(cluster.start, span[0])
    cluster.end = max(cluster.end, span[1])
    cluster.busy += span[1] - span[0]
    cluster.names.add(bar.name)
    if WEIGHTS[tone] > WEIGHTS[cluster.tone]:
        cluster.tone = tone


def joined(clusters: dict[Place, Cluster], closest: float) -> Iterator[tuple[int, Cluster]]:
    """Join clusters of a row that look the same and are closer than so many seconds."""
    before: tuple[int, Cluster] | None = None
    for (row, _), cluster in sorted(clusters.items(), key=lambda one: one[0]):
        if before is not None:
            known = before[1]
            is_close = cluster.start - known.end < closest
            if before[0] == row and known.tone == cluster.tone and is_close:
                known.end = max(known.end, cluster.end)
                known.busy += cluster.busy
                known.names |= cluster.names
                continue
            yield before
        before = row, cluster
    if before is not None:
        yield before
