"""A line as small as a word: how something went over time."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise.report.markup import Markup, tag
from rankwise.report.plots.svg import coordinate

WIDTH, HEIGHT = 120.0, 26.0
# More points than this are closer to each other than the eye can tell.
_MOST_POINTS = 32


def sparkline(
    times: Sequence[float], values: Sequence[float], *, label: str, series: int, least: float = 0.0
) -> Markup:
    """Draw values over time, from zero to the highest of them, or to `least` if that is higher."""
    points = _thinned([(time, max(0.0, value)) for time, value in zip(times, values, strict=True)])
    if points and points[0][0] > 0:
        points.insert(0, (0.0, points[0][1]))
    end = max((time for time, _ in points), default=0.0) or 1.0
    top = max(least, *(value for _, value in points), 0.0) or 1.0
    places = [
        (WIDTH * time / end, HEIGHT - 1 - (HEIGHT - 3) * value / top) for time, value in points
    ]
    drawn = "L".join(f"{coordinate(x)} {coordinate(y)}" for x, y in places)
    low = coordinate(HEIGHT)
    area = f"M0 {low}L{drawn}L{coordinate(places[-1][0])} {low}Z" if places else ""
    return tag(
        "svg",
        Markup(f'<path d="{area}" class="f{series}" fill-opacity=".16"/>'),
        Markup(f'<path d="M{drawn}" class="s{series}" fill="none" stroke-width="1.5"/>')
        if places
        else "",
        viewBox=f"0 0 {coordinate(WIDTH)} {coordinate(HEIGHT)}",
        class_="spark",
        role="img",
        aria_label=label,
        preserveAspectRatio="none",
    )


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep the highest of neighbours: peaks are what people look for."""
    step = -(-len(points) // _MOST_POINTS) or 1
    groups = (points[start : start + step] for start in range(0, len(points), step))
    return [max(group, key=lambda point: point[1]) for group in groups]
