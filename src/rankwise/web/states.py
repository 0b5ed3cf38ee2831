"""States as pages show and ask for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rankwise.report.markup import Markup, tag
from rankwise.report.outcomes import TONES
from rankwise.report.words import duration
from rankwise.store import State

_ORDER = ("bad", "warn", "busy", "idle", "good")
_OPEN = tuple(state for state in State if not state.is_over)
_RED = tuple(state for state in State if state.is_over and not state.is_green)

CHOICES = {
    "": "any outcome",
    "open": "not over yet",
    "red": "not green",
    **{str(state): str(state) for state in State},
}
"""What can be chosen in a filter, and how it is called there."""


def states_of(choice: str) -> Collection[State]:
    """Give the states that a choice stands for; none: it does not matter."""
    groups: Mapping[str, Collection[State]] = {"open": _OPEN, "red": _RED}
    if choice in groups:
        return groups[choice]
    return tuple(state for state in State if state == choice)


def outcome(state: State) -> Markup:
    """Show a state as a cell of a table."""
    return tag("td", str(state), class_=f"o {TONES[state]}")


def by_weight(counts: Mapping[State, int]) -> list[tuple[State, int]]:
    """Give the states that there are, what is wrong first."""
    found = [(state, count) for state, count in counts.items() if count]
    return sorted(found, key=lambda one: _ORDER.index(TONES[one[0]]))


def in_words(counts: Mapping[State, int]) -> str:
    """Say how many are in which state."""
    return ", ".join(f"{count:,} {state}" for state, count in by_weight(counts))


def bar(counts: Mapping[State, int]) -> Markup:
    """Draw how many are in which state; the label is for those who hear it."""
    total = sum(counts.values())
    parts, left = [], 0.0
    # What is done grows from the left, what waits is at the right.
    drawn = sorted(by_weight(counts), key=lambda one: _DRAWN.index(TONES[one[0]]))
    for state, count in drawn:
        width = 1000 * count / total
        shape = f'<rect x="{left:.1f}" width="{width:.1f}" height="14" class="{TONES[state]}"/>'
        parts.append(Markup(shape))
        left += width
    return tag(
        "svg", *parts, class_="progress", viewBox="0 0 1000 14", preserveAspectRatio="none",
        role="img", aria_label=in_words(counts) or "nothing yet",
    )  # fmt: skip


_DRAWN = ("good", "bad", "warn", "busy", "idle")


def legend(counts: Mapping[State, int]) -> Markup:
    """Name the states that there are, each in its colour."""
    items = (
        tag("li", f"{count:,} {state}", class_=TONES[state]) for state, count in by_weight(counts)
    )
    return tag("ul", *items, class_="legend")


def took(started: float | None, ended: float | None, *, now: float, is_over: bool) -> Markup:
    """Say how long something took, or has taken so far: then a script counts on."""
    if started is None or (is_over and ended is None):
        return Markup('<td class="n"></td>')
    if is_over and ended is not None:
        return Markup(f'<td class="n">{duration(max(0.0, ended - started))}</td>')
    so_far = duration(max(0.0, now - started))
    return tag("td", tag("span", so_far, data_since=f"{started:.3f}"), class_="n")
