"""Single values of a site file, read and checked.

What is wrong is complained of on the page, and taken as if it were not written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankwise.site.page import Key, Page

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KkMGTP])(i?)B?|B)?")
_POWERS = {letter: power for power, letter in enumerate("KMGTP", 1)}


def read_number(
    at: Key, table: Mapping[str, Any], page: Page, *, least: float, is_whole: bool = False
) -> float | None:
    """Read a number that is not too small; None: there is none."""
    value = table.get(at[-1])
    if value is None:
        return None
    kinds = (int,) if is_whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
        kind = "a whole number" if is_whole else "a number"
        page.complain(at, f"{at[-1]} must be {kind}, not {written(value)}")
        return None
    if value < least:
        page.complain(at, f"{at[-1]} must be {'0 or more' if least == 0 else 'more than 0'}")
        return None
    return value


def read_size(at: Key, table: Mapping[str, Any], page: Page) -> int | None:
    """Read a number of bytes, which may have a unit; None: there is none."""
    value = table.get(at[-1])
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = 0
    if found:
        base = 1024 if found[3] else 1000
        size = int(float(found[1]) * base ** _POWERS.get((found[2] or "").upper(), 0))
    if not size:
        page.complain(at, f'{at[-1]} must be like "64GiB" or "500M", not {written(value)}')
    return size or None


def read_truth(at: Key, table: Mapping[str, Any], page: Page) -> bool:
    """Read true or false."""
    value = table.get(at[-1], False)
    if not isinstance(value, bool):
        page.complain(at, f"{at[-1]} must be true or false, not {written(value)}")
        return False
    return value


def read_text(at: Key, table: Mapping[str, Any], page: Page) -> str:
    """Read a text that is not empty."""
    value = table[at[-1]]
    if isinstance(value, str) and value.strip() and "\0" not in value:
        return value
    page.complain(at, f"{at[-1]} must be a text in quotes, not {written(value)}")
    return ""


def read_words(at: Key, table: Mapping[str, Any], page: Page) -> tuple[str, ...]:
    """Read a list of texts; one text alone is a list of one."""
    value = table.get(at[-1], ())
    if isinstance(value, str) and value.strip():
        value = [value]
    is_list = isinstance(value, list | tuple)
    if is_list and all(isinstance(one, str) and one.strip() for one in value):
        return tuple(value)
    page.complain(at, f'{at[-1]} must be a list such as ["one", "two"], not {written(value)}')
    return ()


def from_file(path: str, page: Page) -> str:
    """Make a path absolute that is relative to the site file.

    Links are followed in the folders above it only: a Python knows its environment by the link
    through which it is called.
    """
    try:
        whole = page.file.parent / Path(path).expanduser()
        return str(whole.parent.resolve() / whole.name)
    except (OSError, RuntimeError):  # no such home, or links in a circle
        return path


def written(value: Any) -> str:
    """Show a value as it is written in TOML, roughly."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return '"' + value.replace("\n", "\\n") + '"'
        case dict():
            return "a table"
        case list():
            return "a list"
    return str(value)
