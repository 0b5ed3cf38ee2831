"""Numbers side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.measure import Result
from bench.peers import version


@dataclass(slots=True, kw_only=True)
class Table:
    """A title, rows of text under headings, and remarks."""

    title: str
    headings: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        cells = [["", *self.headings], *self.rows]
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
        lines = [self.title]
        for first, *others in cells:
            line = f"  {first:<{widths[0]}}"
            for text, width in zip(others, widths[1:], strict=True):
                line += f"  {text:>{width}}"
            lines.append(line.rstrip())
        return "\n".join(lines + [f"  {remark}" for remark in self.remarks])


def judge(value: float, target: float | None) -> str:
    """Say what was aimed at, and whether it was reached."""
    if target is None:
        return ""
    return f"≤ {target:g} {'met' if value <= target else 'MISSED'}"


def compare(title: str, results: Sequence[Result]) -> Table:
    """Set all contestants against the first one.

    A ratio is that of the medians; its range is that of single rounds. Who could not take part has
    a row all the same, and a remark that says why.
    """
    base = results[0]
    table = Table(
        title=f"{title}; medians of {len(base.samples)}",
        headings=("wall s", "ratio", "range", "CPU s", "ratio", "runs", "wall target"),
    )
    for result in results:
        name = result.contestant.name
        if result.obstacle is None:
            table.rows.append((name, *_beside(base, result)))
        else:
            table.rows.append((name, *("-" for _ in table.headings)))
            table.remarks.append(f"{name} {result.obstacle}")
    there = {one.contestant.peer for one in results if one.obstacle is None}
    if shown := sorted(f"{peer} {version(peer)}" for peer in there if peer is not None):
        table.remarks.append(f"Peers: {', '.join(shown)}.")
    return table


def _beside(base: Result, result: Result) -> Sequence[str]:
    # One that rests after some rounds took part in the first ones.
    pairs = zip(result.samples, base.samples, strict=False)
    ratios = [own.wall / other.wall for own, other in pairs]
    ratio = result.wall / base.wall
    return (
        f"{result.wall:.2f}",
        f"{ratio:.2f}",
        f"{min(ratios):.2f}-{max(ratios):.2f}",
        f"{result.cpu:.2f}",
        f"{result.cpu / base.cpu:.2f}",
        f"{len(result.samples)}",
        judge(ratio, result.contestant.target),
    )
