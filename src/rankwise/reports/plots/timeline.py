"""Drawings of timelines."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from rankwise.reports.lanes import COLOURS, Gap, Span, Timeline, TimelineBar, lane_names
from rankwise.reports.palette import TONES
from rankwise.reports.plots import svg
from rankwise.reports.plots.axes import axis_for
from rankwise.reports.rendering import macros
from rankwise.safe_text import clip, clip_middle, cut
from rankwise.wording import counted, duration

WEIGHTS = {tone: weight for weight, tone in enumerate(("idle", "good", "busy", "warn", "bad"))}
"""What is drawn together has the tone that matters most of those."""

Place = tuple[int, int]
"""A row, and a column in it."""


@dataclass(slots=True)
class BarCluster:
    """Bars of one row that follow on each other."""

    start: float
    end: float
    tone: str
    busy: float = 0.0
    names: set[str] = field(default_factory=set)


def gather(clusters: dict[Place, BarCluster], place: Place, span: Span, bar: TimelineBar) -> None:
    """Add a bar to what is at a place."""
    tone = TONES[bar.state]
    cluster = clusters.setdefault(place, BarCluster(*span, tone))
    cluster.start = min(cluster.start, span[0])
    cluster.end = max(cluster.end, span[1])
    cluster.busy += span[1] - span[0]
    cluster.names.add(bar.name)
    if WEIGHTS[tone] > WEIGHTS[cluster.tone]:
        cluster.tone = tone


def joined(clusters: dict[Place, BarCluster], closest: float) -> Iterator[tuple[int, BarCluster]]:
    """Join clusters of a row that look the same and are closer than so many seconds."""
    before: tuple[int, BarCluster] | None = None
    for (row, _), cluster in sorted(clusters.items(), key=lambda one: one[0]):
        if before is not None:
            known = before[1]
            is_close = cluster.start - known.end < closest
            # What is wrong keeps its own place: joined with the rest it would not be seen.
            if before[0] == row and known.tone == cluster.tone and is_close:
                known.end = max(known.end, cluster.end)
                known.busy += cluster.busy
                known.names |= cluster.names
                continue
            yield before
        before = row, cluster
    if before is not None:
        yield before


MOST_SHAPES = 1200
"""So many shapes has a drawing at most; of more bars, short ones are drawn together."""
_WIDTH = 1080.0
_TOP, _BOTTOM, _RIGHT = 26.0, 40.0, 14.0
_HEIGHT, _TALLEST, _LOWEST = 320.0, 30.0, 3.0
_MOST_ROWS = 240
# More names than this would be written over each other.
_NAMED_ROWS = 22
_LONGEST_NAME = 14
_LONGEST_TITLE = 160
# What is narrower cannot be pointed at.
_NARROWEST = 1.5
_LETTER = 6.2
_FEWEST_LETTERS = 4
# For readers who do not see the colours. The font of PDFs has them: for others it would be changed.
_MARKS = {"bad": "\N{MULTIPLICATION SIGN} ", "warn": "! "}
_TALL_ENOUGH = 11.0
_FIRST_WORD = re.compile(r"[^-._:/]+[-._:/]")
_UNITS = ((3 * 3600.0, 3600.0, "hours"), (600.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A bar, or a part of one: rows side by side that had it at the same time."""

    bar: TimelineBar
    rows: range
    span: Span
    wide: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """A rectangle for a bar or several, with what a pointer that rests on it is shown."""

    x: float
    y: float
    wide: float
    tall: float
    tone: str
    title: str
    opacity: float = 1.0
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Sheet:
    """Where lanes and times are on the drawing."""

    ticks: Sequence[tuple[float, str]]
    unit: float
    """So many seconds is one of the ticks."""
    left: float
    scale: float
    """So wide is a second."""
    rows: int
    lanes: int
    tall: float
    usual: str
    """What most names begin with."""

    def x(self, seconds: float) -> float:
        return self.left + seconds * self.scale

    def row(self, lane: int) -> int:
        return lane if self.rows == self.lanes else lane * self.rows // self.lanes

    def y(self, row: int) -> float:
        return _TOP + row * self.tall

    @property
    def bottom(self) -> float:
        return self.y(self.rows)

    @property
    def gap(self) -> float:
        """What is left free between two rows."""
        return 1.0 if self.tall < 8 else 3.0


