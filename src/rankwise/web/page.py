"""What all pages have in common: the frame around them, tables, filters, and the way through."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from rankwise import __version__
from rankwise.report.facts import cut
from rankwise.report.markup import Markup, joined, tag
from rankwise.web.ask import Ask

PAGE_ROWS = 50
FILES = {
    "report.css": ("rankwise.report", "templates", "text/css"),
    "live.css": ("rankwise.web", "static", "text/css"),
    "live.js": ("rankwise.web", "static", "text/javascript"),
}
"""What pages load beside themselves: package, folder, and type of each."""
_WAYS = {"/": "Runs", "/trends": "Trends", "/compare": "Compare"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What one page shows."""

    title: str
    content: Markup
    changes: str = ""
    """The address of the stream that tells when to ask again; empty: it will not change."""
    interval: float = 1.0
    """How many seconds to wait at least between two looks."""
    said: str = ""
    """What those hear who do not see it, when it changes."""
    status: int = 200


@cache
def static_file(name: str) -> tuple[bytes, str, str]:
    """Give one of FILES, its type, and a word that is another one when it changes."""
    package, folder, kind = FILES[name]
    data = (resources.files(package) / folder / name).read_bytes()
    return data, kind, hashlib.sha256(data).hexdigest()[:12]


def _static(name: str) -> str:
    return f"/static/{name}?v={static_file(name)[2]}"


def whole(page: Page, ask: Ask, store: str) -> str:
    """Put the frame around a page."""
    head = joined(
        [
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            Markup('<meta name="robots" content="noindex"><link rel="icon" href="data:,">'),
            tag("title", f"{page.title} · rankwise"),
            Markup(f'<link rel="stylesheet" href="{_static("report.css")}">'),
            Markup(f'<link rel="stylesheet" href="{_static("live.css")}">'),
            tag("script", src=_static("live.js"), defer=True),
        ]
    )
    ways = (
        tag("a", name, href=way, aria_current="page" if way == ask.path else None)
        for way, name in _WAYS.items()
    )
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag(
            "header",
            tag("a", "rankwise", href="/", class_="brand"),
            tag("nav", *ways, aria_label="Pages"),
            tag("span", "", id="link-state", class_="soft link-state"),
            class_="top",
        ),
        tag("main", page.content, id="content", tabindex="-1"),
        tag("footer", f"{store} · rankwise {__version__}", class_="foot"),
        tag("p", page.said, id="said", role="status", aria_live="polite", class_="hear"),
        data_changes=page.changes or None,
        data_interval=str(round(page.interval * 1000)) if page.changes else None,
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>{body}</html>\n'


def live(name: str, *content: str, class_: str | None = None) -> Markup:
    """Mark a part that is put in place of itself when something is new."""
    return tag("div", *content, id=f"live-{name}", data_live=True, class_=class_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table; `up` and `down` are the orders in which a click on it puts the rows."""

    name: str
    up: str = ""
    down: str = ""
    is_number: bool = False


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Markup],
    *,
    ask: Ask | None = None,
    order: str = "",
) -> Markup:
    """Make a table that can be scrolled and read aloud; heads are links where rows can be sorted.

    `order` is the one that the rows are in.
    """
    heads = (_head(column, ask, order) for column in columns)
    inner = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *rows),
    )
    return tag("div", inner, class_="table", tabindex="0", role="region", aria_label=caption)


def _head(column: Column, ask: Ask | None, order: str) -> Markup:
    kind = "n" if column.is_number else None
    if ask is None or not (column.up or column.down):
        return tag("th", column.name, scope="col", class_=kind)
    sort = {column.up: "ascending", column.down: "descending"}.get(order) if order else None
    turned = column.down if order == column.up and column.down else column.up or column.down
    link = tag("a", column.name, href=ask.link(order=turned, page=None))
    return tag("th", link, scope="col", class_=kind, aria_sort=sort)


def pager(ask: Ask, total: int, noun: str, *, size: int = PAGE_ROWS) -> Markup:
    """Say which of many are shown, and lead to the others."""
    pages = max(1, -(-total // size))
    page = min(ask.number("page"), pages)
    first = (page - 1) * size + 1
    words = f"{first:,} to {min(total, page * size):,} of {total:,} {noun}" if total else ""
    if pages == 1:
        return tag("p", words, class_="soft count") if total > 10 else Markup()
    steps = {
        "First": 1 if page > 2 else None,
        "Previous": page - 1 if page > 1 else None,
        "Next": page + 1 if page < pages else None,
        "Last": pages if page < pages - 1 else None,
    }
    links = (
        tag("a", name, href=ask.link(page=number), rel=_RELATIONS.get(name))
        for name, number in steps.items()
        if number is not None
    )
    return tag(
        "nav", tag("span", words, class_="soft"), *links, aria_label="More rows", class_="pager"
    )


_RELATIONS = {"Previous": "prev", "Next": "next"}


def offset(ask: Ask, *, size: int = PAGE_ROWS) -> int:
    """Give how many rows come before the page that is asked for."""
    return (ask.number("page") - 1) * size


def search(
    ask: Ask,
    words: str,
    *,
    selects: Mapping[str, tuple[str, Mapping[str, str]]] | None = None,
    fields: Mapping[str, str] | None = None,
    label: str = "Filter",
) -> Markup:
    """Make a form of filters that works without scripts.

    `words` is the label of the field for words, `selects` are choices by parameter, each with its
    label and its values, and `fields` are more fields.
    """
    parts = [_field("words", words, ask.text("words"), kind="search")]
    for name, (title, choices) in (selects or {}).items():
        parts.append(_select(name, title, choices, ask.text(name)))
    parts += [_field(name, title, ask.text(name)) for name, title in (fields or {}).items()]
    shown = {"words", *(selects or {}), *(fields or {}), "page"}
    parts += [
        void("input", type="hidden", name_=name, value=value)
        for name, value in ask.query.items()
        if name not in shown and value
    ]
    parts.append(tag("button", "Show", type="submit"))
    if any(ask.text(name) for name in shown - {"page"}):
        parts.append(tag("a", "Show all", href=ask.link(**dict.fromkeys(shown))))
    return tag(
        "form", *parts, method="get", action=ask.path, role="search", aria_label=label,
        class_="tools",
    )  # fmt: skip


def _field(name: str, title: str, value: str, kind: str = "text") -> Markup:
    field = void(
        "input", type=kind, name_=name, value=value, autocomplete="off", spellcheck="false"
    )
    return tag("label", tag("span", title), field)


def void(name: str, **attributes: str | bool | None) -> Markup:
    """Make an element that has no content, and so no end."""
    return Markup(tag(name, **attributes).removesuffix(f"</{name}>"))


def _select(name: str, title: str, choices: Mapping[str, str], chosen: str) -> Markup:
    options = (
        tag("option", words, value=value, selected=value == chosen)
        for value, words in choices.items()
    )
    return tag("label", tag("span", title), tag("select", *options, name_=name))


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """List what is known, by name; what is empty is left out."""
    given = [
        (tag("dt", cut(name, 60)), tag("dd", cut(value, 2000))) for name, value in pairs if value
    ]
    listed = tag("dl", *(part for pair in given for part in pair), class_="facts")
    return tag("div", listed, class_="card")


def notice(words: str, tone: str = "warn") -> Markup:
    """Say something that is not part of what is shown."""
    return tag("p", words, class_=f"notice {tone}")


def problem(title: str, words: str, status: int) -> Page:
    """Say why there is no such page."""
    content = joined([tag("h1", title), notice(words), tag("p", tag("a", "All runs", href="/"))])
    return Page(title=title, content=content, status=status)
