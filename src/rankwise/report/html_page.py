"""One HTML file that needs nothing else: no network, no font, and no script but its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib import resources

from rankwise.report.markup import Markup, joined, tag


def html_page(title: str, content: Iterable[Markup], *, styles: Sequence[str] = ()) -> str:
    """Make a page of its parts; `styles` are templates that it needs beside the usual one."""
    style = "".join(map(_template, ("report.css", *styles)))
    script = _template("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = joined(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{rules}">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            Markup('<meta name="robots" content="noindex"><link rel="icon" href="data:,">'),
            tag("title", title),
            tag("style", Markup(style)),
        ]
    )
    body = tag("main", *content)
    page = f'<html lang="en"><head>{head}</head><body>{body}<script>{script}</script></body></html>'
    return f"<!doctype html>\n{page}\n"


def _template(name: str) -> str:
    return (resources.files("rankwise.report") / "templates" / name).read_text(encoding="utf-8")
