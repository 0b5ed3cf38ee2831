"""SVG as text. Colours are classes: a page says what they are, or `standalone` brings them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from rankwise.reports.markup import escaped, joined, tag
from rankwise.reports.palette import INKS
from rankwise.safe_text import clip_apart

SERIES = 8
"""So many lines can be told apart by colour, dash and mark."""

# Colour-blind readers tell these apart, too; after Okabe and Ito.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#b2559a", "#c98a00", "#3b8fc4", "#7a4fb5", "#5f6b76"]
DASHES = ("", "7 3", "2 3", "9 3 2 3", "", "5 2", "1 2", "12 4")
# The fonts that typst brings along: a PDF looks the same on every machine.
_FONTS = "Libertinus Serif, serif"
# Outside of a page there is no style sheet that says what the classes mean.
_RULES = (
    f"text{{font-family:{_FONTS};font-size:15px;fill:#3a424c}}"
    ".grid{stroke:#dfe3e8}.axis{stroke:#9aa4af}.strong{fill:#14181d}.faint{fill:#6b7683}"
    ".ideal{stroke:#9aa4af;stroke-dasharray:4 4}.change{stroke:#d55e00;stroke-dasharray:3 3}"
    ".heat{fill:#0072b2}.on{fill:#ffffff}.cell{font-size:13px}"
    ".lane{fill:#eef1f4}.b{fill:#6b7683}"
    + "".join(f".{tone}{{fill:{INKS[tone]}}}" for tone in ("good", "bad", "warn", "busy"))
    + ".g{fill-opacity:.3}.c0{fill:#d55e00}.c1{fill:#c98a00}.c2{fill:#0072b2}"
    ".c3{fill:#b2559a}.c4{fill:#5f6b76}.c5{fill:#7a4fb5}"
    + "".join(
        f".s{number}{{stroke:{colour}}}.f{number}{{fill:{colour}}}"
        for number, colour in enumerate(COLOURS)
    )
)


def drawing(width: float, height: float, label: str, parts: Iterable[Markup]) -> Markup:
    """Put parts together to one drawing; `label` is read aloud in its place."""
    return tag(
        "svg",
        joined(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {coordinate(width)} {coordinate(height)}",
        role="img",
        aria_label=label,
        font_size="12",
    )


def standalone(svg: str) -> str:
    """Return a drawing with its own colours and size, to be shown outside of a page."""
    head, separator, rest = svg.partition(">")
    return f"{head}{separator}<style>{_RULES}</style>{rest}"


def text(
    x: float, y: float, words: str, *, anchor: str = "", kind: str = "", turn: bool = False
) -> Markup:
    """Write words at a place."""
    across, down = coordinate(x), coordinate(y)
    turned = f"rotate(-90 {across} {down})" if turn else None
    place = {"x": across, "y": down, "text_anchor": anchor or None}
    return tag("text", words, **place, class_=kind or None, transform=turned)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Draw a straight line."""
    # Numbers need no escaping.
    return Markup(
        f'<line x1="{coordinate(x1)}" y1="{coordinate(y1)}" x2="{coordinate(x2)}" '
        f'y2="{coordinate(y2)}" class="{kind}"/>'
    )


def path(points: Iterable[tuple[float, float]], kind: str, extra: str = "") -> Markup:
    """Draw a line through points."""
    places = "L".join(f"{coordinate(x)} {coordinate(y)}" for x, y in points)
    return Markup(f'<path d="M{places}" class="{kind}"{extra}/>')


def rectangle(
    x: float,
    y: float,
    width: float,
    height: float,
    kind: str,
    *,
    opacity: float = 1,
    title: str = "",
) -> Markup:
    """Draw a filled rectangle; the title is shown to a pointer that rests on it."""
    shape = (
        f'<rect x="{coordinate(x)}" y="{coordinate(y)}" width="{coordinate(max(0, width))}" '
        f'height="{coordinate(max(0, height))}" class="{kind}"'
    )
    if opacity < 1:
        shape += f' fill-opacity="{opacity:.2f}"'
    return Markup(f"{shape}><title>{escaped(title)}</title></rect>" if title else f"{shape}/>")


def mark(x: float, y: float, series: int, title: str = "") -> Markup:
    """Draw the mark of a series: each has a form of its own."""
    size = 3.2
    # Colours alone do not tell lines apart on paper, nor for every reader.
    forms = (
        [(0, -1), (0.87, -0.5), (0.87, 0.5), (0, 1), (-0.87, 0.5), (-0.87, -0.5)],
        [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        [(0, -1.2), (1.1, 0.9), (-1.1, 0.9)],
        [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)],
        [(-1.1, -0.9), (1.1, -0.9), (0, 1.2)],
    )
    form = forms[series % len(forms)]
    places = " ".join(f"{coordinate(x + a * size)},{coordinate(y + b * size)}" for a, b in form)
    shape = f'<polygon points="{places}" class="f{series % SERIES}"'
    return Markup(f"{shape}><title>{escaped(title)}</title></polygon>" if title else f"{shape}/>")


def coordinate(value: float) -> str:
    """Write a coordinate as shortly as the eye allows."""
    written = f"{value:.1f}"
    return written[:-2] if written.endswith(".0") else written


# The widest of the fonts of pages and of PDF, where letters are larger.
_WIDTHS = {**dict.fromkeys("fijlrst.,:;'|!()[]/- ", 5.5), **dict.fromkeys("mwMW@%", 13.5)}


def width_of(words: str) -> float:
    """Guess how wide words are at the size of a plot's text."""
    return sum(_WIDTHS.get(one, 7.6 if one.islower() or one.isdigit() else 11.0) for one in words)


def fitted(names: Sequence[str], room: float) -> list[str]:
    """Shorten names to a width; names that differ still do."""
    most = max(map(len, names), default=0)
    while most > 1 and max(map(width_of, found := clip_apart(names, most)), default=0) > room:
        # By how much they are too wide is nearly by how much they are too long.
        most = min(most - 1, int(most * room / max(map(width_of, found))) + 2)
    return clip_apart(names, most)
