"""A line as small as a word: how something went over time."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise.report.markup import Markup, tag

_WIDTH, _HEIGHT = 120, 28
# More points than this are closer to each other than the eye can tell.
_MOST_POINTS = 32


def sparkline(
    times: Sequence[float], values: Sequence[float], *, series: int, least: float = 0.0
) -> Markup:
    """Draw values over time, from zero to the highest of them, or to `least` if that is higher.

    It says nothing by itself: the words beside it do.
    """
    points = _thinned([(time, max(0.0, value)) for time, value in zip(times, values, strict=True)])
    end = max((time for time, _ in points), default=0.0) or 1.0
    top = max(least, *(value for _, value in points), 0.0) or 1.0
    places = [
        (round(_WIDTH * time / end), round(_HEIGHT - 1 - (_HEIGHT - 3) * value / top))
        for time, value in points
    ]
    drawn = "L".join(f"{x} {y}" for x, y in [(0, places[0][1]), *places]) if places else "0 0"
    area = Markup(f'<path d="M{drawn}V{_HEIGHT}H0Z" class="s{series} f{series}"/>')
    size = f"0 0 {_WIDTH} {_HEIGHT}"
    return tag("svg", area, viewBox=size, class_="spark", aria_hidden="true")


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep the highest of neighbours: peaks are what people look for."""
    step = -(-len(points) // _MOST_POINTS) or 1
    groups = (points[start : start + step] for start in range(0, len(points), step))
    return [max(group, key=lambda point: point[1]) for group in groups]