def draw(
    timeline: Timeline, *, bound: float = 0.0, gaps: Sequence[Gap] = (), most: int = MOST_SHAPES
) -> Markup:
    """Draw a timeline.

    `bound` is a time to mark as the earliest that its end could be; `gaps` say why lanes are idle.
    """
    sheet, unit_name = _sheet(timeline)
    pieces = [
        _Piece(bar, rows, span, sheet.x(span[1]) - sheet.x(span[0]))
        for bar in timeline.bars
        for rows, span in _runs(bar, sheet)
    ]
    narrowest = _NARROWEST
    shapes = _shapes(pieces, timeline, sheet, narrowest)
    # The more there are, the more of them are drawn together.
    # Beyond twice the width, all bars of a row are one shape already.
    while len(shapes) > most and narrowest < 2 * _WIDTH:
        narrowest *= 2
        shapes = _shapes(pieces, timeline, sheet, narrowest)
    label = (
        f"Timeline of {timeline.title}: {counted(len(timeline.bars), timeline.noun)} on "
        f"{counted(len(timeline.lanes), timeline.lane_noun)} in {duration(timeline.end)}. "
        "The table has the same in words."
    )
    return macros("reports/plots").timeline(
        _WIDTH,
        sheet.bottom + _BOTTOM,
        label,
        sheet,
        _WIDTH - _RIGHT,
        list(_lanes(timeline, sheet)),
        list(_gaps(gaps, sheet)),
        shapes,
        list(_marks(timeline, sheet, bound)),
        unit_name,
    )


def _sheet(timeline: Timeline) -> tuple[_Sheet, str]:
    lanes = max(1, len(timeline.lanes))
    rows = min(lanes, _MOST_ROWS)
    end = max(timeline.end, max((bar.end for bar in timeline.bars), default=0.0), 1e-3)
    _, unit, unit_name = next(one for one in _UNITS if end >= one[0])
    names = (clip(name, _LONGEST_NAME) for name in timeline.lanes)
    left = 20 + max(map(svg.width_of, names), default=0.0)
    axis = axis_for([0.0, end / unit], is_log=False)
    # It ends where the time does: room behind it would look like waiting.
    ticks = tuple(tick for tick in axis.ticks if tick[0] <= end / unit)
    sheet = _Sheet(
        ticks=ticks,
        unit=unit,
        left=left,
        scale=(_WIDTH - left - _RIGHT) / end,
        rows=rows,
        lanes=lanes,
        tall=min(_TALLEST, max(_LOWEST, _HEIGHT / rows)),
        usual=_usual_beginning(timeline.bars),
    )
    return sheet, unit_name


def _lanes(timeline: Timeline, sheet: _Sheet) -> Iterator[tuple[float, str | None]]:
    """Return where lanes are, and their names as far as there is room for them."""
    step = math.ceil(sheet.rows / _NAMED_ROWS)
    for row in range(sheet.rows):
        lane = row if sheet.rows == sheet.lanes else row * sheet.lanes // sheet.rows
        name = clip(timeline.lanes[lane], _LONGEST_NAME) if lane < len(timeline.lanes) else ""
        yield sheet.y(row), name if row % step == 0 else None


def _marks(
    timeline: Timeline, sheet: _Sheet, bound: float
) -> Iterator[tuple[float, str, str, str]]:
    """Return lines at moments that explain what is left and right of them."""
    moments = [(when, words, "axis") for when, words in timeline.milestones]
    if bound > 0:
        moments.append((bound, f"lower bound {duration(bound)}", "ideal"))
    last = -math.inf
    for when, words, kind in sorted(moments):
        x, wide = sheet.x(when), svg.width_of(words)
        is_left = x + wide > _WIDTH - _RIGHT
        first = x - wide if is_left else x
        # Two moments that are close would be written over each other.
        yield x, kind, words if first > last else "", "end" if is_left else ""
        last = first + wide if first > last else last


def _gaps(gaps: Sequence[Gap], sheet: _Sheet) -> Iterator[tuple[float, float, str, str]]:
    """Tint the time in which lanes were idle by the cause: bars cover what was busy."""
    for gap in gaps:
        x, wide = sheet.x(gap.start), (gap.end - gap.start) * sheet.scale
        if wide >= _NARROWEST:
            yield x, wide, f"g {COLOURS[gap.cause]}", f"{gap.cause}: {duration(gap.seconds)} lost"


