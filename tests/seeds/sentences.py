"""A mark for tests of the documents that rankwise answers, and the table of what they promise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

PROPERTY = "sentence"
HEAD = ("document", "sentence", "what ran", "verdict")


def sentence(
    document: str, *, ran: str, stand_in: str = "", said: str = ""
) -> pytest.MarkDecorator:
    """Mark a test of one sentence of `document`: the first paragraph of its docstring, or `said`.

    `ran` is the command that it runs. `stand_in` names what took the place of something that this
    machine cannot have, such as a GPU. A test that holds several sentences has several marks.
    """
    return pytest.mark.sentence(document, ran=ran, stand_in=stand_in, said=said)


def describe(item: pytest.Item) -> list[tuple[str, str, str]]:
    """Return document, sentence and what runs, for each sentence that the test is about."""
    text = getattr(getattr(item, "function", None), "__doc__", None) or ""
    docstring = " ".join(text.strip().partition("\n\n")[0].split())
    found = []
    for mark in item.iter_markers("sentence"):
        said = mark.kwargs["said"] or docstring
        if not said:
            raise pytest.UsageError(f"{item.nodeid}: its docstring must be the sentence")
        ran = mark.kwargs["ran"]
        if stand_in := mark.kwargs["stand_in"]:
            ran = f"{ran} ({stand_in} stands in)"
        found.append((mark.args[0], said, ran))
    return found


def configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "sentence(document, ran, stand_in, said): a sentence of a document"
    )


def note(items: Iterable[pytest.Item]) -> None:
    """Let the report of each test carry its sentences, also from a worker of xdist."""
    for item in items:
        item.user_properties.extend((PROPERTY, described) for described in describe(item))


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
