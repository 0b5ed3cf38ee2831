"""How states and verdicts are shown: tones of pages, styles of terminals, inks of mails."""

from __future__ import annotations

from collections.abc import Mapping

# What is wrong first: `URGENCY` follows this order.
_WORDS = {
    "bad": ("failed", "crashed", "timed out", "lost", "could not run", "regressed"),
    "warn": ("cancelled", "not run", "soft-failed", "inconclusive"),
    "busy": ("running", "submitting", "changed"),
    "idle": ("queued", "skipped", "unchanged"),
    "good": ("passed", "improved"),
}
_TONE_STYLES = {"bad": "red", "warn": "yellow", "busy": "cyan", "idle": "dim", "good": "green"}

TONES: Mapping[str, str] = {word: tone for tone, words in _WORDS.items() for word in words}
"""The tone of each state, verdict of a cell and verdict of a comparison."""
URGENCY = {word: number for number, words in enumerate(_WORDS.values()) for word in words}
"""In which order they are listed: what is wrong first."""
STYLES = {word: _TONE_STYLES[tone] for word, tone in TONES.items()}
"""The same for terminals."""
_EMOJI = {"passed": "✅", "soft-failed": "⚠️", "not run": "🚫", "skipped": "⏭️", "cancelled": "🛑"}
EMOJI = {word: "⏳" if tone in ("busy", "idle") else "❌" for word, tone in TONES.items()} | _EMOJI
"""The same for Markdown."""
INKS = {
    "good": "#1a7f4b",
    "bad": "#c0362c",
    "warn": "#a15c00",
    "busy": "#00708f",
    "idle": "#6b7683",
}
"""The colours of tones where there is no style sheet."""
