"""A mark for tests of the documents that rankwise answers, and the table of what they promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., object])
PROPERTY = "sentence"
HEAD = ("document", "sentence", "what ran", "verdict")


def sentence(document: str, *, ran: str, stand_in: str = "") -> Callable[[Test], Test]:
    """Mark a test of one sentence of `document`: the first paragraph of its docstring.

    `ran` is the command that it runs. `stand_in` names what took the place of something that this
    machine cannot have, such as a GPU.
    """
    return pytest.mark.sentence(document, ran=ran, stand_in=stand_in)


def describe(item: pytest.Item) -> tuple[str, str, str] | None:
    """Return document, sentence and what runs, or None if the test is about no sentence."""
    mark = item.get_closest_marker("sentence")
    if mark is None:
        return None
    text = getattr(getattr(item, "function", None), "__doc__", None) or ""
    said = " ".join(text.strip().partition("\n\n")[0].split())
    if not said:
        raise pytest.UsageError(f"{item.nodeid}: its docstring must be the sentence")
    ran = mark.kwargs["ran"]
    if stand_in := mark.kwargs["stand_in"]:
        ran = f"{ran} ({stand_in} stands in)"
    return mark.args[0], said, ran


def configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "sentence(document, ran, stand_in): a sentence of a document"
    )


def note(items: Iterable[pytest.Item]) -> None:
    """Let the report of each test carry its sentence, also from a worker of xdist."""
    for item in items:
        if (described := describe(item)) is not None:
            item.user_properties.append((PROPERTY, described))


def show(reporter: pytest.TerminalReporter) -> None:
    """Print what the documents say, what ran, and how it ended."""
    rows = set(_rows(reporter))
    if rows:
        reporter.section("sentences of the documents")
        for line in _table(rows):
            reporter.write_line(line)


def _table(rows: Iterable[tuple[str, str, str, str]]) -> list[str]:
    lines = [HEAD, ("---",) * len(HEAD), *sorted(rows)]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _rows(reporter: pytest.TerminalReporter) -> Iterator[tuple[str, str, str, str]]:
    for verdict in ("passed", "skipped", "failed", "error"):
        for report in reporter.stats.get(verdict, []):
            for name, described in getattr(report, "user_properties", ()):
                if name == PROPERTY:
                    document, said, ran = described
                    yield document, said, ran, verdict
