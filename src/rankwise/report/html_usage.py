"""What was used over time, in HTML: cells of a table, each a small line and the figures of it."""

from __future__ import annotations

from collections.abc import Iterator

from rankwise.records import Usage
from rankwise.report.markup import Markup, tag
from rankwise.report.plots.sparkline import sparkline
from rankwise.report.words import duration, size

_CPU, _MEMORY, _GPU = 0, 2, 3
"""The colours of what was used."""


def used_cells(
    usage: Usage | None, *, cpu_seconds: float, peak_memory: float, has_gpus: bool
) -> Iterator[Markup]:
    """Make cells of cores, memory and, if the table has such a column, GPUs."""
    if usage is None:
        yield from [tag("td")] * (3 if has_gpus else 2)
        return
    drawn = sparkline(usage.time, usage.cpu, series=_CPU, least=1.0)
    yield _over_time(drawn, f"{duration(cpu_seconds)} on {max(usage.cpu):.1f}", cpu_seconds)
    drawn = sparkline(usage.time, usage.memory, series=_MEMORY)
    yield _over_time(drawn, size(peak_memory), peak_memory)
    if has_gpus and usage.gpu:
        most = max(usage.gpu)
        drawn = sparkline(usage.time, usage.gpu, series=_GPU, least=1.0)
        yield _over_time(drawn, f"{most:.0%}, {size(max(usage.gpu_memory, default=0))}", most)
    elif has_gpus:
        yield tag("td")


def _over_time(drawn: Markup, said: str, value: float) -> Markup:
    return tag("td", drawn, tag("small", said), class_="used", data_v=f"{value:.6g}")
