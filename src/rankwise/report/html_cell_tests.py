"""The tasks of a cell in HTML: how long each took, what it used over time, and its files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from rankwise.report.facts import cut
from rankwise.report.html_usage import used_cells
from rankwise.report.markup import Markup, joined, tag
from rankwise.report.matrix import CellTest
from rankwise.report.notebook_files import notebook_files
from rankwise.report.outcomes import TONES
from rankwise.report.words import counted, duration, size
from rankwise.store import State

_LONGEST = 120
_MOST_TESTS = 40


@dataclass(slots=True, kw_only=True)
class Page:
    """What panels share: how much may still be written, where files and other places are."""

    left: int
    folder: Path
    """From which files are seen."""
    cells: Mapping[tuple[str, str], int]
    """The numbers of cells, by runtime and machine."""
    environments: Mapping[str, int]
    """The numbers of environments, by their keys."""
    pictures: int = 0
    """How much of it pictures may take: words say more."""
    is_large: bool = False
    """Whether there is only room for what is not green."""
    shown: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The cell in which each picture is already."""

    def link(self, path: Path, words: str) -> Markup:
        """Make a link to a file."""
        relative = os.path.relpath(path, self.folder)
        return tag("a", words, href=quote(relative))


def tests_of(tests: Sequence[CellTest], page: Page) -> Markup:
    """Make a table of the tasks; where there are very many, the green ones are only listed."""
    order = sorted(tests, key=lambda one: one.state.is_green)
    brief = [one for one in order if page.is_large and one.state is State.PASSED]
    shown = [one for one in order if one not in brief][:_MOST_TESTS]
    parts = [_table(shown, page)] if shown else []
    if brief:
        items = (tag("li", *_brief(one, page)) for one in brief[:_MOST_TESTS])
        parts.append(tag("ul", *items, class_="brief"))
    if left := len(tests) - len(shown) - len(brief[:_MOST_TESTS]):
        words = f"{counted(left, 'more task')}: all are among the cases below."
        parts.append(tag("p", words, class_="soft"))
    return joined(parts)


def _brief(one: CellTest, page: Page) -> Iterator[Markup]:
    name = cut(one.name, _LONGEST)
    yield page.link(one.log, name) if one.log is not None else tag("span", name)
    took = duration(one.seconds) if one.seconds is not None else ""
    memory = size(one.peak_memory) if one.peak_memory else ""
    yield tag("small", ", ".join(filter(None, [f" {one.state}", took, memory])))


def _table(shown: Sequence[CellTest], page: Page) -> Markup:
    has_gpus = any(one.usage is not None and one.usage.gpu for one in shown)
    heads = ["task", "outcome", "took", "CPU on cores", "memory", *(["GPU"] * has_gpus), "files"]
    rows = [tag("tr", *_row(one, page, has_gpus=has_gpus)) for one in shown]
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in heads)))
    return tag("div", tag("table", head, tag("tbody", *rows), class_="tests"), class_="scroll")


def _row(one: CellTest, page: Page, *, has_gpus: bool) -> Iterator[Markup]:
    yield tag("td", cut(one.name, _LONGEST), class_="k")
    yield tag("td", str(one.state), class_=f"o {TONES[one.state]}")
    yield tag("td", duration(one.seconds) if one.seconds is not None else "", class_="n")
    yield from used_cells(
        one.usage, cpu_seconds=one.cpu_seconds, peak_memory=one.peak_memory, has_gpus=has_gpus
    )
    yield tag("td", *_links(one, page), class_="files")


def _links(one: CellTest, page: Page) -> Iterator[Markup]:
    if one.log is not None:
        yield page.link(one.log, "log")
    for path in notebook_files(one.folder) if one.folder is not None else ():
        words = {".ipynb": "notebook", ".html": "HTML", ".pdf": "PDF"}[path.suffix]
        yield Markup(" ")
        yield page.link(path, words)
