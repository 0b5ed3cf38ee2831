"""The site files that count for a folder, read and checked."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rankwise.errors import InputError
from rankwise.site.choices import Layer
from rankwise.site.lookup import Site
from rankwise.site.notify_table import read_notify
from rankwise.site.page import Page, did_you_mean
from rankwise.site.tables import read_compute, read_runtime

NAME = "rankwise.toml"
_MOST_BYTES = 1_000_000
_SECTIONS = ("compute", "runtime", "notify", "defaults")
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def find_site(folder: Path, environ: Mapping[str, str] = os.environ) -> Site:
    """Read the nearest site file in a folder or above it, and the user's own below that.

    InputError: something in them is wrong; its message has a line for each mistake.
    """
    nearest = _nearest(folder.absolute())
    files = [nearest] if nearest else []
    users = _users_own(environ)
    if users and _is_file(users) and not any(users.samefile(file) for file in files):
        files.append(users)
    read = [_read(file) for file in files]
    site = Site(
        file=nearest or folder.absolute() / NAME, layers=tuple(layer for layer, _ in read if layer)
    )
    for layer, page in read:
        if layer:
            _check_defaults(site, layer, page)
    if complaints := [line for _, page in read for line in page.complaints()]:
        raise InputError("\n".join(complaints))
    return site


def _nearest(folder: Path) -> Path | None:
    return next((file for place in _upwards(folder) if _is_file(file := place / NAME)), None)


def _upwards(folder: Path) -> Iterator[Path]:
    yield folder
    yield from folder.parents


def _users_own(environ: Mapping[str, str]) -> Path | None:
    place = Path(environ.get("XDG_CONFIG_HOME", ""))
    # The specification has one that is not absolute ignored.
    if not place.is_absolute():
        if not (home := environ.get("HOME")):
            return None
        place = Path(home) / ".config"
    return place / "rankwise" / NAME


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that we may not look into
        return False


def _read(file: Path) -> tuple[Layer | None, Page]:
    page = Page(file)
    try:
        text = _text(page)
    except OSError as error:
        page.complain_of_line(0, f"cannot be read: {error.strerror}")
        return None, page
    if text is None:
        return None, page
    try:
        document = tomllib.loads(text)
    except RecursionError:
        page.complain_of_line(1, "too many brackets within each other")
        return None, page
    except ValueError as wrong:
        _complain_of_syntax(page, text, str(wrong))
        return None, page
    page = Page(file, text)
    return _layer(document, page), page


def _text(page: Page) -> str | None:
    with page.file.open("rb") as opened:
        content = opened.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        page.complain_of_line(0, "larger than 1 MB; a site file has a few lines")
        return None
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        page.complain_of_line(line, "not UTF-8; save the file as UTF-8")
        return None


def _complain_of_syntax(page: Page, text: str, message: str) -> None:
    """Put the position first, which tomllib puts last."""
    found = _POSITION.search(message)
    what = message[: found.start()] if found else message
    if found and found[1]:
        page.complain_of_line(int(found[1]), what, int(found[2]))
    else:
        page.complain_of_line(text.rstrip().count("\n") + 1, what)


def _layer(document: Mapping[str, Any], page: Page) -> Layer:
    page.complain_of_unknown((), document, _SECTIONS)
    computes = _tables(document, "compute", page)
    runtimes = _tables(document, "runtime", page)
    notified = _tables(document, "notify", page)
    defaults = _defaults(document, page)
    return Layer(
        file=page.file,
        computes={name: read_compute(name, table, page) for name, table in computes},
        runtimes={name: read_runtime(name, table, page) for name, table in runtimes},
        notified={name: read_notify(name, table, page) for name, table in notified},
        default_compute=defaults.get("compute", ""),
        default_runtime=defaults.get("runtime", ""),
    )


def _tables(
    document: Mapping[str, Any], section: str, page: Page
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    tables = document.get(section, {})
    if not isinstance(tables, dict):
        page.complain((section,), f"{section} must be tables: [{section}.NAME]")
        return
    for name, table in tables.items():
        if not isinstance(table, dict):
            page.complain((section, name), f"{section}.{name} must be a table: [{section}.{name}]")
        elif not name or "*" in name[:-1]:
            page.complain((section, name), f'"{name}" is no name: a * may stand at its end only')
        else:
            yield name, table


def _defaults(document: Mapping[str, Any], page: Page) -> dict[str, str]:
    table = document.get("defaults", {})
    if not isinstance(table, dict):
        page.complain(("defaults",), "defaults must be a table: [defaults]")
        return {}
    page.complain_of_unknown(("defaults",), table, ("compute", "runtime"))
    names = {}
    for kind in ("compute", "runtime"):
        if kind in table and not isinstance(table[kind], str):
            page.complain(("defaults", kind), f"{kind} must be the name of a {kind}, in quotes")
        else:
            names[kind] = table.get(kind, "")
    return names


def _check_defaults(site: Site, layer: Layer, page: Page) -> None:
    """Complain of defaults that no site file has; both files must have been read."""
    if not site.has_compute(layer.default_compute):
        known = [name for each in site.layers for name in each.computes]
        _complain_of_default(page, "compute", layer.default_compute, known)
    if not site.has_runtime(layer.default_runtime):
        known = [name for each in site.layers for name in each.runtimes]
        _complain_of_default(page, "runtime", layer.default_runtime, known)


def _complain_of_default(page: Page, kind: str, name: str, known: list[str]) -> None:
    hint = did_you_mean(name, known) or f"; write [{kind}.NAME] for it"
    page.complain(("defaults", kind), f'there is no {kind} "{name}"{hint}')