def _shapes(
    pieces: Sequence[_Piece], timeline: Timeline, sheet: _Sheet, narrowest: float
) -> list[_Shape]:
    """Draw the bars; what is narrower than that is drawn together, row by row."""
    shapes: list[_Shape] = []
    clusters: dict[tuple[int, int], BarCluster] = {}
    for piece in pieces:
        if piece.wide < narrowest:
            column = int(sheet.x(piece.span[0]) / narrowest)
            for row in piece.rows:
                gather(clusters, (row, column), piece.span, piece.bar)
        else:
            shapes.append(_shape(piece, timeline, sheet))
    for row, cluster in joined(clusters, narrowest / sheet.scale):
        shapes.append(_together(row, cluster, timeline, sheet))
    # What is wrong is drawn last, on top of all.
    return sorted(shapes, key=lambda one: WEIGHTS[one.tone])


def _runs(bar: TimelineBar, sheet: _Sheet) -> list[tuple[range, Span]]:
    """Put lanes together that are side by side and had the bar at the same time, to the eye."""
    runs: list[tuple[range, Span]] = []
    for lane, span in sorted(bar.on_lanes()):
        row = sheet.row(lane)
        if runs:
            rows, known = runs[-1]
            alike = all(abs(sheet.x(a) - sheet.x(b)) < 1 for a, b in zip(span, known, strict=True))
            if alike and row in (rows.stop, rows.stop - 1):
                runs[-1] = range(rows.start, row + 1), known
                continue
        runs.append((range(row, row + 1), span))
    return runs


def _shape(piece: _Piece, timeline: Timeline, sheet: _Sheet) -> _Shape:
    bar, tone = piece.bar, TONES[piece.bar.state]
    tall = len(piece.rows) * sheet.tall - sheet.gap
    # A hair is left free, so that two that follow on each other are two.
    wide = piece.wide - (0.8 if piece.wide > 4 else 0.0)
    name = _name_in(bar, int((wide - 8) / _LETTER), _MARKS.get(tone, ""), sheet.usual)
    return _Shape(
        x=sheet.x(piece.span[0]),
        y=sheet.y(piece.rows.start),
        wide=max(1.0, wide),
        tall=tall,
        tone=tone,
        title=title_of(bar, timeline),
        name=name if tall >= _TALL_ENOUGH else "",
    )


def _short(bar: TimelineBar) -> str:
    return bar.name.rpartition("::")[2] or bar.name


def _usual_beginning(bars: Sequence[TimelineBar]) -> str:
    """Return the word that most names begin with: it tells none from the others."""
    words = Counter(found[0] for bar in bars if (found := _FIRST_WORD.match(_short(bar))))
    return next((word for word, count in words.items() if 2 * count > len(bars)), "")


def _name_in(bar: TimelineBar, room: int, mark: str, usual: str) -> str:
    """Return as much of a name as there is room for, behind its mark."""
    name = _short(bar)
    room -= len(mark)
    if len(name) > room:
        name = name.removeprefix(usual)
    shown = clip_middle(name, room) if room >= min(len(name), _FEWEST_LETTERS) else ""
    return f"{mark}{shown}" if shown else mark[: max(0, room + 2)]


def title_of(bar: TimelineBar, timeline: Timeline) -> str:
    """Say all of a bar in a line."""
    state = f"{bar.state} ({bar.note})" if bar.note else f"{bar.state}"
    where = f"{duration(bar.seconds)} on {lane_names(bar, timeline)}, from {duration(bar.start)}"
    return f"{cut(bar.name, _LONGEST_TITLE)}: {state}, {where}"


def _together(row: int, cluster: BarCluster, timeline: Timeline, sheet: _Sheet) -> _Shape:
    length = cluster.end - cluster.start
    # As pale as there was waiting in between.
    share = min(1.0, cluster.busy / length) if length > 0 else 1.0
    count = len(cluster.names)
    words = [next(iter(cluster.names)) if count == 1 else counted(count, timeline.noun)]
    words += ["not all of them green"] * (cluster.tone in ("bad", "warn") and count > 1)
    title = ", ".join([*words, f"{duration(cluster.busy)} together"])
    return _Shape(
        x=sheet.x(cluster.start),
        y=sheet.y(row),
        wide=max(1.0, length * sheet.scale),
        tall=sheet.tall - sheet.gap,
        tone=cluster.tone,
        title=f"{title}, from {duration(cluster.start)}",
        opacity=0.3 + 0.7 * share,
    )


def tones_of(bars: Sequence[TimelineBar]) -> list[tuple[str, str, int]]:
    """Return the outcomes that there are, with tone and number, for a legend."""
    counts = Counter(str(bar.state) for bar in bars)
    found = [(state, TONES[state], count) for state, count in counts.items()]
    return sorted(found, key=lambda one: -WEIGHTS[one[1]])
