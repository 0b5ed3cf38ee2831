"""Numbers side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.measure import Contestant, Sample, median


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


def compare(
    title: str, contestants: Sequence[Contestant], samples: Mapping[str, Sequence[Sample]]
) -> Table:
    """Set all contestants against the first one.

    A ratio is that of the medians; its range is that of single rounds.
    """
    base = samples[contestants[0].name]
    base_wall = median([sample.wall for sample in base])
    base_cpu = median([sample.cpu for sample in base])
    table = Table(
        title=f"{title}; medians of {len(base)}",
        headings=("wall s", "ratio", "range", "CPU s", "ratio", "wall target"),
    )
    for contestant in contestants:
        mine = samples[contestant.name]
        wall = median([sample.wall for sample in mine])
        cpu = median([sample.cpu for sample in mine])
        ratios = [own.wall / other.wall for own, other in zip(mine, base, strict=True)]
        table.rows.append(
            (
                contestant.name,
                f"{wall:.2f}",
                f"{wall / base_wall:.2f}",
                f"{min(ratios):.2f}-{max(ratios):.2f}",
                f"{cpu:.2f}",
                f"{cpu / base_cpu:.2f}",
                judge(wall / base_wall, contestant.target),
            )
        )
    return table
